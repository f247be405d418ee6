"""A diagnosis as people read it."""

from __future__ import annotations

from typing import Any

from dmodel.cli.output import Document, digits, gib, percent, seconds, show_lines, show_table
from dmodel.report.text import named

LEAST = 0.01
"""Probability from which a cause is shown."""

MOST = 12
"""Causes in the table, at most."""

KINDS = 5
"""Kinds of cause that are told, at most."""

NO_CAUSE = {"nothing": "ordinary scatter", "otherwise": "something else"}
"""Kinds that are no cause, in words."""

TERMS = 6
"""Terms of the predicted step that are told."""

BEYOND = (
    "No such chip computes that fast: the batch, the sequence length, the model or the chip is not "
    "the one specified, or padding is counted."
)
"""What is said of a figure beyond the peak."""

VERDICT = {
    "inside": "in the range of such runs",
    "slower": "SLOWER than such runs",
    "faster": "FASTER than such runs",
}


def show(d: Document) -> None:
    """Verdict, causes, what to do next, published runs."""
    from dmodel.cli.question import short

    show_lines(
        f"{named(d['model'])}, {d['seq_len']} tokens, batch {d['plan']['global_batch']}, on "
        f"{d['devices']} × {d['accelerator']}: {short(d['plan'])}",
        "",
        *_verdict(d),
        "",
    )
    show_lines(_kinds(d), "")
    _show_causes(d)
    _show_next(d)
    _show_neighbours(d)


def _verdict(d: Document) -> list[str]:
    low, high = d["interval"]
    than = percent(d["percentile"]) if d["percentile"] >= 0.5 else percent(1.0 - d["percentile"])
    side = "longer" if d["percentile"] >= 0.5 else "less time"
    mfu = d["mfu"]
    lines = [
        f"Measured {seconds(d['measured'])} a step, predicted {seconds(d['predicted'])} "
        f"({_against(d['ratio'])}): {VERDICT[d['verdict']]}.",
        f"{percent(d['level'], 0)} of such runs take {seconds(low)} to {seconds(high)}; this one "
        f"takes {side} than {than} of them.",
        f"That is {digits(d['tokens_per_s_per_device'], 4)} tokens/s per device, MFU "
        f"{percent(mfu['value'])} ({mfu['convention']}) of a dense peak of "
        f"{mfu['peak_flops_per_s'] / 1e12:.4g} TFLOP/s.",
    ]
    if d["beyond_peak"]:
        lines.append(BEYOND)
    terms = sorted(d["breakdown"].items(), key=lambda pair: -pair[1])[:TERMS]
    listed = ", ".join(
        f"{n[:-2].replace('_', ' ')} {percent(x / d['predicted'], 0)}" for n, x in terms
    )
    lines.append(f"Terms of the predicted step, part of any such run: {listed}.")
    return [*lines, *(_part(name, part) for name, part in d["parts"].items())]


MANY = 10.0
"""Ratio from which steps are told apart by how many times they take, not by a percentage."""


def _against(ratio: float) -> str:
    """A measured step against the predicted one."""
    if ratio >= MANY:
        return f"{ratio:.3g} times as long"
    if ratio <= 1.0 / MANY:
        return f"{1.0 / ratio:.3g} times as fast"
    return f"{100.0 * (ratio - 1.0) + 0.0:+.0f} %"


def _part(name: str, part: Document) -> str:
    """A measured part beside the predicted one."""
    amount = gib if name == "memory" else seconds
    return (
        f"{name.capitalize()}: measured {amount(part['measured'])}, predicted "
        f"{amount(part['predicted'])}; {percent(part['percentile'], 0)} of such runs have less."
    )


def _kinds(d: Document) -> str:
    """How likely each kind of cause is."""
    likely = [(k, p) for k, p in d["kinds"].items() if p >= LEAST][:KINDS]
    return "By kind: " + ", ".join(f"{NO_CAUSE.get(k, k)} {percent(p, 0)}" for k, p in likely) + "."


def _show_causes(d: Document) -> None:
    likely = [c for c in d["causes"] if c["probability"] >= LEAST]
    away = [c for c in likely if _is_opposite(c, d["ratio"])]
    shown = [c for c in likely if c not in away][:MOST]
    rows = [
        (c["title"], percent(c["probability"], 0), _signed(c["seconds"]), c["says"]) for c in shown
    ]
    header = ("why", "probability", "explains", "how much")
    show_table("Causes, each evaluated alone", header, rows, right="probability|explains")
    if away:
        names = ", ".join(f"{c['name']} {percent(c['probability'], 0)}" for c in away)
        show_lines(f"Possible too, though alone each has the opposite effect: {names}.", "")
    _show_tests(shown)


def _is_opposite(cause: dict[str, Any], ratio: float) -> bool:
    """Whether a cause alone would move the step away from what was measured."""
    return cause["size"] is not None and cause["seconds"] * (ratio - 1.0) < 0.0


def _show_tests(shown: list[dict[str, Any]]) -> None:
    """The cheapest test of each cause."""
    told = [c for c in shown if c["test"] is not None and c["size"] is not None]
    if told:
        lines = [f"  {c['title']}: {_outcome(c['test'])}" for c in told]
        show_lines("The cheapest test of each:", *lines, "")


def _signed(x: float) -> str:
    return f"{'−' if x < 0 else '+'}{seconds(abs(x))}"


def _amount(value: float, unit: str) -> str:
    return seconds(value) if unit == "s" else f"{value:.2g}"


def _outcome(test: dict[str, Any]) -> str:
    unit, other = test["unit"], test["otherwise"]["expected"]
    return (
        f"{test['name']} ({test['minutes']:g} min): {test['looks']} "
        f"{_amount(test['expected'], unit)} if so, else {_amount(other, unit)}"
    )


def _show_next(d: Document) -> None:
    test = d["test"]
    if test is None:
        return
    titles = {c["name"]: c["title"] for c in d["causes"]}
    show_lines(
        f"Next, for {digits(test['bits'])} bits in {test['minutes']:g} minutes: {test['does']}.",
        *_expected(test, titles),
        "",
    )
    _show_faint(d["cannot"])


def _show_faint(cannot: dict[str, float]) -> None:
    """Causes that cannot matter, and those that change nothing at all."""
    some = {n: f"{n} ({100.0 * x:+.1f} %)" for n, x in cannot.items() if abs(x) >= 5e-4}
    none = ", ".join(n for n in cannot if n not in some)
    if some:
        show_lines(f"Too small to matter here, at most: {', '.join(some.values())}.", "")
    if none:
        show_lines(f"Without effect here: {none}.", "")


def _expected(test: dict[str, Any], titles: dict[str, str]) -> list[str]:
    """What a test would show: its number under the likeliest hypotheses; or of several numbers
    those that hypotheses change."""
    if len({each["looks"] for each in test["tells"]}) < 2:
        amounts = {n: _amount(x, test["unit"]) for n, x in test["expected"].items()}
        return [f"  {test['looks']}, if", *(f"    {x}: {titles[n]}" for n, x in amounts.items())]
    return [
        f"  {each['looks']} {_amount(each['expected'], test['unit'])}, not "
        f"{_amount(each['otherwise'], test['unit'])}: {titles[each['name']]}"
        for each in test["tells"]
    ]


def _show_neighbours(d: Document) -> None:
    rows = [
        (
            f"{n['model']}, {n['devices']} × {n['accelerator']}",
            n["layout"],
            seconds(n["step_time_s"]),
            digits(n["tokens_per_s_per_device"], 4),
            "" if n["mfu"] is None else percent(n["mfu"]),
            f"{n['distance']:.2g}",
            f"{n['stack']}; {n['url']}",
        )
        for n in d["neighbours"]
    ]
    if rows:
        header = ("run", "layout", "step", "tokens/s/device", "MFU", "distance", "source")
        show_table(
            "Nearest published runs (distance 1 = a factor of e in one size)",
            header,
            rows,
            right="step|tokens/s/device|MFU|distance",
        )
