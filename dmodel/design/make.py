"""One plan from what a user says, checked at the boundary: what is wrong, by how much, and what to
do."""

from __future__ import annotations

import numpy as np

from dmodel.design.constraints import violated
from dmodel.records import SCHEDULES, Model, Plan
from dmodel.stages import layout
from dmodel.types import InputError, number

RECOMPUTE = {"none": (0.0, 0.0), "selective": (0.0, 1.0), "full": (1.0, 0.0)}
"""Shares of layers recomputed: in full, and their attention core alone."""


def _whole(name: str, value: float) -> float:
    if not (number(value) >= 1.0 and number(value).is_integer()):
        raise InputError(f"{name}: expected a whole number from 1 on; got {value!r}")
    return float(value)


def _recompute(recompute: str | float) -> tuple[float, float]:
    if isinstance(recompute, str):
        if recompute not in RECOMPUTE:
            raise InputError(
                f"recompute: expected {', '.join(RECOMPUTE)} or a share of the layers between "
                "0 "
                f"and 1; got {recompute!r}"
            )
        return RECOMPUTE[recompute]
    if not 0.0 <= number(recompute) <= 1.0:
        raise InputError(
            f"recompute: expected a share of the layers between 0 and 1; got {recompute!r}"
        )
    return float(recompute), 0.0


def _data_parallel(n_devices: float, others: float, shown: str, dp: float | None) -> float:
    """dp, given or as what the other degrees leave of the devices."""
    if dp is None:
        if n_devices % others:
            raise InputError(
                f"degrees: {shown} = {others:g} does not divide the {n_devices:g} devices, so no "
                "dp is left; "
                "choose degrees whose product divides the device count"
            )
        return n_devices // others
    if dp * others != n_devices:
        fits = (
            f"dp = {n_devices / others:g} would"
            if n_devices % others == 0
            else "no dp does with these"
        )
        raise InputError(
            f"degrees: dp · {shown} = {dp:g} · {others:g} = {dp * others:g}; expected the device "
            f"count, {n_devices:g}; {fits}. "
            "Leave dp out to have it follow from the others."
        )
    return dp


def _schedule(schedule: str | None, interleave: float) -> str:
    chosen = schedule if schedule is not None else "interleaved" if interleave > 1 else "1f1b"
    if chosen not in SCHEDULES:
        raise InputError(f"schedule: expected one of {', '.join(SCHEDULES)}; got {chosen!r}")
    if interleave > 1 and chosen != "interleaved":
        raise InputError(
            f"interleave: expected 1 for the schedule {chosen!r}; got {interleave:g}. Use the "
            "schedule 'interleaved'."
        )
    return chosen


def make_plan(
    model: Model,
    n_devices: int,
    *,
    global_batch: int,
    micro_batch: int = 1,
    tp: int = 1,
    pp: int = 1,
    cp: int = 1,
    ep: int = 1,
    etp: int = 1,
    dp: int | None = None,
    zero: int = 0,
    shard: int | None = None,
    reshard: bool = True,
    sp: bool | None = None,
    interleave: int = 1,
    schedule: str | None = None,
    recompute: str | float = "none",
    base: Plan | None = None,
) -> Plan:
    """A valid plan, or an InputError that says which rule is broken, by how much, and what to do.

    Memory is no rule here: a plan that does not fit is an answer with a negative headroom.

    Args:
      n_devices: product of the degrees. dp: what the others leave, if not given. ep · etp: a part
        of dp · tp · cp.
      zero: ZeRO stage 0–3. shard: ranks of a sharding group (HSDP), all of dp if not given.
      reshard: gather again for the backward pass. sp: sequence parallelism; with tensor parallelism
      if not given. interleave: model chunks per stage.
      schedule: one of `records.SCHEDULES`; 1F1B, interleaved when `interleave > 1`, if not given.
      recompute: "none", "selective", "full" or a share of the layers.
      base: all other settings (precision, flash, overlap, placement).

    Raises:
      InputError: with one line for each broken rule.
    """
    given = {
        "devices": n_devices,
        "global batch": global_batch,
        "micro-batch": micro_batch,
        "tp": tp,
        "pp": pp,
        "cp": cp,
    }
    given |= {"ep": ep, "etp": etp}
    given |= (
        {"interleave": interleave}
        | ({"dp": dp} if dp is not None else {})
        | ({"shard": shard} if shard is not None else {})
    )
    n = {name: _whole(name, value) for name, value in given.items()}
    if zero not in (0, 1, 2, 3):
        raise InputError(f"zero: expected a ZeRO stage, 0, 1, 2 or 3; got {zero!r}")
    dp_ranks = _data_parallel(
        n["devices"], n["tp"] * n["cp"] * n["pp"], "tp · cp · pp", n.get("dp")
    )
    layers, attention = _recompute(recompute)
    base = base.alike() if base is not None else Plan.of(dp=1.0, global_batch=1.0)
    numbers = {
        "dp": dp_ranks,
        **{name: n[name] for name in ("tp", "cp", "pp", "ep", "etp", "interleave")},
        "sp": float(n["tp"] > 1 if sp is None else sp),
        "zero": float(zero),
        "shard": n.get("shard", dp_ranks if zero else 1.0),
        "reshard": float(reshard),
        "micro_batch": n["micro-batch"],
        "global_batch": n["global batch"],
        "recompute_layers": layers,
        "recompute_attention": attention,
    }
    numbers |= layout(float(model.n_layers), n["pp"], n["interleave"], float(model.n_mtp))
    plan = base.having(
        **{k: np.float64(v) for k, v in numbers.items()}, schedule=_schedule(schedule, interleave)
    )
    broken, batches = violated(model, plan), ("micro-batch", "global batch")
    if broken:
        sizes = (
            f"heads {model.n_heads:g}, KV heads {model.n_kv_heads:g}, layers {model.n_layers:g}, "
            f"sequence {model.seq_len:g}"
        )
        asked = f"dp {dp_ranks:g}, " + ", ".join(
            f"{name} {n[name]:g}" for name in ("tp", "cp", "pp", "interleave", *batches)
        )
        lines = [
            (
                f"  {rule.name}: expected that {rule.rule}; off by {-margin:g} {rule.unit}; "
                f"{rule.remedy}"
            )
            for rule, margin in broken
        ]
        raise InputError(
            f"plan breaks {len(broken)} rule(s) with {asked} on a model with {sizes}:\n"
            + "\n".join(lines)
        )
    return plan
