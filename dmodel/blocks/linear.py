"""A single matrix in the place of a mixer or an MLP (Nemotron-NAS)."""

from __future__ import annotations

from dmodel import struct
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


class Linear(struct.PyTreeNode, kw_only=True):
    """One matrix `h → h` in place of a mixer or an MLP (Bercovich et al. 2024, arXiv 2411.19146).

    Attributes:
      linears: matrices in a row [count]; 1 = one.
      small: parameters of biases [count]; 0 = none.
    """

    KIND = "linear"
    COUNTED = ("linears",)
    SPLIT = ()
    COPIED = ()

    linears: Array = 1.0
    small: Array = 0.0

    def parameters(self, h: Array) -> Weights:
        """`h² + h`."""
        return Weights(split=self.linears * h * h + h + self.small)

    def work(self, at: Site) -> Work:
        """One product whose input ranks of tp hold in parts."""
        return Work(
            products=(Product("out", at.t, at.h, at.h / at.layout.tp, self.linears),),
            streams=wrapped(at, Passes(0.0, 0.0)),
            kernels=3.0 + at.several,
            dense=self.linears,
            mixed=1.0,
        )

    def keeps(self, at: Site) -> Kept:
        """Its input alone."""
        return Kept(**entered(at))
