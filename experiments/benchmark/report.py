"""Results for people: one page in Markdown, one figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dmodel.report import style
from experiments.benchmark.results import OURS

Results = Mapping[str, Any]
Line = Mapping[str, Any]

HEAD = """# Benchmark of predictors

Tools that predict step times and memory of distributed training, on the same measured rows. All of
this page is made from `experiments/benchmark/results.json` by
`python -m experiments.benchmark page`; protocols, files and how to enter a tool are in
`experiments/benchmark/README.md`.

{date}; {rows:,} rows of the published table (`docs/data.md`); splits {splits}; {versions}.

![median error of each tool, and of dmodel on the rows that it covers](benchmark.png)
"""

READING = """
## How to read it

Errors are |predicted / measured − 1|, median and mean, in %. Bias is the middle of the signed
error: + is too slow, or too much memory. A row that a tool's inputs cannot express is not covered.
It is counted and not judged, and the last column is dmodel on those that are. *Tuned*: the tool's
one constant is set on the protocol's training rows, chip by chip, by the least mean error of
ln(time), each source weighing alike. Of memory one factor is set, since peaks are as their sources
report them, some with the allocator's cache and the context. Inside: measured values within a
tool's own interval of 90 %.

Two things help dmodel beside its model. It is the only one whose many coefficients are fitted to
rows: `no-rows` hides a stack's rows from the fit, and not those of other stacks. And it was made
with these rows in view: no fit saw the judged ones, but the choice of its mechanisms did. Facts
about stacks that fill blank cells (recomputation, ZeRO stage, fused attention) are its own, and all
tools are given them. The others were made for some of these machines and stacks, and are asked
about all that their inputs can express.
"""

TITLES = {
    "no-rows": "No row of the stack",
    "twelve": "Twelve rows of the stack",
    "larger-scale": "More devices than any row fitted",
    "memory": "Peak memory",
    "fits": "Whether it fits",
}


def markdown(results: Results) -> str:
    """The page."""
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    parts = [HEAD.format(**{**results, "versions": versions}), READING]
    parts += [_better(results)]
    parts += [_protocol(results, name) for name in results["protocols"]]
    return "\n".join([*parts, _tools(results)])


def _better(results: Results) -> str:
    """Where another tool is better than ours on the rows that it answers."""
    found = [
        f"{title(results, line)} on `{line['protocol']}`: {_compared(line)}, of {_share(line)}"
        for line in results["scores"]
        if line["tool"] != OURS and line["answered"] and beaten(line)
    ]
    if not found:
        return "\nNo other tool is better than dmodel on the rows that it answers.\n"
    return "\nBetter than dmodel on the rows that they answer:\n\n- " + ";\n- ".join(found) + ".\n"


def beaten(line: Line) -> bool:
    """Whether a line's tool is better than ours on the same rows, by median error or by area."""
    if "area" in line:
        return round(line["area"], 3) > round(line["ours"]["area"], 3)
    return "median" in line and line["median"] < line["ours"]["median"]


def _compared(line: Line) -> str:
    if "area" in line:
        return f"area {_number(line, 'area')} to {_number(line['ours'], 'area')}"
    return f"median {_percent(line, 'median')} to {_percent(line['ours'], 'median')}"


def _protocol(results: Results, name: str) -> str:
    lines = [line for line in results["scores"] if line["protocol"] == name]
    about = results["protocols"][name]["about"]
    text = f"\n## {TITLES[name]} (`{name}`)\n\n{about[0].upper()}{about[1:]}.\n\n"
    text += _table(*(_risks if name == "fits" else _errors)(results, lines))
    return text + "\n" + _by_task(results, name)


def _errors(results: Results, lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    header = ["tool", "answered", "median", "mean", "bias", "inside", "dmodel there"]
    return header, [
        [
            title(results, line),
            _share(line),
            _percent(line, "median"),
            _percent(line, "mean"),
            _percent(line, "bias", sign=True),
            _percent(line, "inside"),
            "" if line["tool"] == OURS else _pair(line["ours"]),
        ]
        for line in _sorted(lines)
    ]


def _risks(results: Results, lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    header = ["tool", "answered", "area under the curve", "balanced accuracy", "dmodel there"]
    return header, [
        [
            title(results, line),
            _share(line),
            _number(line, "area"),
            _percent(line, "balanced"),
            "" if line["tool"] == OURS else _risk_pair(line["ours"]),
        ]
        for line in _sorted(lines)
    ]


def _risk_pair(ours: Line) -> str:
    return f"{_number(ours, 'area')} / {_percent(ours, 'balanced')}"


def _sorted(lines: Sequence[Line]) -> list[Line]:
    """Ours first, then as they come; those with no answer last."""
    return sorted(lines, key=lambda line: (line["tool"] != OURS, not line["answered"]))


def title(results: Results, line: Line) -> str:
    """Name of a line's tool."""
    name = line["tool"]
    known = name if name == OURS else results["tools"][name]["title"]
    return f"{known}, tuned" if line["tuned"] else known


def _by_task(results: Results, name: str) -> str:
    """Median of each task, with the share answered, of every tool as it comes or tuned."""
    lines = [line for line in results["tasks"] if line["protocol"] == name]
    tasks = list(dict.fromkeys(line["task"] for line in lines))
    tools = list(dict.fromkeys((line["tool"], line["tuned"]) for line in lines))
    what = "area" if name == "fits" else "median"
    by = {(line["task"], line["tool"], line["tuned"]): line for line in lines}
    header = [f"{what}, by task", *tasks]
    rows = [
        [
            title(results, {"tool": tool, "tuned": tuned}),
            *(_one(by[task, tool, tuned], what) for task in tasks),
        ]
        for tool, tuned in tools
        if any(by[task, tool, tuned]["answered"] for task in tasks)
    ]
    return _table(header, rows)


def _one(line: Line, what: str) -> str:
    if what not in line:
        return "–"
    value = _number(line, what) if what == "area" else _percent(line, what)
    return value if line["covered"] > 99.95 else f"{value} ({line['answered']}/{line['asked']})"


def _tools(results: Results) -> str:
    """What was run, and what its inputs could not express."""
    text = "\n## Tools\n"
    for tool in results["tools"].values():
        version = f", {tool['version']}" if tool["version"] else ""
        text += f"\n**{tool['title']}** ({tool['source']}{version})."
        if tool["constant"]:
            text += f" Constant: {tool['constant']}, {tool['own']:g} as it comes."
        counts = tool["rows_with_time"], tool["rows_with_peak"]
        text += " Step times of {:,} rows, peaks of {:,}.".format(*counts)
        if why := "; ".join(f"{reason}: {n}" for reason, n in tool["not_covered"].items()):
            text += f" Not covered, by the first reason: {_safe(why)}."
        text += "\n"
    for name, why in results["not_run"].items():
        text += f"\n**{name}** was not run: {_safe(why)}.\n"
    return text


def _safe(text: str) -> str:
    """Text of other programs without what Markdown would read."""
    return text.replace("|", "/").replace("*", "·").replace("<", "").replace(">", "")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _share(line: Line) -> str:
    return f"{line['answered']:,} of {line['asked']:,}"


def _percent(line: Line, key: str, *, sign: bool = False) -> str:
    return format(line[key], "+.1f" if sign else ".1f") + " %" if key in line else "–"


def _number(line: Line, key: str) -> str:
    return f"{line[key]:.3f}" if key in line else "–"


def _pair(ours: Line) -> str:
    return f"{_percent(ours, 'median')} / {_percent(ours, 'mean')}"


def draw(results: Results) -> Any:
    """A panel for each protocol: every tool's error on what it covers, and ours on the same."""
    names = list(results["protocols"])
    most = max(
        sum(line["protocol"] == name and line["tool"] != OURS for line in results["scores"])
        for name in names
    )
    figure = style.new_figure(8.6, len(names) * (0.9 + 0.13 * max(most, 4)))
    for axes, name in zip(figure.subplots(len(names), 1, squeeze=False)[:, 0], names, strict=True):
        _panel(axes, results, name)
    figure.axes[0].legend(loc="lower left", fontsize=8)
    return figure


def _panel(axes: Any, results: Results, name: str) -> None:
    what = "area" if name == "fits" else "median"
    lines = [
        line
        for line in results["scores"]
        if line["protocol"] == name and line["tool"] != OURS and what in line
    ]
    for y, line in enumerate(lines):
        color = style.ORANGE if line["tuned"] else style.VERMILLION
        ends = [line[what], line["ours"][what]]
        axes.plot(ends, [y, y], "-", color=style.PALE, lw=2, zorder=1)
        axes.plot(ends[0], y, "o", color=color, zorder=2)
        axes.plot(ends[1], y, "o", color=style.BLUE, zorder=2)
    for label, color in (
        ("the tool as it comes", style.VERMILLION),
        ("the tool, tuned", style.ORANGE),
        ("dmodel on the same rows", style.BLUE),
    ):
        axes.plot([], [], "o", color=color, label=label)
    axes.set_yticks(
        range(len(lines)),
        [f"{title(results, line)} ({line['covered']:.0f} % of rows)" for line in lines],
    )
    axes.set_ylim(-0.7, max(len(lines), 1) - 0.3)
    axes.invert_yaxis()
    if name == "fits":
        axes.set_xlim(0.5, 1.01)
        axes.set_xlabel("area under the curve")
    else:
        axes.set_xscale("log")
        axes.set_xlim(1.0, 150.0)
        axes.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
        axes.set_xlabel("median error [%]")
    questions = lines[0]["asked"] if lines else 0
    axes.set_title(f"{TITLES[name]} ({questions:,} questions)")
