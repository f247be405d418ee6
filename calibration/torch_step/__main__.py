"""`python -m calibration.torch_step --out FILE`: measure the cases on this machine's first device,
one line of JSON for each."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from calibration.torch_step.cases import Case, cases


def stop(text: str) -> NoReturn:
    """End with a user's mistake."""
    print(f"error: {text}", file=sys.stderr)
    raise SystemExit(2)


def main() -> None:
    """Measure until the time is up; a case that fails is said, and the next one begins."""
    a = _arguments()
    known = {case.name: case for case in cases()}
    if wrong := [name for name in a.only or [] if name not in known]:
        stop(f"--only {' '.join(wrong)}: expected names of {', '.join(known)}")
    measure = _measure(a)
    try:
        out = a.out.open("a", encoding="utf-8")
    except OSError as error:
        stop(f"--out {a.out}: cannot be written ({error.strerror})")
    with out:
        for record in _records(measure, known, a):
            out.write(json.dumps({"environment": measure.environment()} | record) + "\n")
            out.flush()


def _arguments() -> argparse.Namespace:
    """What is asked for on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m calibration.torch_step", description=main.__doc__
    )
    parser.add_argument("--out", type=Path, required=True, help="file that lines are added to")
    parser.add_argument("--minutes", type=float, default=10.0, help="no case begins later")
    parser.add_argument("--seconds", type=float, default=1.0, help="of timed steps of each case")
    parser.add_argument("--only", nargs="*", default=None, help="names of cases")
    parser.add_argument(
        "--sustained",
        type=float,
        default=0.0,
        help="seconds for which the first case runs once more, for its clock",
    )
    parser.add_argument(
        "--duty",
        type=float,
        default=0.0,
        help="instead, products beside idle time and copies: seconds of each share",
    )
    parser.add_argument(
        "--products",
        type=float,
        default=0.0,
        help="instead, single products, and for as many seconds how steady they are",
    )
    parser.add_argument(
        "--channels",
        action="store_true",
        help="instead, kernels beside one that holds processors and copies (needs CuPy)",
    )
    return parser.parse_args()


def _measure(a: argparse.Namespace) -> Any:
    """The module that measures, where all that it needs is there."""
    try:
        from calibration.torch_step import measure
    except ModuleNotFoundError as error:
        stop(
            f"{error.name} is not installed; these steps are measured in PyTorch: pip install torch"
        )
    if a.channels and importlib.util.find_spec("cupy") is None:
        stop(
            "cupy is not installed; it compiles the kernel that holds processors: pip install "
            "cupy-cuda13x, or that of your CUDA"
        )
    if not measure.torch.cuda.is_available():
        stop("PyTorch sees no NVIDIA GPU here; these steps are sized for one")
    return measure


def _records(
    measure: Any, known: dict[str, Case], a: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Measurements one after the other, as they are made; measure: the module, which needs
    PyTorch."""
    if a.duty or a.products or a.channels:
        yield from _instead(a)
        return
    began = time.monotonic()
    chosen = [known[name] for name in a.only] if a.only else list(known.values())
    tasks = [(case, a.seconds) for case in chosen]
    if a.sustained:
        tasks.insert(1, (chosen[0]._replace(name=chosen[0].name + "/sustained"), a.sustained))
    for case, seconds in tasks:
        if time.monotonic() - began > 60.0 * a.minutes:
            print(f"{case.name}: no time left", file=sys.stderr)
            continue
        record = _record(measure, case, seconds)
        print(
            f"{time.monotonic() - began:6.1f} s  {case.name}: "
            f"{record.get('step_s', record.get('failed'))}",
            file=sys.stderr,
        )
        yield record


def _instead(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measurements in place of the cases."""
    if a.duty:
        from calibration.torch_step import duty

        yield from duty.measured(a.duty)
    if a.products:
        from calibration.torch_step import products

        yield from products.measured(a.products)
    if a.channels:
        from calibration.torch_step import channels

        yield from channels.measured()


def _record(measure: Any, case: Case, seconds: float) -> dict[str, Any]:
    """The measurement, or why there is none."""
    torch = measure.torch
    try:
        return measure.measured(case, seconds)
    except (RuntimeError, torch.cuda.OutOfMemoryError, AttributeError) as error:
        return {"case": case._asdict(), "failed": str(error).splitlines()[0][:300]}
    finally:
        torch._dynamo.reset()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
