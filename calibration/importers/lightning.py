"""Training logs of Lightning: the progress bar of each epoch."""

from __future__ import annotations

import re
import statistics

from calibration.importers.bars import bars, pace, state
from calibration.importers.found import Result, number
from calibration.importers.source import Source
from calibration.importers.steps import LONGEST, SHORTEST

NAME, STACK = "lightning", "lightning"
SIGN = re.compile(r"Epoch \d+:\s+\d+%\|[^|]*\|\s*\d+/\d+ \[[^\]]*?[\d.](?:it/s|s/it)")

_EPOCH = re.compile(r"Epoch (\d+):\s")
_DISTRIBUTED = re.compile(r"with (\d+) processes")
_FIGURES = ("All distributed processes registered",)


def parse(source: Source) -> Result:
    """One row for each run: the median pace of its epochs."""
    result, states, epochs, devices = Result(source.name), [], [], None
    for line, text in source.lines:
        if (found := _EPOCH.search(text)) and (shown := state(line, text)):
            states.append(shown)
            epochs.append(int(found[1][:9]))
        elif "distributed processes" in text and (found := _DISTRIBUTED.search(text)):
            devices = found[1]
    begin = 0
    for i in range(1, len(states) + 1):
        # epochs count up; one that comes again later is another run
        if i == len(states) or epochs[i] < epochs[i - 1]:
            _row(result, states[begin:i], devices)
            begin = i
    return result


def _row(result: Result, states: list, devices: str | None) -> None:
    found = [p for bar in bars(states) if (p := pace(bar)) is not None]
    kept = [p for p in found[1:] or found if SHORTEST <= p.seconds <= LONGEST]
    if not kept:
        return
    notes = [
        f"median pace of {len(kept)} epochs, {kept[-1].says}",
        "an iteration is a batch: where gradients are accumulated, a step is several; give "
        "--set global_batch of one iteration",
    ]
    result.bad_line(
        kept[0].line,
        "times are those of a progress bar, an iteration each, and a step is "
        "accumulate_grad_batches of them",
    )
    result.add(
        kept[0].line,
        {
            "stack": STACK,
            "step_time_s": statistics.median(p.seconds for p in kept),
            "n_accel": number(devices) if devices else None,
            "note": "; ".join(notes),
        },
    )
