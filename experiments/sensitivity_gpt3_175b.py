"""What GPT-3 175B on 1,024 A100 depends on.

What GPT-3 175B on 1,024 A100 depends on: elasticities at a published plan and at the best one,
interactions, regimes, flips.

The plan is that of Korthikanti et al. 2022 (arXiv 2205.05198, table 3: tensor 8, pipeline 8,
interleaved 3, micro-batch 1, selective recomputation, which flash attention does by itself),
16-fold data-parallel; the batch of 1,536 sequences and the devices those of
Narayanan et al. 2021 (arXiv 2104.04473, section 5.1).
"""

from __future__ import annotations

from dmodel.records import Plan
from experiments.sensitivity_common import Published, study
from experiments.study import options
from experiments.study import run as run_study

RUN = Published(
    study="sensitivity_gpt3_175b",
    title="GPT-3 175B on 1,024 A100",
    system="A100-DGX",
    model="gpt-3-175b",
    precision="bf16",
    stack="",
    seq_len=2048,
    plan=Plan.of(
        dp=16.0,
        tp=8.0,
        sp=1.0,
        pp=8.0,
        interleave=3.0,
        schedule="interleaved",
        zero=1.0,
        shard=16.0,
        global_batch=1536.0,
        reduce_bytes=4.0,
    ),
    follow=("chip.flops_per_s", "chip.hbm_bytes", "network.bytes_per_s[NVLink 3]"),
)


def main() -> None:
    """Run the study."""
    study(RUN, options(__doc__ or ""))


if __name__ == "__main__":
    run_study(main)
