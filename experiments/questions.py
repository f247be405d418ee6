"""Questions that people asked in public and whose end is known: is one command right?

Claim: nine of ten are.

Each question of `experiments/reference/questions/*.toml` is one call of `dmodel`, as its asker
could type it, and what its thread or report ends with. It is right where all that is known is
answered:

* `verdict`, and `causes`: any of them among the three likeliest, or its kind among the three
  likeliest kinds (ordinary scatter aside);
* `fits`; `advice`: a change that makes it fit is named;
* `ratio`, step time of the second plan over the first: the same plan is faster (unless they are
  within 3 %), and it is within 15 %, or inside the interval;
* `step_s`, `hours` (device-hours; of the best plan where no layout is known, by `design`): within
  25 %.

Where the answer names a faster micro-batch in place of one that nobody said, times with it count
as well.

Two figures stand apart: peaks of memory (`peak_gib`, within 10 %), and whether intervals of 90 %
hold times and hours (`inside`). `seen` marks questions that something was mended on. Only the
others are held out.
`python -m experiments.questions [--only TEXT …] [--quick] [--json] [--out DIR]`
"""

from __future__ import annotations

import argparse
import json
import shlex
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from dmodel.cli import app
from dmodel.diagnose.causes import beliefs
from dmodel.diagnose.posterior import NOTHING, OTHERWISE
from dmodel.report import style
from dmodel.units import GIB
from experiments.study import Line, containing, deliver, parse, plain_arguments, run, say

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parent / "reference" / "questions"

Answer = Mapping[str, Any]
"""What a command prints with `--json`."""

FIRST = 3
"""Causes, or kinds of them, of which one must be right."""

ALIKE, NEAR = 0.03, 0.15
"""Plans closer than this are alike; a ratio within this is right [1]."""

AMOUNT, HEIGHT = 0.25, 0.1
"""How far off a time, and a peak of memory, may be [1]."""

PEAK = "peak_gib"
"""Name of a known peak of memory [GiB]."""


INTERVALS = {"step_s": ("", "step_time_s"), "hours": ("run", "device_hours")}
"""Where an answer has the ends of intervals of what is known."""


def asked(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Questions of all files: `name`, `source`, `asked`, `known`, `command`, `seen`, what is right;
    `about` is the file's name."""
    return [
        {"about": path.stem, "seen": False, **each}
        for path in sorted(folder.glob("*.toml"))
        for each in tomllib.loads(path.read_text(encoding="utf-8"))["question"]
    ]


def answer(command: str) -> Answer | str:
    """The document that a command prints, or its last line where it prints none."""
    found = CliRunner().invoke(app, [*shlex.split(command), "--json"])
    if found.exit_code == 2 or not found.stdout:
        return (found.stderr.strip() or repr(found.exception)).splitlines()[-1]
    return json.loads(found.stdout)


def verdict(said: Answer, right: Sequence[str]) -> bool:
    """Whether the run is called normal, slower or faster as it is."""
    return said["verdict"] in right


def causes(said: Answer, right: Sequence[str]) -> bool:
    """Whether a right cause is among the likeliest, or its kind among the likeliest kinds."""
    kinds = {each.name: each.family for each in beliefs().causes}
    likely = _likeliest(each["name"] for each in said["causes"]) | _likeliest(said["kinds"])
    return bool(likely & {*right, *(kinds.get(each, each) for each in right)})


def _likeliest(names: Iterable[str]) -> set[str]:
    """The first names, but for ordinary scatter and several causes at once."""
    return set([each for each in names if each not in (NOTHING, OTHERWISE)][:FIRST])


def ratio(said: Answer, right: float) -> bool:
    """Whether the second plan's step is as much longer or shorter than the first's as it was, or so
    with the micro-batch that is named."""
    second, named = said["against"], said.get("faster", {})
    told = second["step_time_s"] / said["step_time_s"]
    if _alike(told, right) and _holds(second, told, right):
        return True
    both = "second_step_time_s" in named
    ratios = [told, *([named["second_step_time_s"] / named["step_time_s"]] if both else [])]
    return any(_alike(each, right) and abs(each / right - 1.0) <= NEAR for each in ratios)


def _alike(told: float, right: float) -> bool:
    """Whether the same plan is faster, or both plans are alike."""
    close = abs(right - 1.0) <= ALIKE and abs(told - 1.0) <= 2.0 * ALIKE
    return close or (told - 1.0) * (right - 1.0) > 0.0


def _holds(second: Answer, told: float, right: float) -> bool:
    """Whether the interval of a ratio holds it; not where the profile has none."""
    if "speedup" not in second:
        return False
    low, high = (told * second["speedup"] / second[f"speedup_{end}"] for end in ("high", "low"))
    return low <= right <= high


def seconds(said: Answer, right: float) -> bool:
    """Whether the step takes so long."""
    return _amount(said, said["step_time_s"], right)


def hours(said: Answer, right: float) -> bool:
    """Whether the run takes so many device-hours."""
    return _amount(said, said["device_hours"], right)


def _amount(said: Answer, told: float, right: float) -> bool:
    named = said.get("faster")
    other = named["step_time_s"] / said["step_time_s"] if named else 1.0
    return any(abs(told * scale / right - 1.0) <= AMOUNT for scale in (1.0, other))


def inside(said: Answer | str, question: Mapping[str, Any]) -> bool | None:
    """Whether the interval of a time or of hours holds what is known; None where there is none."""
    name = next((name for name in INTERVALS if name in question), "")
    if isinstance(said, str) or not name:
        return None
    place, end = INTERVALS[name]
    of = said.get(place, said)
    if f"{end}_low" not in of:
        return None
    return of[f"{end}_low"] <= question[name] <= of[f"{end}_high"]


def fits(said: Answer, right: bool) -> bool:
    """Whether it is said to fit, or not to."""
    return said["fits"] == right


def advice(said: Answer, right: bool) -> bool:
    """Whether a change is named that makes it fit."""
    return bool(said.get("would_fit")) == right


def peak(said: Answer, right: float) -> bool:
    """Whether the peak of memory [GiB] is so high."""
    return abs(said["memory_bytes_per_device"] / GIB / right - 1.0) <= HEIGHT


CHECKS: dict[str, Callable[[Answer, Any], bool]] = {
    "verdict": verdict,
    "causes": causes,
    "ratio": ratio,
    "step_s": seconds,
    "hours": hours,
    "fits": fits,
    "advice": advice,
}
"""What is known of a question, and whether an answer says so."""


def judged(question: Mapping[str, Any]) -> Line:
    """A question with its answer: what of it is right, and in words what is said."""
    say(question["name"])
    said = answer(question["command"])
    known = [name for name in (*CHECKS, PEAK) if name in question]
    right = {f"{name}_right": name_right(name, said, question[name]) for name in known}
    return {
        **{name: question[name] for name in ("about", "name", "seen")},
        "right": all({**right, f"{PEAK}_right": True}.values()),
        **right,
        "inside": inside(said, question),
        "known": "; ".join(f"{name} {question[name]}" for name in known),
        "said": in_words(said),
        "source": question["source"],
    }


def name_right(name: str, said: Answer | str, right: Any) -> bool:
    """Whether an answer is one, and says what is known under a name."""
    return not isinstance(said, str) and {**CHECKS, PEAK: peak}[name](said, right)


def in_words(said: Answer | str) -> str:
    """An answer in a line."""
    if isinstance(said, str):
        return f"no answer: {said}"
    if "verdict" in said:
        first = (f"{each['name']} {each['probability']:.0%}" for each in said["causes"][:4])
        return f"{said['verdict']}, {said['ratio']:.3g} times as long; {', '.join(first)}"
    if "exact" in said:
        best = said["exact"][0]
        return (
            f"{best['step_time_s']:.4g} s, {said['device_hours']:.4g} device-hours: {best['label']}"
        )
    return ", ".join([*_times(said), *_memory(said)])


def _times(said: Answer) -> list[str]:
    """Of the step, that of the second plan, with the micro-batch that is named, and of the run."""
    faster, other = said.get("faster", {}), said.get("against", {})
    seconds = {
        "": said,
        "then ": other,
        "with {} {} ".format(*next(iter(faster.items()), "  ")): faster,
    }
    told = [f"{what}{of['step_time_s']:.4g} s" for what, of in seconds.items() if of]
    if "device_hours" in said:
        told.append(f"{said['device_hours']:.4g} device-hours")
    return told


def _memory(said: Answer) -> list[str]:
    """What a device needs and has, the risk, and what would fit."""
    needs, has = (said[name] / GIB for name in ("memory_bytes_per_device", "device_memory_bytes"))
    changes = [each["change"] for each in said.get("would_fit", ())[:3]]
    return [f"{needs:.1f} of {has:.1f} GiB", f"risk {said['oom_probability']:.2f}", *changes]


def summary(found: Sequence[Line]) -> list[Line]:
    """By subject, and of all: how many questions are answered right, seen and not."""
    groups: dict[tuple[str, bool], list[Line]] = {}
    for each in (*found, *({**each, "about": "all"} for each in found)):
        groups.setdefault((each["about"], not each["seen"]), []).append(each)
    return [_counted(*group, groups[group]) for group in sorted(groups, key=_place)]


def _place(group: tuple[str, bool]) -> tuple[bool, str, bool]:
    """Order of groups: all questions last, those that were held out below those that were not."""
    return group[0] == "all", *group


def _counted(about: str, held_out: bool, some: Sequence[Line]) -> Line:
    right = sum(each["right"] for each in some)
    return {
        "about": about,
        "asked": "held out" if held_out else "mended on",
        "questions": len(some),
        "right": right,
        "share": 100.0 * right / len(some),
        **_shares("peaks", [each.get(f"{PEAK}_right") for each in some]),
        **_shares("intervals", [each.get("inside") for each in some]),
    }


def _shares(name: str, known: Sequence[bool | None]) -> dict[str, int]:
    """Of how many something is known, and for how many it is right."""
    return {name: len(known) - known.count(None), f"{name} right": known.count(True)}


def drawn(lines: Sequence[Line]) -> Figure:
    """Shares of right answers."""
    figure = style.new_figure(6.4, 0.9 + 0.3 * len(lines))
    axes = figure.subplots()
    from_top = list(lines)[::-1]
    axes.barh(
        [f"{e['about']}, {e['asked']} ({e['right']} of {e['questions']})" for e in from_top],
        [each["share"] for each in from_top],
        color=[style.BLUE if e["asked"] == "held out" else style.SKY for e in from_top],
    )
    axes.set_xlim(0.0, 100.0)
    axes.set_xlabel("right answers [%]")
    return figure


def options() -> argparse.Namespace:
    """What is asked."""
    parser = plain_arguments(__doc__ or "")
    parser.add_argument(
        "--only", nargs="+", metavar="TEXT", help="questions whose file or name contains a text"
    )
    return parse(parser)


def main() -> None:
    """Ask, judge, print."""
    given = options()
    known = {f"{each['about']} {each['name']}": each for each in asked()}
    wanted = [known[name] for name in containing(known, given.only, "question")]
    found = [
        judged(each) for each in (wanted[:: max(len(wanted) // 3, 1)] if given.quick else wanted)
    ]
    lines = summary(found)
    deliver("questions", found, drawn(lines), given, shown=lines, digits=".0f")


if __name__ == "__main__":
    run(main)
