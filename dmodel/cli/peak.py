"""Utilization over a peak that is said instead of the chip's."""

from __future__ import annotations

from dmodel.cli.output import Document, say

MFU = ("mfu", "mfu_low", "mfu_high")
"""Names of utilization in the answer, by convention each."""


def over_peak(d: Document, peak: float) -> Document:
    """Utilization over a peak that is said, and what is to be said of that peak."""
    own = d["peak_flops_per_s"]
    names = [name for name in MFU if name in d]
    over = {name: {rule: x * own / peak for rule, x in d[name].items()} for name in names}
    if abs(peak / own - SPARSE) < 0.02 * SPARSE:
        say(
            f"--peak {peak / 1e12:g}: that is the peak with sparsity, which no training reaches; "
            f"{d['accelerator']} has {own / 1e12:.0f} TFLOP/s for dense products in "
            f"{d['precision']}"
        )
    return over | {"peak_flops_per_s": peak}


SPARSE = 2.0
"""Peak that data sheets print with structured sparsity over the dense one [1]."""
