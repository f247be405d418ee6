"""The formats that can be imported, and how a file's contents tell which one it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from calibration.importers import (
    collective_json,
    dllogger,
    figures,
    frameworks,
    golden,
    kineto,
    lightning,
    maxtext,
    megatron,
    memory,
    mlperf,
    nccl,
    nemo,
    torchtitan,
    trainer,
    xplane,
)
from calibration.importers.found import Result, Trouble
from calibration.importers.source import Source
from dmodel.errors import InputError


class Format(NamedTuple):
    """One format. about: what it is, for people. sign: by which a text is told, None for bytes.
    parse: reads a file."""

    about: str
    sign: re.Pattern[str] | None
    parse: Callable[[Source], Result]


FORMATS: dict[str, Format] = {
    kineto.NAME: Format("Chrome trace of the PyTorch profiler, JSON", kineto.SIGN, kineto.parse),
    mlperf.NAME: Format("MLPerf training log, :::MLLOG lines", mlperf.SIGN, mlperf.parse),
    maxtext.NAME: Format("MaxText training log", maxtext.SIGN, maxtext.parse),
    torchtitan.NAME: Format("torchtitan training log", torchtitan.SIGN, torchtitan.parse),
    nemo.NAME: Format("NeMo training log", nemo.SIGN, nemo.parse),
    megatron.NAME: Format("Megatron-LM training log", megatron.SIGN, megatron.parse),
    golden.NAME: Format("golden values of Megatron-LM, JSON", golden.SIGN, golden.parse),
    **{f.name: Format(f.about, f.sign, figures.parser(f)) for f in frameworks.FRAMEWORKS},
    lightning.NAME: Format("log of Lightning, its progress bar", lightning.SIGN, lightning.parse),
    trainer.NAME: Format(
        "log of the Hugging Face Trainer, Axolotl or LLaMA-Factory", trainer.SIGN, trainer.parse
    ),
    memory.NAME: Format(
        "memory snapshot of PyTorch as JSON, or memory analysis of XLA", memory.SIGN, memory.parse
    ),
    dllogger.NAME: Format("log of DLLogger, DLLL lines of steps", dllogger.SIGN, dllogger.parse),
    collective_json.NAME: Format(
        "JSON document of nccl-tests or nccom-test", collective_json.SIGN, collective_json.parse
    ),
    nccl.NAME: Format(
        "log of nccl-tests, rccl-tests, mscclpp-test or nccom-test", nccl.SIGN, nccl.parse
    ),
    xplane.NAME: Format("profile of JAX or XLA, .xplane.pb", None, xplane.parse),
}
"""By name, in the order in which they are tried."""


def detect(source: Source) -> str:
    """Name of the format of a file, by its contents.

    Raises:
      InputError: none fits.
    """
    if xplane.looks_like(source.data):
        return xplane.NAME
    found = _by_text(source) if source.is_text else None
    if found:
        return found
    if memory.is_pickle(source.data):
        raise InputError(f"{source.name}: {memory.CONVERT}")
    known = "; ".join(f"{name}: {f.about}" for name, f in FORMATS.items())
    raise InputError(
        f"{source.name}:1: of no known format, it begins with {source.data[:40]!r}. Known are "
        f"{known}. --format names one."
    )


def _by_text(source: Source) -> str | None:
    # such files may be large; no lines are made of them
    if kineto.SIGN.match(source.text[:32768]):
        return kineto.NAME
    for name, format in FORMATS.items():
        if name != kineto.NAME and format.sign and format.sign.search(source.plain):
            return name
    return None


def parse(source: Source, name: str | None = None) -> tuple[str, Result]:
    """Read a file: (name of its format, what was found).

    Args:
      name: of the format; None = by its contents.
    Raises:
      InputError: an unknown format, or not one row in the file; the message says where it broke
        first.
    """
    if name is not None and name not in FORMATS:
        raise InputError(f"--format {name}: unknown; expected one of {', '.join(FORMATS)}")
    if not source.data.strip():
        broken = f" ({source.damage[1]})" if source.damage else ""
        raise InputError(f"{source.name}:1: the file is empty{broken}; expected a log or a profile")
    name = name or detect(source)
    result = FORMATS[name].parse(source)
    if source.damage:
        result.trouble(*source.damage)
    if not result.rows:
        raise InputError(
            f"{_first_trouble(source, name, result)}. Nothing of it could be used as "
            f"{FORMATS[name].about} (--format {name})"
        )
    return name, result


def _first_trouble(source: Source, name: str, result: Result) -> Trouble | str:
    of_all = (trouble for trouble in result.troubles if trouble.place == "whole file")
    if result.troubles:
        return next(of_all, result.troubles[0])
    return f"{source.name}:1: it has no measured {_what(name)}"


def _what(name: str) -> str:
    return "message sizes" if name in (nccl.NAME, collective_json.NAME) else "steps"
