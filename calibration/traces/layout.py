"""Degrees of a row as they are used: written ones, those that follow from the others, and assumed
ones, which are named."""

from __future__ import annotations

from typing import NamedTuple

from calibration.traces.recipes import job
from calibration.traces.submissions import submitted
from calibration.traces.table import Row


class Layout(NamedTuple):
    """Degrees [count] and micro-batch [sequence] of one row, and the assumptions that fill its
    blanks."""

    dp: float
    tp: float
    pp: float
    cp: float
    ep: float
    micro_batch: float
    assumed: tuple[str, ...]


def layout(row: Row) -> Layout:
    """Fill the blank degrees so that dp·tp·pp·cp = n_accel.

    Degrees of MLPerf's fine-tuning are those of its logs and configurations
    (`submissions.submitted`). Blank cp, pp, tp, ep and micro-batch count as 1 (the micro-batch as
    in the job's script, `recipes.job`); a blank dp is what is left of the devices. Where dp is
    written and only one of tp and pp is blank, that one is what is left. Assuming a layout from
    nothing is refused: with dp, tp and pp all blank only ZeRO-3 (all devices shard) or a single
    device says enough.

    Raises:
      ValueError: the degrees do not multiply to the devices, or the layout is unknown; the message
        is the reason.
    """
    devices = row.number("n_accel") or 0.0
    given = {name: row.number(name) for name in ("dp", "tp", "pp", "cp", "ep", "micro_batch")}
    assumed = []
    if known_run := submitted(row):
        given.update(dp=known_run.dp, tp=known_run.tp, cp=known_run.cp)
        assumed.append(known_run.said)
    if (
        given["dp"] is None
        and given["tp"] is None
        and given["pp"] is None
        and devices > 1.0
        and row.number("zero_stage") != 3.0
    ):
        raise ValueError(
            "layout unknown: dp, tp and pp are all blank, and zero_stage does not say that all "
            "devices shard (3)"
        )
    blank = [name for name in ("tp", "pp") if given[name] is None]
    derived = blank[0] if given["dp"] and len(blank) == 1 else "dp" if given["dp"] is None else ""
    if given["micro_batch"] is None and (
        known_job := job(row.stack, row.number("n_layers") or 0.0)
    ):
        given["micro_batch"] = known_job.micro_batch
        assumed.append(f"micro_batch blank: {known_job.micro_batch:g}, as in the script of the job")
    for name in ("tp", "pp", "cp", "ep", "micro_batch"):
        if given[name] is None and name != derived:
            given[name] = 1.0
            assumed.append(f"{name} blank: 1")
    known = [given[name] or 1.0 for name in ("dp", "tp", "pp", "cp")]
    product = known[0] * known[1] * known[2] * known[3]
    if derived and devices % product == 0.0:
        given[derived] = devices / product
        assumed.append(
            f"{derived} blank: {given[derived]:g}, from the devices and the other degrees"
        )
    elif product != devices:
        raise ValueError(_mismatch(given, product, devices))
    dp, tp, pp, cp, ep, micro_batch = (
        given[name] or 1.0 for name in ("dp", "tp", "pp", "cp", "ep", "micro_batch")
    )
    return Layout(dp, tp, pp, cp, ep, micro_batch, tuple(assumed))


def _mismatch(given: dict[str, float | None], product: float, devices: float) -> str:
    names = [name for name in ("dp", "tp", "pp", "cp") if given[name] is not None]
    degrees = "·".join(f"{given[name]:g}" for name in names)
    return (
        f"degrees do not multiply to the devices: {'·'.join(names)} = {degrees} = {product:g}, "
        f"n_accel = {devices:g}"
    )
