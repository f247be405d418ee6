"""Sensitivities in plain words: names of inputs that people use, and sentences that say what
decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dmodel.coefficients import SPECS
from dmodel.report.text import digits

CHIP = {
    "flops_per_s": "peak arithmetic rate",
    "attention_flops_per_s": "peak 16-bit arithmetic rate",
    "exponentials_per_s": "rate of exponentials",
    "hbm_bytes": "memory of a device",
    "hbm_bytes_per_s": "memory bandwidth",
    "host_bytes_per_s": "bandwidth of the link to the host",
    "host_memory_bytes_per_s": "bandwidth of the host's memory, for a device",
    "kernel_latency_s": "kernel latency",
    "idle_watts": "power at rest",
    "peak_watts": "power at full load",
    "price_per_s": "price of a device",
}
NETWORK = {"bytes_per_s": "bandwidth", "latency_s": "latency of a hop", "size": "domain size"}
MODEL = {
    "n_layers": "number of layers",
    "d_model": "model width",
    "d_ff": "MLP width",
    "n_heads": "attention heads",
    "seq_len": "sequence length",
    "vocab": "vocabulary",
    "imbalance": "imbalance of the experts",
}
AXES = {
    "flops": "peak arithmetic rate [FLOP/s]",
    "bandwidth": "bandwidth of all levels, {level} shown [byte/s]",
    "latency": "all latencies, kernel shown [s]",
    "memory": "memory bandwidth [byte/s]",
    "devices": "data-parallel ranks (devices)",
    "batch": "global batch [sequence]",
    "sequence": "sequence length [token]",
}


def level(name: str) -> str:
    """The network level in the name of an input, "" without one."""
    return name.partition("[")[2].rstrip("]")


def input_words(name: str) -> str:
    """An input in words: "bandwidth of InfiniBand NDR" for `network.bytes_per_s[InfiniBand
    NDR]`."""
    record, _, rest = name.partition(".")
    field = rest.partition("[")[0]
    if record == "chip":
        return CHIP.get(field, field.replace("_", " "))
    if record == "network":
        return f"{NETWORK.get(field, field.replace('_', ' '))} of {level(name)}"
    if record == "model":
        return MODEL.get(field, f"model's {field.replace('_', ' ')}")
    if record == "coefficients":
        return f"{field.replace('_', ' ')} ({SPECS[field].meaning})"
    return name.replace("plan.", "").replace("_", " ")


def short_words(name: str) -> str:
    """The same in few words, for figures."""
    return input_words(name).partition(" (")[0]


def axis_label(name: str, shown: str) -> str:
    """Label of an axis of a map."""
    return AXES[name].format(level=level(shown)) if name in AXES else short_words(shown)


def signed(share: float, places: int = 1) -> str:
    """A relative change as per cent with its sign."""
    return f"{100.0 * share:+.{places}f} %".replace("-", "−")


def _flip(effect: Mapping[str, Any] | None) -> str:
    """Where the plan changes, the nearer flip first."""
    if effect is None:
        return ""
    flips = [f for f in (effect["up"], effect["down"]) if f is not None]
    if not flips:
        return (
            f"; the best plan stays from {signed(1.0 / effect['limit'] - 1.0, 0)} to "
            f"{signed(effect['limit'] - 1.0, 0)}"
        )
    nearest = min(flips, key=lambda f: abs(f["factor"] - 1.0))
    return f"; the best plan changes at {signed(nearest['factor'] - 1.0)} (to {nearest['label']})"


def _sure(entry: Mapping[str, Any]) -> str:
    error = entry.get("error")
    return f" (±{10.0 * error:.1f})" if error is not None else ""


def _decides(entry: Mapping[str, Any], effects: Mapping[str, Any], output: str) -> str:
    effect = effects.get(entry["name"])
    again = effect is not None and _differs(effect) and output == "step time"
    after = (
        f", {signed(effect['more'])} when the best plan is searched again"
        if effect and again
        else ""
    )
    return (
        f"{input_words(entry['name'])}: +10 % gives {signed(entry['more'])} "
        f"{output}{_sure(entry)}{after}{_flip(effect)}."
    )


def _differs(effect: Mapping[str, Any]) -> bool:
    return effect["more"] is not None and abs(effect["more"] - effect["kept_more"]) > 5e-4


def summary(d: Mapping[str, Any]) -> list[str]:
    """Sentences about a document of `dmodel sensitivity`, the most important first."""
    output = d["output_words"]
    effects = {e["name"]: e for e in d["design"]["effects"]} if d.get("design") else {}
    ranked = sorted(d["elasticities"], key=lambda e: -abs(e["elasticity"]))
    hardware, fitted = _of_group(ranked, "hardware"), _of_group(ranked, "coefficient")
    return [
        *_of_hardware(hardware, effects, output),
        *_of_fitted(fitted[:1], effects, output),
        *_bound(d.get("shares")),
        *_reoptimized(d, output),
        *_flips(effects, hardware),
        *_interaction(d),
        *_global(d, output),
    ]


LEAST, LEAST_BESIDE = 5e-4, 5e-3
"""Smallest elasticities of which something is said: of the largest, and of those after it."""


def _of_group(entries: Sequence[Mapping[str, Any]], group: str) -> list[Mapping[str, Any]]:
    return [e for e in entries if e["group"] == group]


def _of_hardware(
    hardware: Sequence[Mapping[str, Any]], effects: Mapping[str, Any], output: str
) -> list[str]:
    """What of the hardware decides, and what comes next."""
    lines = [f"Of the hardware, {_decides(e, effects, output)}" for e in _from(LEAST, hardware[:1])]
    if not lines:
        return []
    others = _from(LEAST_BESIDE, hardware[1:3])
    return [*lines, *(f"Then {_decides(e, effects, output)}" for e in others)]


def _from(least: float, entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Entries whose elasticity has that size or more."""
    return [e for e in entries if abs(e["elasticity"]) >= least]


def _of_fitted(
    fitted: Sequence[Mapping[str, Any]], effects: Mapping[str, Any], output: str
) -> list[str]:
    """What of the coefficients decides."""
    return [f"Of what was fitted, {_decides(e, effects, output)}" for e in _from(LEAST, fitted)]


def _bound(found: Mapping[str, float] | None) -> list[str]:
    """What bounds the step."""
    if not found:
        return []
    shares = sorted(found.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{digits(100.0 * share, 2)} % {name}" for name, share in shares)
    return [f"The step is {shares[0][0]}-bound: {parts}."]


def _reoptimized(d: Mapping[str, Any], output: str) -> list[str]:
    found = d.get("reoptimized")
    if not found:
        return []
    kept = {e["name"]: e["elasticity"] for e in d["elasticities"]}
    return _moved(kept, found["elasticities"], output) + _prices(found["active"])


def _moved(kept: Mapping[str, float], follow: Mapping[str, float], output: str) -> list[str]:
    """Elasticities that change most when the plan follows."""
    change = {n: abs(e - kept[n]) for n, e in follow.items() if n in kept}
    largest = sorted(change, key=lambda n: -change[n])[:3]
    parts = [
        f"{short_words(n)} {kept[n]:+.2f} → {follow[n]:+.2f}" for n in largest if change[n] > 0.02
    ]
    if not parts:
        return []
    named = "; ".join(parts).replace("-", "−")
    return [f"When the plan follows, elasticities of the {output} change: {named}."]


def _prices(active: Sequence[Mapping[str, Any]]) -> list[str]:
    """Limits that cost most."""
    dear = sorted(filter(_is_dear, active), key=lambda a: -a["price"])
    if not dear:
        return []
    named = ", ".join(f"{a['name']} ({a['price']:.2f})" for a in dear[:3])
    return [f"Limits that cost most, in % of step time for 1 % of room: {named}."]


def _is_dear(limit: Mapping[str, Any]) -> bool:
    """Whether a limit has a price that is worth a word."""
    # a share of layers is no logarithm, so its price is of another unit
    if "recomputed" in limit["name"] or limit["name"] == "devices":
        return False
    return limit["price"] > 0.005


def _flips(effects: Mapping[str, Any], said: Sequence[Mapping[str, Any]]) -> list[str]:
    """The nearest flip of all inputs, unless it is said already."""
    found = [(e, flip) for e in effects.values() for flip in (e["up"], e["down"]) if flip]
    if not found:
        return []
    effect, flip = min(found, key=lambda pair: abs(pair[1]["factor"] - 1.0))
    if effect["name"] in _names(said[:3]):
        return []
    where = signed(flip["factor"] - 1.0)
    return [
        f"The plan is nearest to a change in {input_words(effect['name'])}: at {where} "
        f"{flip['label']} is better."
    ]


def _names(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    return [e["name"] for e in entries]


def _interaction(d: Mapping[str, Any]) -> list[str]:
    found = d.get("interactions")
    if not found:
        return []
    size, i, j = max(_pairs(found), default=(0.0, 0, 0))
    if size < 0.005:
        return []
    names, change = found["names"], f"{0.1 * found['hessian'][i][j]:+.3f}".replace("-", "−")
    return [
        f"Strongest interaction: {short_words(names[i])} with {short_words(names[j])}; 10 % more "
        f"of one changes the elasticity to the other by {change}."
    ]


def _pairs(found: Mapping[str, Any]) -> list[tuple[float, int, int]]:
    """Second derivatives of pairs of smooth inputs, and their places."""
    smooth = [i for i, name in enumerate(found["names"]) if name not in found["kinks"]]
    return [(abs(found["hessian"][i][j]), i, j) for i in smooth for j in smooth if j < i]


def _global(d: Mapping[str, Any], output: str) -> list[str]:
    found = d.get("global")
    if not found:
        return []
    largest = sorted(found["indices"], key=lambda e: -e["total"])[:3]
    parts = ", ".join(
        f"{short_words(e['name'])} {digits(100.0 * e['total'], 2)} %" for e in largest
    )
    return [
        f"Over the stated ranges, 90 % of cases lie between {digits(found['low'])} and "
        f"{digits(found['high'])}; of the variance of the "
        f"{output}, these have most (total indices): {parts}."
    ]
