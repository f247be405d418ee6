"""The MLP of a dense layer."""

from __future__ import annotations

from dmodel import struct
from dmodel.blocks.part import (
    ADDITION,
    WORD,
    Kept,
    Passes,
    Product,
    Site,
    Weights,
    Work,
    entered,
    opened,
    wrapped,
)
from dmodel.types import Array

ACTIVATION = Passes(2.0, 3.0)
"""Touches of the width by an activation [count]: backward the input is read once more beside the
gradient."""

GATE = Passes(1.0, 2.0)
"""More of them where there is a gate."""


def activation(gated: Array) -> Passes:
    """Touches of the width of an MLP [count]."""
    return Passes(*(a + g * gated for a, g in zip(ACTIVATION, GATE, strict=True)))


def width_kept(at: Site, gated: Array) -> Array:
    """Bytes that an MLP keeps of each element of its width: `2 + 2 gated` before the activation and
    an operand behind it; what the gate multiplies, where that is a kernel apart."""
    return 2.0 + 2.0 * gated * (1.0 + at.software.eager) + at.operand


class Dense(struct.PyTreeNode, kw_only=True):
    """Two matrices, or three with a gate, around an activation.

    Attributes:
      d_ff: f, width [count].
      gated_mlp: 1 = three matrices (SwiGLU, GeGLU); 0 = two.
      small: parameters of biases and norms beside the layer's first [count]; 0 = none.
    """

    KIND = "dense"
    COUNTED = ("d_ff",)
    SPLIT = ()
    COPIED = ()
    CHOICES = frozenset(("gated_mlp",))

    d_ff: Array
    gated_mlp: Array = 1.0
    small: Array = 0.0

    def parameters(self, h: Array) -> Weights:
        """`(2 + gated) h f + h`."""
        return Weights(split=h + self.small, shared=(2.0 + self.gated_mlp) * h * self.d_ff)

    def work(self, at: Site) -> Work:
        """`h → (1 + gated) f` and `f → h`."""
        own, tp = self.d_ff / at.layout.tp, at.layout.tp
        width = at.t * self.d_ff / tp
        inside = Passes(*(n * width for n in activation(self.gated_mlp)))
        return Work(
            products=(
                Product("up", at.t, (1.0 + self.gated_mlp) * own, at.h),
                Product("down", at.t, at.h, own),
            ),
            streams=wrapped(at, inside),
            added=ADDITION * WORD * opened(at),
            kernels=5.0 + at.several,
            dense=2.0,
            passed=1.0,
        )

    def keeps(self, at: Site) -> Kept:
        """Korthikanti et al. 2022, generalized: on h the inputs of norm and residual, masks and
        norms' outputs; on f what lies before the activation, and behind."""
        width = at.t * self.d_ff / at.layout.tp
        return Kept(**entered(at), dense=width * width_kept(at, self.gated_mlp))
