"""Mamba-2: a state-space mixer that scans tokens in chunks."""

from __future__ import annotations

from dmodel import struct
from dmodel.blocks.part import (
    WORD,
    Core,
    Kept,
    Passes,
    Product,
    Site,
    Weights,
    Work,
    entered,
    wrapped,
)
from dmodel.types import Array

CHUNK = 128.0
"""Tokens of one chunk of a scan [token] (Nemotron-H configurations)."""

SCAN = Passes(1.0, 2.0)
"""Passes of a scan's traffic, in forward ones."""


def handed_over(at: Site, state: Array) -> Array:
    """States of a linear mixer that ranks of cp hand over, `4 b cp state / tp` [byte]: every rank
    gathers those at the ends of all parts of a sequence, in fp32 (LASP-2, Sun et al. 2025, arXiv
    2502.07563)."""
    layout = at.layout
    return 4.0 * layout.micro_batch * layout.cp * state / layout.tp


class Mamba2(struct.PyTreeNode, kw_only=True):
    """A mixer whose heads keep a state each (Dao & Gu 2024, arXiv 2405.21060).

    Attributes:
      mamba_inner: i, inner width [count].
      mamba_heads: n, heads [count].
      mamba_groups: G, groups that share what goes into the state and out of it [count].
      mamba_state: N, size of the state [count].
      taps: of the convolution before the scan [count].
      small: parameters of biases beside its norms and scales [count]; 0 = none.
    """

    KIND = "mamba2"
    COUNTED = (
        "mamba_inner",
        "mamba_heads",
        "mamba_groups",
        "mamba_state",
    )
    SPLIT = ("mamba_heads",)
    COPIED = ("mamba_groups",)

    mamba_inner: Array
    mamba_heads: Array
    mamba_groups: Array
    mamba_state: Array
    taps: Array = 4.0
    small: Array = 0.0

    def _columns(self) -> Array:
        return 2.0 * (self.mamba_inner + self.mamba_groups * self.mamba_state) + self.mamba_heads

    def parameters(self, h: Array) -> Weights:
        """`h (2 i + 2 G N + n) + i h`, the convolution's `taps (i + 2 G N)`, the gated norm's i,
        three scales a head, a norm h."""
        i, bc = self.mamba_inner, self.mamba_groups * self.mamba_state
        filters = self.taps * (i + 2.0 * bc) + i + 3.0 * self.mamba_heads
        return Weights(split=h * (self._columns() + i) + filters + h + self.small)

    def work(self, at: Site) -> Work:
        """Two products around a scan in chunks of c tokens, `2 c (G N + i) + 4 i N` FLOPs a token,
        which counts as attention with heads of 128.

        Streams: convolution, scan and gated norm, `(8 + 6 N/c) i + 7 G N` a token and twice that
        backward: states of chunks are written and read in fp32, then in 16 bits (mamba_ssm's
        `ssd_combined.py`).
        """
        i, n, tp = self.mamba_inner, self.mamba_state, at.layout.tp
        bc = self.mamba_groups * n
        flops = at.t * (2.0 * CHUNK * (bc + i) + 4.0 * i * n) / tp
        scan = at.t * ((8.0 + 6.0 * n / CHUNK) * i + 7.0 * bc) / tp
        return Work(
            products=(
                Product("first", at.t, self._columns() / tp, at.h),
                Product("out", at.t, at.h, i / tp),
            ),
            cores=(Core(flops, at.software.flash * flops / (4.0 * 128.0)),),
            streams=wrapped(at, Passes(SCAN.forward * scan, SCAN.backward * scan)),
            kernels=10.0 + at.several,
            dense=2.0,
            mixed=1.0,
            returned=at.t * i / tp,
            ring=handed_over(at, i * n),
        )

    def keeps(self, at: Site) -> Kept:
        """Its `2 i + 2 G N` inputs, the scan's and the gate's outputs."""
        i, bc = self.mamba_inner, self.mamba_groups * self.mamba_state
        held = WORD * (3.0 * i + 2.0 * bc) + at.operand * i
        return Kept(**entered(at), core=at.t * held / at.layout.tp)
