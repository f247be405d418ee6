"""A gated short convolution in place of attention."""

from __future__ import annotations

from dmodel import struct
from dmodel.blocks.part import (
    WORD,
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

TOUCHED = Passes(8.0, 13.0)
"""Touches of h by a gate before the convolution, the convolution, a gate behind it [count]: forward
3, 2 and 3, backward 5, 3 and 5."""


class ShortConv(struct.PyTreeNode, kw_only=True):
    """A convolution over a few tokens between two gates (LFM2, Liquid AI 2025, arXiv 2511.23404).

    Attributes:
      taps: of the convolution, each channel for itself [count].
      small: parameters of biases [count]; 0 = none.
    """

    KIND = "short_conv"
    COUNTED = ("taps",)
    SPLIT = ()
    COPIED = ()

    taps: Array = 3.0
    small: Array = 0.0

    def parameters(self, h: Array) -> Weights:
        """`4 h²`, `taps h`, a norm h (transformers' `lfm2`)."""
        return Weights(split=4.0 * h * h + self.taps * h + h + self.small)

    def work(self, at: Site) -> Work:
        """Two products around the convolution, whose FLOPs are none of matrix units.

        Ranks of cp pass on the tokens that the next one's first taps read.
        """
        layout = at.layout
        width = at.t * at.h / layout.tp
        return Work(
            products=(
                Product("first", at.t, 3.0 * at.h / layout.tp, at.h),
                Product("out", at.t, at.h, at.h / layout.tp),
            ),
            streams=wrapped(at, Passes(*(n * width for n in TOUCHED))),
            kernels=7.0 + at.several,
            dense=2.0,
            mixed=1.0,
            returned=width,
            ring=WORD * layout.micro_batch * (self.taps - 1.0) * at.h / layout.tp,
        )

    def keeps(self, at: Site) -> Kept:
        """Both gates and what they gate, the convolution's input and output, and what the last
        product reads."""
        width = at.t * at.h / at.layout.tp
        return Kept(**entered(at), core=(5.0 * WORD + at.operand) * width)
