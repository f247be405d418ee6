"""A gated short convolution in place of attention."""

from __future__ import annotations

from flax import struct

from dmodel.blocks.part import (
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


class ShortConv(struct.PyTreeNode, kw_only=True):
    """A convolution over a few tokens between two gates (LFM2, Liquid AI 2025, arXiv 2511.23404).

    Attributes:
      taps: of the convolution, each channel for itself [count].
      small: parameters of biases [count]; 0 = none.
    """

    KIND = "short_conv"
    COUNTED = ("taps",)

    taps: Array = 3.0
    small: Array = 0.0

    def parameters(self, h: Array) -> Weights:
        """`4 h²`, `taps h`, a norm h."""
        return Weights(split=4.0 * h * h + self.taps * h + h + self.small)

    def work(self, at: Site) -> Work:
        """Two products around the convolution."""
        tp = at.layout.tp
        return Work(
            products=(
                Product("first", at.t, 3.0 * at.h / tp, at.h),
                Product("out", at.t, at.h, at.h / tp),
            ),
            streams=wrapped(at, Passes(0.0, 0.0)),
            mixed=1.0,
        )

    def keeps(self, at: Site) -> Kept:
        """Its input."""
        return Kept(**entered(at))
