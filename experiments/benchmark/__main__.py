"""A public benchmark of tools that predict step times and memory of distributed training.

`questions` writes the jobs of a protocol and its training rows, `score` judges a file of answers,
`run` asks this package and the other tools, `page` writes the page of results, `freeze` makes the
splits anew.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from dmodel.errors import InputError
from dmodel.report import style
from dmodel.types import enable_float64
from experiments.bases import Bases
from experiments.benchmark import answers, ours, questions, report, results, tools
from experiments.benchmark.protocols import PROTOCOLS, freeze, protocol
from experiments.benchmark.results import OURS
from experiments.benchmark.scoring import Score, by_task, score
from experiments.study import print_lines, print_paths, say, tell
from experiments.study import run as end_well

OUT = Path("out") / "benchmark"
PAGE = Path(__file__).parents[2] / "docs" / "benchmark.md"

QUICK = ("memory", "fits")
"""Protocols of a quick run, which needs no fit of step times."""

EPILOG = "Protocols: " + "; ".join(f"{name}: {p.about}" for name, p in PROTOCOLS.items()) + "."


def ask(options: argparse.Namespace) -> None:
    """Write questions and training rows."""
    name = options.protocol
    protocol(name)
    written = {
        "questions": questions.write(questions.asked(name), options.out / f"{name}-questions.csv"),
        "training": questions.write(questions.training(name), options.out / f"{name}-training.csv"),
    }
    document = {"protocol": name, "answer": protocol(name).answer}
    paths = {what: str(path) for what, path in written.items()}
    tell(document | paths, options.json, lambda: print_paths(paths))


def judge(options: argparse.Namespace) -> None:
    """Score a file of answers."""
    name = options.protocol
    found = answers.read(options.file, name)
    whole = {"task": "all", **_said(score(name, found))}
    lines = [whole, *({"task": t, **_said(s)} for t, s in by_task(name, found).items())]
    document = {"protocol": name, "file": str(options.file), "score": whole, "tasks": lines[1:]}
    tell(document, options.json, lambda: print_lines(lines, ".3g"))


def _said(scored: Score) -> dict[str, Any]:
    """What a score says."""
    return {key: value for key, value in scored._asdict().items() if value is not None}


def compare(options: argparse.Namespace) -> None:
    """Ask this package and the other tools; write scores, page and figure."""
    names = list(QUICK if options.quick else options.protocols or PROTOCOLS)
    for name in names:
        protocol(name)
    known, failed = _others(options)
    bases = Bases(options.out.parent / "bases", starts=2)
    own: dict[str, answers.Answers] = {}
    for name in names:
        own[name] = _own(name, bases, options)
    found = results.assemble(names, own, known, failed)
    paths = {
        "results": str(results.write(found, options.out / "results.json")),
        "page": str(_page(found, options.out / "benchmark.md")),
    }
    tell({**found, **paths}, options.json, lambda: _show(found, paths))


def _others(options: argparse.Namespace) -> tuple[dict[str, tools.Known], dict[str, str]]:
    """What the tools say that can be run, and why others cannot."""
    wanted = ["rule"] if options.quick else options.tools or list(tools.TOOLS)
    checkouts = _checkouts(options.checkout)
    if unknown := [name for name in (*wanted, *checkouts) if name not in tools.TOOLS]:
        raise InputError(f"no tool is called {unknown[0]!r}; choose from {', '.join(tools.TOOLS)}")
    known: dict[str, tools.Known] = {}
    failed: dict[str, str] = {}
    for name in wanted:
        say(f"asking {tools.TOOLS[name].title}")
        try:
            known[name] = tools.ask(
                name, options.python, checkouts.get(name), options.out / "answers", options.reuse
            )
        except tools.Failed as e:
            failed[name] = str(e)
            say(f"{name} was not run: {e}")
    return known, failed


def _checkouts(given: list[str]) -> dict[str, Path]:
    found = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not equals or not Path(folder).is_dir():
            raise InputError(f"--checkout: expected TOOL=FOLDER with a folder, got {text!r}")
        found[name] = Path(folder)
    return found


def _own(name: str, bases: Bases, options: argparse.Namespace) -> answers.Answers:
    """Our answers, those of an earlier run where that is asked."""
    path = options.out / "answers" / f"{OURS}-{name}.csv"
    if options.reuse and path.is_file():
        return answers.read(path, name)
    found = ours.answers(name, ours.fitted(bases))
    answers.write(path, found, name)
    return found


def _show(found: dict[str, Any], paths: dict[str, str]) -> None:
    lines = [{k: v for k, v in line.items() if k != "ours"} for line in found["scores"]]
    print_lines(lines, ".3g")
    print_paths(paths)


def _page(found: dict[str, Any], path: Path) -> Path:
    """Write page and figure beside each other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report.markdown(found), encoding="utf-8")
    style.save_png(report.draw(found), path.with_suffix(".png"))
    return path


def publish(options: argparse.Namespace) -> None:
    """Write the page of results, by default of the committed ones."""
    _page(results.read(options.results), options.out)
    tell({"page": str(options.out)}, options.json, lambda: print(options.out))


def remake(options: argparse.Namespace) -> None:
    """Make the splits anew."""
    freeze()
    tell({"splits": results.splits_hash()}, options.json, lambda: print(results.splits_hash()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmark",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_subparsers(dest="command", required=True)

    def command(name: str, does: Any, about: str) -> argparse.ArgumentParser:
        made = kinds.add_parser(name, help=about, description=about, epilog=EPILOG)
        made.set_defaults(does=does)
        made.add_argument("--json", action="store_true", help="one JSON document on stdout")
        return made

    made = command("questions", ask, "write the jobs of a protocol and its training rows")
    _which(made)
    made.add_argument("--out", type=Path, default=OUT, help="folder of the files")
    made = command("score", judge, "score answers: id and seconds, bytes or probability")
    _which(made)
    made.add_argument("file", type=Path, metavar="FILE.csv")
    _run_options(command("run", compare, "ask this package and the other tools, and score them"))
    made = command("page", publish, "write the page and the figure of results")
    made.add_argument("--results", type=Path, default=results.RESULTS, help="which")
    made.add_argument("--out", type=Path, default=PAGE, help="the page; the figure lies beside it")
    command("freeze", remake, "make the splits anew: a new version of the benchmark")
    return parser


def _which(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--protocol", required=True, metavar="P", help="one of " + ", ".join(PROTOCOLS)
    )


def _run_options(made: argparse.ArgumentParser) -> None:
    made.add_argument("--protocols", nargs="*", metavar="P", help="which; all where none is given")
    made.add_argument("--tools", nargs="*", metavar="TOOL", help="which; all where none is given")
    made.add_argument("--python", default=sys.executable, help="an interpreter that has the tools")
    made.add_argument(
        "--checkout",
        action="append",
        default=[],
        metavar="TOOL=FOLDER",
        help="checkout of a tool that is run from one; may be repeated",
    )
    made.add_argument("--reuse", action="store_true", help="take answers that an earlier run left")
    made.add_argument(
        "--quick", action="store_true", help="memory alone, without the tools of others"
    )
    made.add_argument("--out", type=Path, default=OUT, help="folder of answers, scores and page")


def main() -> None:
    """Do what is asked."""
    options = _parser().parse_args()
    enable_float64()
    options.does(options)


if __name__ == "__main__":
    end_well(main)
