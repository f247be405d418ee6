"""What Llama 3 405B on 16,384 H100 depends on.

What Llama 3 405B on 16,384 H100 depends on: elasticities at the published plan and at the best
one, interactions, regimes, flips.

The plan is that of the Llama team 2024 (arXiv 2407.21783, section 3.3.2 and table 4: TP 8, CP 1, PP
16, DP 128; 16 Mi tokens per batch, 8,192 each; interleaved stages, here of one layer each), its
gradients reduced once per step. The report shards gradients too, without which the model counts a
tenth more memory than a device has; 43 % of the peak, as it measured, are 5.8 s.
"""

from __future__ import annotations

from dmodel.records import Plan
from experiments.sensitivity_common import Published, study
from experiments.study import options
from experiments.study import run as run_study

RUN = Published(
    study="sensitivity_llama3_405b",
    title="Llama 3.1 405B on 16,384 H100",
    system="H100-Llama-3",
    model="llama-3.1-405b",
    precision="bf16",
    stack="",
    seq_len=8192,
    plan=Plan.of(
        dp=128.0,
        tp=8.0,
        sp=1.0,
        pp=16.0,
        interleave=8.0,
        schedule="interleaved",
        zero=1.0,
        shard=128.0,
        global_batch=2048.0,
    ),
    follow=("chip.flops_per_s", "chip.hbm_bytes", "network.bytes_per_s[NVLink 4]"),
)


def main() -> None:
    """Run the study."""
    study(RUN, options(__doc__ or ""))


if __name__ == "__main__":
    run_study(main)
