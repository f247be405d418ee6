"""Power of one device from what it is busy with, and of what stands around it.

A device that waits inside a collective is not at rest: the library's kernels poll memory on their processors, and the clock stays up. What
that draws, and the energy of a byte, come from the measurements and specifications named here, none of which is of a step that this
package predicts; the power at full load is the data sheet's.
"""

from __future__ import annotations

from flax import struct

from dmodel.hardware import Chip
from dmodel.types import Array

WAITING_SHARE = 0.53
"""Of the range from idle to peak, what a device draws while its kernels run but compute nothing: polling, clocks, leakage at voltage [1].

Patel et al. 2024 (POLCA, "Characterizing power management opportunities for LLMs in the cloud", arXiv 2308.12908, training on 8 A100s of
400 W): at the synchronization that ends an iteration power falls to 75 % of the rated one in one model and to 50 % in another, while idle
is 20 %: (0.75 − 0.2)/0.8 = 0.69 and (0.5 − 0.2)/0.8 = 0.38, here their mean. A third model, which waits for its host, falls to idle."""

WAITING_RANGE = (0.38, 0.69)
"""The two measurements behind `WAITING_SHARE`. Less is seen where nothing moves for long: an H100 that hangs in a collective reads 152 W of
700 (github.com/NVIDIA/nccl, issue 1550), a share of 0.13."""

SUSTAINED = 0.72
"""Share of the peak rate at which large 16-bit products draw the rated power [1]: what they reach once power limits the clock
(`dmodel.cost.clock`; products of 8192 on H100 and H200 0.68, `calibration/torch_step`; peaks of training reach or exceed the rated power,
Patel et al. 2024)."""

HBM_JOULES_PER_BYTE = 8.0 * (3.9e-12 + 1.6e-12)
"""Of stacked memory: 3.9 pJ/bit in the stack and its interface (O'Connor et al. 2017, "Fine-grained DRAM", HBM2) and 1.6 pJ/bit for 20 mm
of wires on the die, at 80 fJ/bit/mm (Keckler et al. 2011, "GPUs and the future of parallel computing", scaled to 7 nm) [J/byte]."""

LINK_JOULES_PER_BYTE = 8.0 * 6.5e-12
"""Of a link that leaves the package, both ends: five times the 1.3 pJ/bit of NVLink-C2C, which NVIDIA puts at 5 times less than PCIe 5
(Grace Hopper whitepaper, 2023) [J/byte]. Adapters and switches count as hosts."""

HOST_SHARE = 0.5
"""Power of a device's part of the host (processors, fans, adapters, conversion) over the device's peak, whatever it does [1]: 8.4 kW, the
most that a server of 8 H100s of 0.7 kW drew in training (Latif et al. 2024, arXiv 2412.08602); the data sheet's 10.2 kW would be 0.82."""

COOLING_FACTOR = 1.1
"""Facility over servers (PUE) [1]: that of the large operators' fleets (Google 1.10, Meta 1.08 to 1.09, environmental reports of 2023);
the industry's mean is 1.6."""


class Draw(struct.PyTreeNode, kw_only=True):
    """Mean power of one accelerator by cause [W]: at rest; because kernels run; of arithmetic on top; of streaming kernels; of links."""

    idle: Array
    running: Array
    arithmetic: Array
    memory: Array
    links: Array

    @property
    def total(self) -> Array:
        """Sum of all [W]."""
        return self.idle + self.running + self.arithmetic + self.memory + self.links


def draw(chip: Chip, running: Array, arithmetic: Array, hbm_bytes_per_s: Array, link_bytes_per_s: Array = 0.0) -> Draw:
    """What one accelerator draws, by cause [W].

    `idle + (peak − idle) (w · running + (1 − w) · arithmetic) + e_hbm · bytes/s + e_link · bytes/s`, w `WAITING_SHARE`.

    Limits: idle when nothing runs; peak when products run at their sustained rate all the time; `idle + w (peak − idle)` while it waits in
    a collective. Traffic of operands during products is part of the peak. Products that something slows count for less; a chip at its
    power limit would raise its clock and draw on, so that power falls too much where communication slows compute.

    Args:
      running: share of the time in which kernels run, computing or not [1]. arithmetic: products over those at the sustained rate [1].
      hbm_bytes_per_s: traffic of kernels that stream from memory [byte/s]. link_bytes_per_s: sent to other devices [byte/s].
    """
    dynamic = chip.peak_watts - chip.idle_watts
    return Draw(
        idle=chip.idle_watts,
        running=WAITING_SHARE * dynamic * running,
        arithmetic=(1.0 - WAITING_SHARE) * dynamic * arithmetic,
        memory=HBM_JOULES_PER_BYTE * hbm_bytes_per_s,
        links=LINK_JOULES_PER_BYTE * link_bytes_per_s,
    )


def watts(chip: Chip, running: Array, arithmetic: Array, hbm_bytes_per_s: Array, link_bytes_per_s: Array = 0.0) -> Array:
    """Mean power of one accelerator [W]: the sum of `draw`.

    An H100 that does nothing, waits, and computes:

    >>> from dmodel import catalog
    >>> h100 = catalog.chip("H100-80GB")
    >>> [float(watts(h100, *x, 0.0).round()) for x in ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0))]
    [70.0, 404.0, 700.0]
    """
    return draw(chip, running, arithmetic, hbm_bytes_per_s, link_bytes_per_s).total


def host_watts(chip: Chip, host_share: Array = HOST_SHARE) -> Array:
    """Power of one device's part of the host [W]: `share · peak`, the same at any load."""
    return host_share * chip.peak_watts
