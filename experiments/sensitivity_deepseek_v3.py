"""What DeepSeek-V3 on 2,048 H800 depends on.

What DeepSeek-V3 on 2,048 H800 depends on: elasticities at the published plan and at the best
one, interactions, regimes, flips.

The plan is that of DeepSeek-AI 2024 (arXiv 2412.19437, sections 3.2 and 4.2: 16 stages, 64-way
experts over 8 nodes, ZeRO-1, no tensor parallelism, 15,360 sequences of 4,096 tokens, 8 bits); a
zero-bubble schedule stands for DualPipe.
"""

from __future__ import annotations

from dmodel.records import Plan
from experiments.sensitivity_common import Published, study
from experiments.study import options
from experiments.study import run as run_study

RUN = Published(
    study="sensitivity_deepseek_v3",
    title="DeepSeek-V3 on 2,048 H800",
    system="H800-HGX",
    model="deepseek-v3",
    precision="fp8",
    stack="",
    seq_len=4096,
    plan=Plan.of(
        dp=128.0,
        pp=16.0,
        ep=64.0,
        merge_copies=1.0,
        sp=1.0,
        zero=1.0,
        shard=128.0,
        global_batch=15360.0,
        operand_bytes=1.0,
        schedule="zero-bubble",
    ),
    follow=("chip.hbm_bytes", "network.bytes_per_s[NDR InfiniBand]"),
)


def main() -> None:
    """Run the study."""
    study(RUN, options(__doc__ or ""))


if __name__ == "__main__":
    run_study(main)
