"""Energy, money and carbon of a step, a token and a run: what the devices draw, with their hosts,
their cooling and their grid."""

from __future__ import annotations

from dmodel import run, struct
from dmodel.breakdown import Breakdown
from dmodel.coefficients import Coefficients
from dmodel.cost.power import COOLING_FACTOR, HOST_SHARE, host_watts
from dmodel.records import Cluster, Model, Plan
from dmodel.types import Array

KWH = 3.6e6
"""[J]"""

GRID_KG = 0.373 / KWH
"""Carbon dioxide per joule of electricity: 823 lb/MWh, mean of the United States in 2022 (EPA
eGRID2022) [kg/J]."""

YEAR = 365.25 * 86400.0
"""[s]"""


class Site(struct.PyTreeNode, kw_only=True):
    """Where a run stands.

    Attributes:
      host_share: host power of a device over its peak [1]; 0 counts the accelerators alone.
      cooling_factor: facility over servers [1]. kg_per_joule: carbon of electricity [kg/J].
      dollars_per_joule: paid beside the rent, 0 where the rent has it [dollar/J]. kg_per_device,
      lifetime_s: carbon of making a device, spread over its life [kg], [s]; 0 leaves it out.
      NVIDIA's product carbon
        footprint of an HGX H100 baseboard (2025) is 1,312 kg for 8 of them.
    """

    host_share: Array = HOST_SHARE
    cooling_factor: Array = COOLING_FACTOR
    kg_per_joule: Array = GRID_KG
    dollars_per_joule: Array = 0.0
    kg_per_device: Array = 0.0
    lifetime_s: Array = 5.0 * YEAR


class Energy(struct.PyTreeNode, kw_only=True):
    """Power, energy, money and carbon of one plan.

    Attributes:
      device_watts, host_watts: of one device [W]. facility_watts: of all, with cooling [W].
        step_time_s: [s].
      joules_per_step, joules_per_token, tokens_per_joule: of the facility [J], [J/token],
        [token/J].
      dollars_per_step, dollars_per_token: rent, and electricity where it is paid beside it
        [dollar], [dollar/token].
      kg_per_step, kg_per_token: carbon dioxide [kg], [kg/token].
    """

    device_watts: Array
    host_watts: Array
    facility_watts: Array
    step_time_s: Array
    joules_per_step: Array
    joules_per_token: Array
    tokens_per_joule: Array
    dollars_per_step: Array
    dollars_per_token: Array
    kg_per_step: Array
    kg_per_token: Array


def energy(
    system: Cluster,
    model: Model,
    plan: Plan,
    breakdown: Breakdown,
    coefficients: Coefficients,
    site: Site | None = None,
) -> Energy:
    """What one step draws, costs and emits.

    `facility = devices (device + host) PUE`; joules are facility times step time, `$ = devices ·
    price · T + joules · tariff`,
    `kg = joules · grid + devices · T · kg_per_device / lifetime`.

    Args:
      breakdown: of the plan's step. site: host, cooling, tariff and grid; the defaults of `Site`
        where none is given.

    Llama 3 70B on 512 H100s:

    >>> from dmodel import catalog, coefficients
    >>> from dmodel.step import step_time
    >>> system, model = catalog.system("H100-DGX"), catalog.transformer("llama-3-70b", seq_len=8192)
    >>> plan = Plan.of(dp=16.0, tp=8.0, sp=1.0, pp=4.0, global_batch=1024.0)
    >>> c = coefficients.default()
    >>> found = energy(system, model, plan, step_time(system, model, plan, c), c)
    >>> f"{1e6 * found.kg_per_token:.1f} g of carbon dioxide per thousand tokens"
    '0.1 g of carbon dioxide per thousand tokens'
    """
    at = Site() if site is None else site
    time, tokens = breakdown.total, run.tokens_per_step(model, plan)
    device, host = (
        run.device_watts(system, breakdown, coefficients),
        host_watts(system.chip, at.host_share),
    )
    facility = plan.devices * (device + host) * at.cooling_factor
    joules, device_s = facility * time, plan.devices * time
    dollars = device_s * system.chip.price_per_s + joules * at.dollars_per_joule
    kg = joules * at.kg_per_joule + device_s * at.kg_per_device / at.lifetime_s
    return Energy(
        device_watts=device,
        host_watts=host,
        facility_watts=facility,
        step_time_s=time,
        joules_per_step=joules,
        joules_per_token=joules / tokens,
        tokens_per_joule=tokens / joules,
        dollars_per_step=dollars,
        dollars_per_token=dollars / tokens,
        kg_per_step=kg,
        kg_per_token=kg / tokens,
    )
