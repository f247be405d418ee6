"""What the power limit leaves of the clock: products that have a device to themselves run slower than products beside idle time.

Measured on H100 and H200 (`calibration/torch_step`): products of 8192 in bf16 beside kernels that only wait draw 159 W and 793 W for their
share of the time, up to the limit of 700 W at two thirds of it; beyond, clock and voltage fall together.
"""

from __future__ import annotations

from dmodel.smooth import SHARPNESS, maximum
from dmodel.types import Array, stack

CORE, STREAMING = 0.87, 0.38
"""Power of fused attention and of kernels that stream, beyond what a device draws that runs idle kernels, over that of products [1]: 690
and 300 W for 793 (H200, `calibration/torch_step/data`)."""

FALL = 2.6
"""Power falls with the clock as its `FALL`-th power [1]: `f V²`, and voltage falls with the clock. On H200 products alone would draw 1.49
times what the limit leaves and run at 0.86 of their full rate, which is a power of 2.7; beside copies it is 2.2 to 2.5, of narrower
products 2.5, in 8 bits 2.8, of attention 2.0. Not of the H100 there, which slows down before it draws 700 W."""

ABRUPT = 4.0
"""Sharpness of the passage to the limit over that of other maxima [1]: 5 % beyond it products were 1.3 % slower."""


def slowed(products: Array, core: Array, streaming: Array, whole: Array, demand: Array, sharpness: float = SHARPNESS) -> Array:
    """Time of products and of the attention core over that at the full clock [1].

    `max_p(1, u)^(1/FALL)` with `u = demand (products + CORE core + STREAMING streaming) / whole`: the power that a layer would draw at the
    full clock over what the limit leaves, both beyond what the device draws when idle kernels run.

    Limits: 1 for a device that waits, for its host or for messages; `demand^(1/FALL)` for products alone. The limit acts on means over
    tens of milliseconds, many layers: a pipeline's bubble, or what is sent once per step, cools nothing here. A chip with a higher peak
    keeps its demand, as if a FLOP took less energy there; a higher limit of power is a lower demand.

    Args:
      products, core, streaming, whole: of one layer at the full clock, and all that it takes [s]. demand: u of products alone [1].

    On H200 products that have 70 % of the time take 2 % longer than they could, alone 17 %:

    >>> [f"{float(slowed(share, 0.0, 0.0, 1.0, 1.49)):.2f}" for share in (0.3, 0.7, 1.0)]
    ['1.00', '1.02', '1.17']
    """
    drawn = demand * (products + CORE * core + STREAMING * streaming) / whole
    return maximum(stack(1.0, drawn), ABRUPT * sharpness) ** (1.0 / FALL)
