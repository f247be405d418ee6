"""What a device of other sizes would cost, measure and draw: one linear bill each for price, die
area and power; replaceable.

Every bill says which share of the catalog's device one quantity takes; the rest does not change. So
a device as in the catalog costs what the catalog says, and twice the memory costs one more share of
memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp

from dmodel import struct
from dmodel.types import Array


class Shares(struct.PyTreeNode, kw_only=True):
    """Share of a total that grows with each quantity, in proportion; latency in inverse proportion
    [1]. The rest is fixed.

    Attributes:
      flops_per_s, hbm_bytes, hbm_bytes_per_s: of the chip. inner, outer: bandwidth of the innermost
      level, and of all others together. latency: hops of all levels together.
    """

    flops_per_s: Array = 0.0
    hbm_bytes: Array = 0.0
    hbm_bytes_per_s: Array = 0.0
    inner: Array = 0.0
    outer: Array = 0.0
    latency: Array = 0.0


class Bill(struct.PyTreeNode, kw_only=True):
    """Shares of price, area and power, and the die area of the catalog's device [mm²]."""

    price: Shares
    area: Shares
    watts: Shares
    die_mm2: Array


BILL = Bill(
    price=Shares(
        flops_per_s=0.30, hbm_bytes=0.20, hbm_bytes_per_s=0.12, inner=0.10, outer=0.13, latency=0.02
    ),
    area=Shares(flops_per_s=0.50, hbm_bytes_per_s=0.12, inner=0.08, outer=0.02),
    watts=Shares(flops_per_s=0.60, hbm_bytes_per_s=0.17, inner=0.07, outer=0.04),
    die_mm2=814.0,
)
"""Shares of an H100 in a cluster.

Price: of the parts of the module (estimates of Raymond James and Epoch AI, 2023 to 2026: die 300,
HBM 1,350, packaging 750, test and assembly 920 dollars), memory is two fifths; in a server beside
hosts and network (SemiAnalysis, 2023: 80 % of a DGX H100 is accelerators) and with the seller's
margin on the whole we take a fifth for capacity, an eighth for the stacks' and packaging's
bandwidth, three tenths for arithmetic, and a quarter for both networks: assumptions, not
measurements.
Area: 814 mm² (NVIDIA, H100 white paper 2022), half of it SMs, an eighth HBM interfaces, a twelfth
NVLink (die photographs; assumed).
Power: HBM at 4 pJ/bit · 3.35 TB/s = 107 W of 700; NVLink at 1.3 pJ/bit (NVIDIA 2022) and SerDes to
50 W; network card and optics 25 W; the rest arithmetic and what does not scale (assumed)."""


def scaled(shares: Shares, ratio: Mapping[str, Array]) -> Array:
    """Total over the catalog's: `1 + Σ share (ratio − 1)`; latency by its inverse [1].

    Args:
      ratio: each quantity over the catalog's, by the names of `Shares`; `outer` is the mean over
        the outer levels.
    """
    total = 1.0 + shares.latency * (1.0 / ratio["latency"] - 1.0)
    for name in ("flops_per_s", "hbm_bytes", "hbm_bytes_per_s", "inner", "outer"):
        total = total + getattr(shares, name) * (ratio[name] - 1.0)
    # far below the catalog's sizes the fixed share remains; never free
    return jnp.maximum(total, 1e-3)
