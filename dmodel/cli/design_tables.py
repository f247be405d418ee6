"""Tables of a whole run's design. Its sizes, what it takes, what limits are worth, which law
decides, what would have to give way."""

from __future__ import annotations

from dmodel.cli.output import Document, digits, gib, percent, say, seconds, show_lines, show_table
from dmodel.cli.run_options import sense_lines

DAY_S = 86400.0

UNITS = {
    "seconds": ("time", DAY_S, "days"),
    "loss": ("loss", 1.0, "nat/token"),
    "dollars": ("rent", 1.0, "dollars"),
    "joules": ("energy", 3.6e9, "MWh"),
    "flop": ("compute", 1.0, "FLOP"),
    "watts": ("power of the facility", 1e6, "MW"),
    "area_mm2": ("die", 1.0, "mm2"),
    "batch": ("batch over the critical one", 1.0, ""),
    "tokens": ("tokens", 1e9, "10^9"),
    "memory": ("memory over the device's", 1.0, ""),
    "waste": ("tokens over those of small batches", 1.0, ""),
}
"""Quantity of a run → name for people, what its SI value is divided by, and the unit then."""


def quantity(name: str, value: float) -> str:
    """A quantity of a run for people."""
    _, scale, unit = UNITS[name]
    return f"{digits(value / scale, 4)} {unit}".rstrip()


def show_run(d: Document) -> None:
    """Tables of sizes, of the run and its limits, and what was checked."""
    head = (
        f"{d['model']}, {d['seq_len']} tokens, on {d['accelerator']} ({d['system']}): least "
        f"{d['objective']}"
    ).replace("least largest", "largest run")
    if d["best"] is None:
        show_lines(head, "No design keeps the limits.")
        _show_nearest(d)
    else:
        _show_sizes("\n".join([head, *sense_lines(d)]), d["sizes"])
        _show_quantities(d)
        _show_best(d["best"])
    show_lines(f"Certificate: {d['certificate']}")
    _show_prices(d)
    if d.get("robust"):
        show_lines(f"Uncertainty: {d['robust']['statement']}")
    _show_laws(d)
    show_lines(f"Assumed: {'; '.join(d['assumptions'])}")


def _show_sizes(head: str, sizes: list[Document]) -> None:
    """Table of the sizes; those of hardware too where some of these were chosen."""
    hardware = any(x["free"] and _is_hardware(x["name"]) for x in sizes)
    rows = [_size_cells(x) for x in sizes if hardware or x["name"] in SHOWN]
    show_table(head, ("size", "value", "unit", "", "at bound"), rows, right="value")


def _size_cells(x: Document) -> tuple[str, ...]:
    said = "chosen" if x["free"] else "given"
    return x["name"], _size(x["value"]), x["unit"], said, x["bound"]


def _is_hardware(name: str) -> bool:
    return "bytes" in name or "flops" in name


def _show_quantities(d: Document) -> None:
    """Table of what the run takes, and of its limits."""
    limits = {m["name"]: m for m in d["margins"]}
    table = [
        (UNITS[name][0], quantity(name, value), *_limit(name, limits.get(name)))
        for name, value in d["quantities"].items()
    ]
    show_table("The run", ("quantity", "value", "limit", "left"), table)


def _limit(name: str, margin: Document | None) -> tuple[str, str]:
    """A limit of a quantity, and what is left of it; blank where there is none."""
    if margin is None:
        return "", ""
    return quantity(name, margin["limit"]), quantity(name, margin["slack"])


def _show_best(best: Document) -> None:
    show_lines(
        f"Plan: {best['label']}: {seconds(best['step_time_s'])} per step, MFU "
        f"{percent(best['mfu'])}, "
        f"{gib(best['memory_bytes_per_device'])} per device; "
        f"{digits(best['parameters'] / 1e9, 4)} billion parameters"
    )


def _size(x: float) -> str:
    """A size: counts in full, up to where nobody counts."""
    return f"{x:.4g}" if x >= 1e7 else f"{x:,.0f}" if x == int(x) else digits(x, 4)


SHOWN = ("n_layers", "d_model", "ff_ratio", "head_dim", "global_batch", "tokens", "devices")


def _show_nearest(d: Document) -> None:
    near = d["nearest"]
    if near is not None:
        sizes = ", ".join(
            f"{name} {digits(near['sizes'][name], 4)}" for name in SHOWN if name in near["sizes"]
        )
        show_lines(f"Closest: {sizes}; plan {near['label']}")


def _show_prices(d: Document) -> None:
    """What one more unit of each thing is worth, the largest effects."""
    known = d.get("shadow_prices", [])[:PRICES]
    if not known:
        return
    name, scale, unit = UNITS[OBJECTIVE_OF[d["objective"]]]
    rows = [
        (
            x["name"],
            x["kind"],
            f"{digits(x['at'], 4)} {x['unit']}",
            f"{x['elasticity']:+.4f}",
            f"{x['per_unit'] / scale:+.3g} {unit}",
            "" if x["dollars"] is None else f"{x['dollars']:+,.3g}",
        )
        for x in known
    ]
    title = f"What one more unit is worth ({name}; plan held, sizes at their best for it)"
    show_table(
        title,
        ("of", "kind", "now", "elasticity", "per unit", "dollars"),
        rows,
        right="elasticity|per unit|dollars",
    )


PRICES = 10


OBJECTIVE_OF = {
    "time": "seconds",
    "loss": "loss",
    "cost": "dollars",
    "energy": "joules",
    "largest": "flop",
}


def _show_laws(d: Document) -> None:
    if d.get("deciding_law_says"):
        show_lines(f"What decides: {d['deciding_law_says']}")
    chosen = ", ".join(f"{kind} {law['name']}" for kind, law in d["laws"].items())
    show_lines(f"Laws: {chosen} (`--law kind=name` chooses others)")


def say_infeasible(d: Document) -> None:
    """Which limits would have to give way, and by how much, on stderr."""
    say(f"dmodel: {d['binding']['message']}")
    for x in d.get("nearest_changes", []):
        name = UNITS[x["name"]][0]
        if x["needed"] is None:
            say(f"  {name}: no value of it alone would do, with the other limits as they are")
        else:
            say(
                f"  {name}: {quantity(x['name'], x['needed'])} instead of "
                f"{quantity(x['name'], x['limit'])} would do"
            )
