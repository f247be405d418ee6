"""What a whole training run takes: days, device-hours, money, energy; whether it is done in time.

The step time is log-normal about what is predicted, with the width of its interval. Failures and
checkpoints take their share of the time (`dmodel.goodput`), as often as those of Llama 3's run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date
from statistics import NormalDist
from typing import Any, NamedTuple

from dmodel.errors import InputError
from dmodel.goodput import DAY_S, Reliability, daly_interval, goodput
from dmodel.recorded import Recorded
from dmodel.units import HOUR

Document = dict[str, Any]

SIDE = NormalDist().inv_cdf(0.95)
"""Standard deviations from the middle to an end of a 90 % interval [1]."""


class Wanted(NamedTuple):
    """What is said of a run.

    Attributes:
      tokens: to train on [token]. said: where their number comes from, in words.
      start, until: dates of its begin and of its deadline; None = no deadline.
    """

    tokens: float
    said: str
    start: date
    until: date | None = None


def _failing(devices: Any, reliability: Reliability) -> Document:
    """Share of the time that trains, and the interval between checkpoints [s]."""
    mtbf = 1.0 / (devices * reliability.failures_per_device_s)
    return {
        "share": goodput(devices, reliability),
        "interval_s": daly_interval(mtbf, reliability.checkpoint_s),
    }


FAILING = Recorded(_failing)


def of_run(wanted: Wanted, answer: Mapping[str, Any], asked: Any) -> Document:
    """Days, device-hours, dollars and energy of a run, each with the ends of its 90 % interval.

    Args:
      answer: of one plan (`dmodel.prediction.answer`, or a plan of a search): `step_time_s` with
        its ends where they are known, `joules_per_token`.
      asked: the job, with its devices and the price of one (`dmodel.asked.Asked`).

    `training_days` is without failures; `days` is with them. Limits: devices that wait for a
    restart are paid for, and taken to draw what they draw in training.
    """
    reliability = Reliability()
    records = (float(asked.devices), reliability)
    failing = {name: float(x) for name, x in FAILING(*records).items()}
    step_tokens = asked.global_batch * float(asked.model.seq_len)
    steps = wanted.tokens / step_tokens
    ends = {end: answer.get(f"step_time_s{end}") for end in ("", "_low", "_high")}
    found: Document = {
        "tokens": wanted.tokens,
        "tokens_said": wanted.said,
        "steps": steps,
        "training_days": steps * ends[""] / DAY_S,
        "goodput": failing["share"],
        "start": wanted.start.isoformat(),
    }
    price = float(asked.cluster.chip.price_per_s)
    for end, step_time in ends.items():
        if step_time is not None:
            found |= _amounts(end, steps * step_time / failing["share"], asked.devices, price)
    energy = answer["joules_per_token"] * wanted.tokens / failing["share"]
    found["megawatt_hours"] = energy / (1e6 * HOUR)
    if wanted.until is not None:
        found["deadline"] = _deadline(wanted, found, failing, records)
    return found


def _amounts(end: str, seconds: float, devices: float, price: float) -> Document:
    """Duration, and what follows from it."""
    return {
        f"days{end}": seconds / DAY_S,
        f"device_hours{end}": seconds * devices / HOUR,
        f"dollars{end}": seconds * devices * price,
    }


def _deadline(
    wanted: Wanted, found: Document, failing: Mapping[str, float], records: tuple[float, Any]
) -> Document:
    """The probability that the run is done by its date."""
    assert wanted.until is not None
    available = float((wanted.until - wanted.start).days)
    spread = math.hypot(_spread(found), _of_failures(found["days"] * DAY_S, failing, *records))
    late = math.log(available / found["days"])
    chance = NormalDist().cdf(late / spread) if spread > 0.0 else float(late >= 0.0)
    return {"until": wanted.until.isoformat(), "days": available, "probability": chance}


def _spread(found: Document) -> float:
    """Standard deviation of the logarithm of the duration, from the step's interval; 0 where none
    is known."""
    if "days_low" not in found:
        return 0.0
    return math.log(found["days_high"] / found["days_low"]) / (2.0 * SIDE)


def _of_failures(
    seconds: float, failing: Mapping[str, float], devices: float, reliability: Reliability
) -> float:
    """Standard deviation of the duration by the number of failures, which is Poisson, over the
    duration [1]. Each costs a restart, and half an interval between checkpoints on the mean."""
    count = seconds * devices * float(reliability.failures_per_device_s)
    # the square of what one costs, the lost part of an interval being uniform
    restart, lost = float(reliability.restart_s), failing["interval_s"]
    square = restart**2 + restart * lost + lost**2 / 3.0
    return math.sqrt(count * square) / seconds


def wanted(tokens: float, said: str, start: str | None = None, until: str | None = None) -> Wanted:
    """What is said of a run, checked.

    Args:
      start, until: dates as YYYY-MM-DD; None = today, and no deadline.
    Raises:
      InputError: no date, or a deadline that is not after the start.
    """
    begins = date.today() if start is None else _date("--start", start)
    ends = None if until is None else _date("--until", until)
    if ends is not None and ends <= begins:
        raise InputError(
            f"--until {ends}: expected a date after the start, {begins} (--start, today by default)"
        )
    return Wanted(tokens, said, begins, ends)


def _date(option: str, text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InputError(f"{option}: expected a date as YYYY-MM-DD, got {text!r}") from None
