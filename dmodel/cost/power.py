"""Power of one device: what it draws by what it is busy with, what its limit leaves of the clock,
and what stands around it.

Products that have a device to themselves run slower than products beside idle time. Measured on
H100 and H200 (`calibration/torch_step`): products of 8192 in bf16 beside kernels that only wait
draw 153 W and 792 W for their share of the time, up to the limit of 700 W at two thirds of it;
beyond, clock and voltage fall together.
A device that waits inside a collective is not at rest: the library's kernels poll memory on their
processors, and the clock stays up. What that draws, and the energy of links, come from the
measurements and specifications named below; the limit is the data sheet's power.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from dmodel import struct
from dmodel.records import Chip
from dmodel.smooth import SHARPNESS, maximum_of_two, minimum_of_two
from dmodel.types import Array

CORE, STREAMING = 0.87, 0.38
"""Power of fused attention and of kernels that stream, beyond what a device draws that runs idle
kernels, over that of products [1]: 690 and 300 W for 793 (H200, `calibration/torch_step/data`)."""

FALL = 2.6
"""Power falls with the clock as its `FALL`-th power [1]: `f V²`, and voltage falls with the clock.
On H200 products alone would draw 1.49 times what the limit leaves and run at 0.86 of their full
rate, which is a power of 2.7; beside copies it is 2.2 to 2.5, of narrower products 2.5, in 8 bits
2.8, of attention 2.0. Not of the H100 there, which slows down before it draws 700 W."""

ABRUPT = 4.0
"""Sharpness of the passage to the limit over that of other maxima [1]: 5 % beyond it products were
1.3 % slower."""

WANDERING = 0.25
"""Standard deviation of a device's speed where power decides it, over the share of the clock that
the limit takes [1]. Blocks of products that never rest, at 0.7 to 0.8 of the full clock, wander by
1.5 to 3.9 % in 1 to 13 ms on one H100 and one H200, 0.06 to 0.14 of that share
(`calibration/torch_step/data/steady.csv`); that devices differ comes on top. Of 0, 0.1, 0.25 and
0.4 the fit of all rows gains 11, 23 and 28 nats over the first."""

RUNNING_SHARE = 0.17
"""Of the range from idle to the limit, what a device draws while kernels run that do nothing:
clocks, leakage at voltage [1]: 0.13 of an H200 and 0.21 of an H100, the 153 and 204 W that lines
through products beside kernels that only wait leave where products have no time
(`calibration/torch_step/data/duty.csv`, shares of 0.25 to 0.55); an H100 that hangs in a collective
reads 152 W (github.com/NVIDIA/nccl, issue 1550)."""

WAITING_SHARE = 0.53
"""The same while it waits in a collective that works: polling, and what it hands on [1].

Patel et al. 2024 (POLCA, "Characterizing power management opportunities for LLMs in the cloud",
arXiv 2308.12908, training on 8 A100s of 400 W): at the synchronization that ends an iteration power
falls to 75 % of the rated one in one model and to 50 % in another, while idle is 20 %: (0.75 −
0.2)/0.8 = 0.69 and (0.5 − 0.2)/0.8 = 0.38, here their mean. A third model, which waits for its
host, falls to idle."""

WAITING_RANGE = (0.38, 0.69)
"""The two measurements behind `WAITING_SHARE`."""

LINK_JOULES_PER_BYTE = 8.0 * 6.5e-12
"""Of a link that leaves the package, both ends: five times the 1.3 pJ/bit of NVLink-C2C, which
NVIDIA puts at 5 times less than PCIe 5 (Grace Hopper whitepaper, 2023) [J/byte]. Adapters and
switches count as hosts."""

LEAST = 1e-9
"""Share of what the limit leaves below which a draw counts as none [1]."""

HOST_SHARE = 0.5
"""Power of a device's part of the host (processors, fans, adapters, conversion) over the device's
peak, whatever it does [1]: 8.4 kW, the most that a server of 8 H100s of 0.7 kW drew in training
(Latif et al. 2024, arXiv 2412.08602); the data sheet's 10.2 kW would be 0.82."""

COOLING_FACTOR = 1.1
"""Facility over servers (PUE) [1]: that of the large operators' fleets (Google 1.10, Meta 1.08 to
1.09, environmental reports of 2023);
the industry's mean is 1.6."""


def asked(products: Array, core: Array, streaming: Array, demand: Array) -> Array:
    """Energy that kernels would take at the full clock over what the limit leaves in a unit of time
    [s, or 1 for shares of a time]:
    `demand (products + CORE core + STREAMING streaming)`, both beyond what the device draws when
    idle kernels run.

    Args:
      products, core, streaming: times [s], or shares of a time [1]. demand: of products alone [1],
        coefficient `power_demand`.
    """
    return demand * (products + CORE * core + STREAMING * streaming)


def slowed(
    products: Array,
    core: Array,
    streaming: Array,
    whole: Array,
    demand: Array,
    sharpness: float = SHARPNESS,
) -> Array:
    """Time of products and of the attention core over that at the full clock [1].

    `max_p(1, u)^(1/FALL)` with `u = asked / whole`: the power that a layer would draw at the full
    clock over what the limit leaves.

    Limits: 1 for a device that waits, for its host or for messages; `demand^(1/FALL)` for products
    alone. The limit acts on means over
    tens of milliseconds, many layers: a pipeline's bubble, or what is sent once per step, cools
    nothing here. All times are those of the full clock, also what of messages is exposed, of which
    a lower one hides more. A chip with a higher peak
    keeps its demand, as if a FLOP took less energy there; a higher limit of power is a lower
    demand.

    Args:
      products, core, streaming, whole: of one layer at the full clock, and all that it takes [s].
        demand: u of products alone [1].

    On H200 products that have 70 % of the time take 2 % longer than they could, alone 17 %:

    >>> [f"{float(slowed(share, 0.0, 0.0, 1.0, 1.49)):.2f}" for share in (0.3, 0.7, 1.0)]
    ['1.00', '1.02', '1.17']
    """
    more = maximum_of_two(1.0, asked(products, core, streaming, demand) / whole, ABRUPT * sharpness)
    return jnp.exp(jnp.log(more) * (1.0 / FALL))


def wandering(slow: Array) -> Array:
    """Standard deviation of the speed of one of several devices alike around their mean [1]:
    `WANDERING (1 − 1 / slow)`.

    Limits: 0 at the full clock, which is the same for all.

    Args:
      slow: time of products over that at the full clock [1], as `slowed` gives it.
    """
    return WANDERING * (1.0 - 1.0 / slow)


class Activities(NamedTuple):
    """What a device is busy with, as shares of its time [1], and bytes per second that it sends to
    other devices [byte/s].

    window: what the power limit is a mean over, layers and head with the messages and launches that
    they wait for. working: its part in which kernels run; products, core (of attention), streaming
    and exposed, waiting for messages, are parts of that, the rest is compute slowed by messages.
    updating: the optimizer. idling: waiting for peers outside of the layers, in a pipeline's
    bubble, for the slowest device, for what is sent once per step or stage. The rest of the time
    nothing runs.
    """

    window: Array
    working: Array
    products: Array
    core: Array
    streaming: Array
    exposed: Array
    updating: Array
    idling: Array
    link_bytes_per_s: Array = 0.0


class Draw(struct.PyTreeNode, kw_only=True):
    """Mean power of one accelerator by cause [W]: at rest; as kernels run; waiting in collectives
    and for peers; arithmetic; kernels that stream; links."""

    idle: Array
    running: Array
    waiting: Array
    arithmetic: Array
    memory: Array
    links: Array

    @property
    def total(self) -> Array:
        """Sum of all [W]."""
        return self.idle + self.running + self.waiting + self.arithmetic + self.memory + self.links


def draw(chip: Chip, busy: Activities, demand: Array, waiting_share: Array = WAITING_SHARE) -> Draw:
    """What one accelerator draws, by cause [W].

    `idle + R (x min_p(1, window/x) + update · updating + w · idling)` with R the range from idle to
    the limit,
    `x = r · working + (1 − r) asked + (w − r) exposed + links`, r `RUNNING_SHARE`, w the share that
    waiting draws, and update that of a kernel that streams, `min_p(1, r + (1 − r) asked)`. x is
    what would be drawn at the full clock; where it is more than the limit the clock falls
    (`slowed`), so that all parts of it shrink alike.

    Limits: idle when nothing runs; the limit as long as x is more than the window, so a step that
    waits for messages draws as much until its work leaves room; `idle + w R` in a collective.
    Products too small to fill a device count as long as they take, and draw less:
    GPT-2 on 4 sequences is 15 to 20 % too high (`experiment one_device`). Without a demand products
    draw nothing.

    Args:
      demand: coefficient `power_demand` [1]. waiting_share: of a device that waits in a collective
        [1].
    """
    dynamic, sharpness = chip.peak_watts - chip.idle_watts, ABRUPT * SHARPNESS
    above = 1.0 - RUNNING_SHARE
    running = RUNNING_SHARE * busy.working
    arithmetic, memory = (
        above * asked(busy.products, busy.core, 0.0, demand),
        above * asked(0.0, 0.0, busy.streaming, demand),
    )
    waiting = (waiting_share - RUNNING_SHARE) * busy.exposed
    links = LINK_JOULES_PER_BYTE * busy.link_bytes_per_s / dynamic
    whole = running + arithmetic + memory + waiting + links
    given = dynamic * minimum_of_two(1.0, busy.window / jnp.maximum(whole, LEAST), sharpness)
    update = minimum_of_two(1.0, RUNNING_SHARE + above * asked(0.0, 0.0, 1.0, demand), sharpness)
    return Draw(
        idle=chip.idle_watts,
        running=given * running,
        waiting=given * waiting + waiting_share * dynamic * busy.idling,
        arithmetic=given * arithmetic,
        memory=given * memory + update * dynamic * busy.updating,
        links=given * links,
    )


def watts(chip: Chip, busy: Activities, demand: Array) -> Array:
    """Mean power of one accelerator [W]: the sum of `draw`.

    An H100 that does nothing, waits in a collective, streams, computes for half of the time, and
    all the time:

    >>> from dmodel import catalog
    >>> h100, nothing = catalog.chip("H100-80GB"), Activities(*[0.0] * 8)
    >>> runs = nothing._replace(window=1.0, working=1.0)
    >>> kinds = ("exposed", 1.0), ("streaming", 1.0), ("products", 0.5), ("products", 1.0)
    >>> cases = nothing, *(runs._replace(**{name: share}) for name, share in kinds)
    >>> [float(watts(h100, x, 1.5).round()) for x in cases]
    [70.0, 403.0, 474.0, 567.0, 698.0]
    """
    return draw(chip, busy, demand).total


def host_watts(chip: Chip, host_share: Array = HOST_SHARE) -> Array:
    """Power of one device's part of the host [W]: `share · peak`, the same at any load."""
    return host_share * chip.peak_watts
