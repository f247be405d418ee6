"""How fast the model is, each number beside its target.

Rates, the gradient's price, compilation, the fit, the shell and its start. Rates are warm and in
float64, over random plans for 512 devices; each is the best of several rounds in which all variants
take turns, so that a busy machine slows them alike, and a ratio is the middle one of the rounds'
ratios. All that is cold runs in a process of its own.

    python -m experiments.bench [--json] [--quick] [--commands] [--only TEXT] [--out DIR]
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence

from experiments.bench_cold import (
    PARTS,
    beside_nothing,
    commands,
    compilation,
    design_search,
    multi_output_fusion,
    table_of_rows,
)
from experiments.bench_result import Result, answers, keep, show
from experiments.bench_start import starts
from experiments.bench_warm import fusion, small_sweep, theory_sweep, throughput
from experiments.study import parse, plain_arguments


def results(quick: bool, all_parts: bool, only: Sequence[str] = ()) -> Iterator[Result]:
    """All numbers, or what commands take of JAX's start, in the order in which they are ready.

    Args:
      only: what the names of commands contain; of these alone.
    """
    if not only:
        yield from starts(3 if quick else 5)
    yield from beside_nothing(1 if quick else 3, not quick, only)
    if all_parts and not only:
        yield from rates_and_searches(quick, os.cpu_count() or 1)


def rates_and_searches(quick: bool, cores: int) -> Iterator[Result]:
    """Numbers of single parts of the program."""
    yield from compilation()
    yield from throughput(1 << (16 if quick else 17), 3 if quick else 9, cores)
    if not quick:
        yield from (r for r in throughput(1_000_000, 3, cores) if r.target)
        yield from fusion(1 << 16, 5)
        yield from multi_output_fusion()
    yield from small_sweep(5 if quick else 15)
    yield from theory_sweep(3 if quick else 9, cores)
    if not quick:
        yield from design_search()
    yield from table_of_rows()
    yield from commands(quick)


def measured(results: Iterator[Result], aloud: bool) -> list[Result]:
    """All numbers; each is said as soon as it is there."""
    found = []
    for result in results:
        found.append(result)
        if aloud:
            print(show(result), flush=True)
    return found


def main() -> None:
    """Entry point of `python -m experiments.bench`."""
    parser = plain_arguments(__doc__ or "")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    parser.add_argument(
        "--commands", action="store_true", help="only commands, over the start of JAX"
    )
    parser.add_argument(
        "--only", action="append", default=[], help="of commands those with this in their name"
    )
    options = parse(parser)
    if options.part:
        print(json.dumps(PARTS[options.part]()))
        return
    every = results(options.quick, not options.commands, options.only)
    found = measured(every, not options.json)
    keep(found, options.out)
    if options.json:
        lines = [r._asdict() | {"verdict": r.verdict} for r in found]
        print(json.dumps(lines, indent=2, ensure_ascii=False))
    else:
        print(answers(found))


if __name__ == "__main__":
    main()
