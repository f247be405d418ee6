"""JSON documents of collective benchmarks: of nccl-tests (`-J FILE`) and of nccom-test
(`--report-to-json-file FILE`); rows as `calibration.importers.nccl` makes them of logs.

Names of fields: NVIDIA/nccl-tests `src/util.cu`, version 3 of its document; AWS Neuron's guide of
nccom-test, release 2.24. The environment that nccl-tests writes down is not read.
"""

from __future__ import annotations

import json
import re
from typing import Any

from calibration.importers.found import COLLECTIVES, Result, number
from calibration.importers.layout import Values, decimal
from calibration.importers.nccl import Test, fault, finish, named
from calibration.importers.source import Source

NAME = "nccl-json"

SIGN = re.compile(
    r'^\s*\{\s*"(?:version"\s*:\s*\d{1,6}\s*,\s*"start_time"|results"\s*:\s*\[\s*\{\s*"size)'
    r'|^\s*\{[\s\S]{0,4000}?"size\(B\)"\s*:'
)

PLACES = ("out_of_place", "in_place")
"""Groups of measurements of nccl-tests, the first that was measured counts."""

_TIME = re.compile(r"time(?::\w{1,10})?\((us|ms)\)")


def parse(source: Source) -> Result:
    """One row for each message size."""
    result = Result(source.name, COLLECTIVES)
    try:
        document = json.loads(source.text)
    except (ValueError, RecursionError) as error:
        result.bad_line(1, f"no whole JSON document ({str(error)[:60]}); nothing of it is read")
        return result
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(results, list):
        result.bad_line(1, "expected a JSON object with a list `results`")
        return result
    test = _test(document)
    for i, entry in enumerate(results):
        _measured(result, test, i, entry)
    finish(result, test)
    return result


def _test(document: dict[str, Any]) -> Test:
    """What the document says of the test: program, library, ranks."""
    test, arguments = Test(), document.get("args")
    if isinstance(arguments, list) and arguments:
        test.collective = named(str(arguments[0])[:200])
    version = number(document.get("nccl_version"))
    if version and version >= 1e4:
        major, rest = divmod(int(version), 10000)
        test.version = f"NCCL {major}.{rest // 100}.{rest % 100}"
    config = document.get("config")
    devices = config.get("devices") if isinstance(config, dict) else None
    for device in devices if isinstance(devices, list) else []:
        _take_device(test, device)
    if "nccl_version" not in document:
        test.program = "nccom-test"
    return test


def _take_device(test: Test, device: Any) -> None:
    """One rank: its number, host and device."""
    rank = number(device.get("rank")) if isinstance(device, dict) else None
    if rank is not None and 0.0 <= rank < 1e9:
        test.ranks[int(rank)] = str(device.get("hostname"))[:100]
        test.devices.add(str(device.get("device_info")).strip()[:100])


def _measured(result: Result, test: Test, index: int, entry: Any) -> None:
    """Take one message size."""
    values = _values(entry) if isinstance(entry, dict) else None
    where = f"results[{index}]"
    if values is None:
        result.bad_line(1, f"{where}: no size, time of the device and bandwidths; left out")
    elif why := fault(values):
        result.bad_line(1, f"{where}: {why}; left out")
    else:
        test.rows.append((1, values))


def _values(entry: dict[str, Any]) -> Values | None:
    """Figures of one message size; None where one is missing."""
    groups = [entry[name] for name in PLACES if isinstance(entry.get(name), dict)]
    size = number(entry.get("size", entry.get("size(B)")))
    group = groups[0] if groups else entry
    time = _time(group)
    algorithm = number(group.get("alg_bw", group.get("algbw(GB/s)")))
    bus = number(group.get("bus_bw", group.get("busbw(GB/s)")))
    if size is None or time is None or algorithm is None or bus is None:
        return None
    if min(size, time, algorithm, bus) < 0.0:
        return None
    if "size(B)" in entry:
        algorithm, bus = decimal(size, time, algorithm, bus)
    wrong = group.get("nwrong")
    operation = str(entry.get("redop", ""))[:20]
    return Values(size, operation, time, algorithm, bus, "N/A" if wrong is None else str(wrong))


def _time(group: dict[str, Any]) -> float | None:
    """Time on the device [us]; of nccom-test the first statistic, whose unit its name says."""
    if "time" in group:
        return number(group["time"])
    found = ((_TIME.fullmatch(name), value) for name, value in group.items())
    match, value = next(((m, v) for m, v in found if m), (None, None))
    time = number(value)
    return None if match is None or time is None else time * (1e3 if match[1] == "ms" else 1.0)
