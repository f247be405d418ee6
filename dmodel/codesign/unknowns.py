"""What may be freed, by name: shape, batch, tokens, devices, hardware; their bounds, and the
lattice on which sizes are valid.

All sizes, free or not, are one vector of logarithms, so every problem with as many network levels
shares one compiled function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dmodel import struct
from dmodel.codesign.bill import Bill, scaled
from dmodel.errors import InputError
from dmodel.records import Cluster, Model, ff_width, having, sized, value
from dmodel.types import Array

SIZES = ("n_layers", "d_model", "ff_ratio", "head_dim", "global_batch", "tokens", "devices")
CHIP = ("flops_per_s", "hbm_bytes", "hbm_bytes_per_s")

UNITS = {
    "n_layers": "layer",
    "d_model": "element",
    "ff_ratio": "1",
    "head_dim": "element",
    "global_batch": "sequence",
    "tokens": "token",
    "devices": "device",
    "flops_per_s": "FLOP/s",
    "hbm_bytes": "byte",
    "hbm_bytes_per_s": "byte/s",
    "bytes_per_s": "byte/s",
    "latency_s": "s",
}

GROUPS = {
    "shape": ("n_layers", "d_model"),
    "batch": ("global_batch",),
    "tokens": ("tokens",),
    "devices": ("devices",),
}
"""What a group of `free` frees, beside "hardware", which frees chip and network, and every
unknown's own name."""

ABSOLUTE = {
    "n_layers": (2.0, 256.0),
    "d_model": (512.0, 65536.0),
    "ff_ratio": (1.0, 16.0),
    "head_dim": (64.0, 256.0),
}
ABSOLUTE |= {"global_batch": (8.0, 65536.0), "tokens": (1e9, 1e15), "devices": (8.0, 65536.0)}
"""Bounds of sizes when freed; those of hardware are a quarter and four times the catalog's."""

HARDWARE_RANGE = 4.0


class Unknowns(struct.PyTreeNode, kw_only=True):
    """Names (static), and per name: logarithm of the lower and upper bound, equal where it is not
    freed, and the value where it is not."""

    names: tuple[str, ...] = struct.field(pytree_node=False)
    low: np.ndarray
    high: np.ndarray
    value: np.ndarray

    @property
    def free(self) -> np.ndarray:
        """Which are freed, `[name]` of bool."""
        return np.asarray(self.high) > np.asarray(self.low)

    def values(self, x: np.ndarray) -> dict[str, float]:
        """Values by name of logarithms `[name]`; of what is not freed exactly."""
        return {
            n: float(np.exp(v) if f else k)
            for n, v, f, k in zip(self.names, x, self.free, self.value, strict=True)
        }

    def index(self, name: str) -> int:
        """Place of a name in the vector."""
        return self.names.index(name)


def unit_of(name: str) -> str:
    """SI unit of an unknown."""
    return UNITS[name.split("[")[0]]


def freed(free: Sequence[str], names: Sequence[str]) -> set[str]:
    """Names that groups and names stand for.

    Raises:
      InputError: a word is neither.
    """
    groups = {**GROUPS, "hardware": tuple(n for n in names if n not in SIZES)}
    found: set[str] = set()
    for word in free:
        if word in groups:
            found |= set(groups[word])
        elif word in names or f"{word}[0]" in names:
            found |= _levels(word, names)
        else:
            raise InputError(
                f"free: expected some of {', '.join((*GROUPS, 'hardware', *names))}; got {word!r}"
            )
    return found


def _levels(word: str, names: Sequence[str]) -> set[str]:
    """A name, or those of all levels of the network."""
    return {word} if word in names else {n for n in names if n.startswith(f"{word}[")}


def catalog_values(
    system: Cluster, model: Model, global_batch: float, tokens: float, devices: float
) -> dict[str, float]:
    """Value of every name for a system and a model."""
    chip, net = system.chip, system.network
    values = {
        "n_layers": model.n_layers,
        "d_model": model.d_model,
        "ff_ratio": ff_width(model) / model.d_model,
        "head_dim": value(model, "head_dim"),
    }
    values |= {"global_batch": global_batch, "tokens": tokens, "devices": devices}
    values |= {name: getattr(chip, name) for name in CHIP}
    for kind in ("bytes_per_s", "latency_s"):
        values |= {f"{kind}[{k}]": x for k, x in enumerate(np.asarray(getattr(net, kind)))}
    return {name: float(x) for name, x in values.items()}


def unknowns(
    values: Mapping[str, float], free: Sequence[str], bounds: Mapping[str, tuple[float, float]]
) -> Unknowns:
    """The vector's bounds: `bounds` where given, else the usual ones for what is freed, else the
    value itself.

    Raises:
      InputError: an unknown name, or bounds that are not positive and in order.
    """
    names = tuple(values)
    if wrong := [n for n in bounds if n not in names]:
        raise InputError(
            f"bounds: no unknown is called {', '.join(wrong)}; expected some of {', '.join(names)}"
        )
    chosen = freed(free, names)
    low, high = [], []
    for name, at in values.items():
        around = ABSOLUTE.get(name, (at / HARDWARE_RANGE, at * HARDWARE_RANGE))
        lo, hi = bounds.get(name, around) if name in chosen else (at, at)
        if not 0.0 < lo <= hi < np.inf:
            raise InputError(
                f"{name}: expected positive bounds, lower one first; got {lo:g} … {hi:g} "
                f"{unit_of(name)}"
            )
        low.append(np.log(lo))
        high.append(np.log(hi))
    return Unknowns(
        names=names, low=np.array(low), high=np.array(high), value=np.array(list(values.values()))
    )


class Fixed(struct.PyTreeNode, kw_only=True):
    """What sizes are applied to: the catalog's system and model, the bill, and how heads follow
    from the width.

    Attributes:
      head_share: n_heads · head_dim / d_model. own_heads: 1 = as many KV heads as heads, 0 = a
        fixed number of them.
    """

    system: Cluster
    model: Model
    bill: Bill
    head_share: Array
    own_heads: Array


def fixed(system: Cluster, model: Model, bill: Bill) -> Fixed:
    """`Fixed` of a catalog's system and model."""
    return Fixed(
        system=system,
        model=model,
        bill=bill,
        head_share=float(value(model, "n_heads") * value(model, "head_dim") / model.d_model),
        own_heads=float(value(model, "n_heads") == _kv_heads(model)),
    )


def shaped(x: dict[str, jax.Array], at: Fixed) -> Model:
    """The model of other sizes: `n_heads = share · h / e`, `f = ratio · h`; KV heads as many as
    heads, or as many as the catalog's."""
    heads = at.head_share * x["d_model"] / x["head_dim"]
    sizes = {"n_heads": heads, "head_dim": x["head_dim"], "d_ff": x["ff_ratio"] * x["d_model"]}
    if having(at.model, "n_kv_heads"):
        own, kept = at.own_heads, value(at.model, "n_kv_heads")
        sizes["n_kv_heads"] = own * heads + (1.0 - own) * kept
    whole = {"n_layers": x["n_layers"], "d_model": x["d_model"]}
    return sized(at.model.replace(order=()), **whole, **sizes)


def _kv_heads(model: Model) -> Array:
    """Heads of keys and values; as many as heads where mixers do not say [count]."""
    return value(model, "n_kv_heads", value(model, "n_heads"))


def ratios(x: dict[str, jax.Array], at: Fixed) -> dict[str, Array]:
    """Hardware over the catalog's, by the names of `bill.Shares`; geometric means over levels."""
    net, k = at.system.network, at.system.network.n_levels
    found: dict[str, Array] = {name: x[name] / getattr(at.system.chip, name) for name in CHIP}
    width = [jnp.log(x[f"bytes_per_s[{i}]"] / net.bytes_per_s[i]) for i in range(k)]  # type: ignore
    hops = [jnp.log(x[f"latency_s[{i}]"] / net.latency_s[i]) for i in range(k)]  # type: ignore
    found["inner"] = jnp.exp(width[0])
    found["outer"] = jnp.exp(sum(width[1:], start=jnp.zeros_like(width[0])) / max(k - 1, 1))
    found["latency"] = jnp.exp(sum(hops, start=jnp.zeros_like(hops[0])) / k)
    return found


class Device(NamedTuple):
    """A system of other sizes, with its price and power by the bill, and the area of its die
    [mm²]."""

    system: Cluster
    area_mm2: Array


def changed(x: dict[str, jax.Array], at: Fixed) -> dict[str, Any]:
    """Numbers of a system of other sizes that are not the catalog's: of the chip and the network,
    with what the bill says of price, power and area [mm²]."""
    chip, net, ratio = at.system.chip, at.system.network, ratios(x, at)
    watts = scaled(at.bill.watts, ratio)
    of_chip = {
        **{name: x[name] for name in CHIP},
        "attention_flops_per_s": chip.attention_flops_per_s * ratio["flops_per_s"],
        "exponentials_per_s": chip.exponentials_per_s * ratio["flops_per_s"],
        "price_per_s": chip.price_per_s * scaled(at.bill.price, ratio),
        "peak_watts": chip.peak_watts * watts,
        "idle_watts": chip.idle_watts * watts,
    }
    levels = {
        kind: jnp.stack([x[f"{kind}[{i}]"] for i in range(net.n_levels)])
        for kind in ("bytes_per_s", "latency_s")
    }
    area = at.bill.die_mm2 * scaled(at.bill.area, ratio)
    return {"chip": of_chip, "network": levels, "area_mm2": area}


def device(found: dict[str, Any], at: Fixed) -> Device:
    """The system with the numbers of `changed`."""
    chip = at.system.chip.replace(**found["chip"])
    network = at.system.network.replace(**found["network"])
    return Device(at.system.replace(chip=chip, network=network), found["area_mm2"])


def equipped(x: dict[str, jax.Array], at: Fixed) -> Device:
    """The system of other sizes: chip, network, and what the bill says of price, power and area."""
    return device(changed(x, at), at)
