"""What a layer does again in the backward pass, and what of the rest waits in host memory: from
words to shares of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dmodel.blocks.part import LAST, site
from dmodel.cost import memory
from dmodel.errors import InputError
from dmodel.question import Assumption, Question
from dmodel.records import Model, Plan, having, value
from dmodel.tables import layer, layer_keeps, summed, times
from dmodel.types import Array, larger, taken

RESULTS = ("qkv", "core", "out", "up", "down")
"""Results of a layer that a policy may keep: queries, keys and values; attention's core; its output
projection; products into the MLP, and out of it."""

PRODUCTS = ("qkv", "out", "up", "down")
"""Results of all products of a layer."""

MODULES = {
    "core_attn": {"attention": 1.0},
    "mla_up_proj": {"latents": 1.0},
    "mlp": {"dense": 1.0},
    "moe": {"experts": 1.0},
    "layernorm": {"norms": 1.0},
    "moe_act": {"activation": 1.0},
}
"""What Megatron-Core does again for names of `recompute_modules` (its `transformer_config.py`).

Of norms and experts' activation only the bytes that are kept no more are counted, not the time they
take again: fits of all rows are less likely with it.
"""

SELECTIVE = ("core", "operator", "products", "nothing")
"""What stacks mean with selective recomputation: the core of attention; every second product of a
layer; all but the products; nothing, where fused attention keeps no scores."""

CHOICES = ("recompute_layers", "recompute_keeps", "recompute_modules")
"""Settings that say what is done again beside the column `recompute`."""


WHOLE = ("none", "full")
"""Words of the column `recompute` that leave nothing open."""


class Again(NamedTuple):
    """What is done again of a layer in the backward pass: 0, 1 or a share each, numbers or arrays.

    Attributes:
      layers: share of the layers that are done again in full; the rest is about the others.
      attention: the core. queries_values, keys: their products, or for latents what these come
        from. latents: products from latents. out: that of attention's output.
      into, gate, back: into MLPs and experts, the gate's, and out of them.
      dense, experts: all of that, in dense layers' MLPs alone, and in routed and shared experts.
      norms, activation: those before products, and that of experts: bytes alone.
      narrow: 1 where what MLPs keep for their activation is held in half the bytes.
      streams: kernels that stream. last_kept: 1 where the last product's result is kept though
        nothing reads it. inputs, others: what of a layer's input, and of all else that it keeps,
        waits in host memory. said: how it is known.
    """

    layers: Array = 0.0
    attention: Array = 0.0
    queries_values: Array = 0.0
    keys: Array = 0.0
    latents: Array = 0.0
    out: Array = 0.0
    into: Array = 0.0
    gate: Array = 0.0
    back: Array = 0.0
    dense: Array = 0.0
    experts: Array = 0.0
    norms: Array = 0.0
    activation: Array = 0.0
    narrow: Array = 0.0
    streams: Array = 0.0
    last_kept: Array = 0.0
    inputs: Array = 0.0
    others: Array = 0.0
    said: tuple[str, ...] = ()


def by_policy(keeps: Sequence[str], experts: float) -> Again:
    """What is done again of a layer that keeps some of `RESULTS`: all that its backward pass reads
    and that is not kept; so not the last product, but of experts, whose results are weighted."""
    shown = ", ".join(keeps) or "nothing"
    said = f"recompute: a layer keeps {shown} beside its input and does the rest again"
    qkv, core, out, up, down = (float(part not in keeps) for part in RESULTS)
    return Again(
        attention=core,
        queries_values=qkv,
        keys=qkv,
        latents=qkv,
        out=out,
        into=up,
        gate=up,
        back=down * (experts > 1.0),
        streams=1.0,
        said=(said,),
    )


def by_operator(experts: float) -> Again:
    """Attention and every second product are kept, counted through a layer, so keys, attention's
    output and the second matrix into the MLP run again, and all that streams (torchtitan's
    `selective_ac_option` op). Experts' grouped products are on no list of what is kept."""
    said = "selective recompute by operator: every second product of a layer, and what streams"
    mixture = float(experts > 1.0)
    return Again(
        keys=1.0,
        out=1.0,
        into=mixture,
        gate=1.0,
        back=mixture,
        streams=1.0,
        last_kept=1.0 - mixture,
        said=(said,),
    )


def of_modules(names: Sequence[str], experts: float) -> Again:
    """What is done again for names of modules; those that are not counted are said, experts' among
    them where there are none."""
    there = _modules(experts)
    counted = [name for name in names if name in there]
    others = [name for name in names if name not in there]
    parts: dict[str, Any] = {}
    for name in counted:
        parts |= there[name]
    return Again(**parts, said=_said_of_modules(counted, others, tuple(there)))


def _said_of_modules(
    counted: Sequence[str], others: Sequence[str], known: Sequence[str]
) -> tuple[str, ...]:
    """Which modules are done again, and which of those asked for are not counted."""
    said = [f"recompute of modules {', '.join(counted)}"] if counted else []
    if others:
        every = ", ".join(known)
        said.append(f"recompute of {', '.join(others)}: not counted; counted are {every}")
    return tuple(said)


def _modules(experts: float) -> dict[str, dict[str, float]]:
    """`MODULES` that a model has: those of experts in a mixture alone."""
    return {n: p for n, p in MODULES.items() if experts > 1.0 or not n.startswith("moe")}


def _selective(way: str, experts: float) -> Again:
    ways = {
        "operator": lambda: by_operator(experts),
        "products": lambda: by_policy(PRODUCTS, experts),
        "core": lambda: Again(attention=1.0),
        "nothing": Again,
    }
    return ways[way]()


def chosen(question: Question, settings: Mapping[str, Any], experts: float) -> Again:
    """What is done again, by the column and the settings; nothing where both are open.

    Raises:
      InputError: the question says two of `CHOICES`, or one beside `recompute` none or full.
    """
    kind = question.text("recompute")
    given = [name for name in CHOICES if name in question.settings]
    _refuse_contradiction(kind, given)
    if kind in WHOLE:
        return Again(float(kind == "full"))
    name = given[0] if given else _by_stack(question, settings)
    if name:
        return _by_setting(name, settings[name], experts)
    if kind == "selective":
        return _selective(str(settings.get("selective", "core")), experts)
    return Again()


def _refuse_contradiction(kind: str, given: Sequence[str]) -> None:
    """Refuse two ways to say what is done again."""
    ways = [*([f"recompute={kind}"] if kind in WHOLE else []), *given]
    if given and len(ways) > 1:
        both = " and ".join(ways)
        raise InputError(f"{both}: these say different things; say one of them")


def _by_stack(question: Question, settings: Mapping[str, Any]) -> str:
    """The first of `CHOICES` that the stack says; empty where the column decides."""
    if question.text("recompute") and "recompute_policy" not in question.settings:
        return ""
    return next((name for name in CHOICES if settings.get(name)), "")


def _by_setting(name: str, value: Any, experts: float) -> Again:
    if name == "recompute_layers":
        return _of_layers(float(value))
    listed = [value] if isinstance(value, str) else value
    parts = [part for part in listed if part != "nothing"]
    return by_policy(parts, experts) if name == "recompute_keeps" else of_modules(parts, experts)


def _of_layers(share: float) -> Again:
    """A share of the layers done again in full."""
    return Again(share, said=(f"recompute: {share:.2g} of the layers",) if share else ())


def again(
    question: Question, settings: Mapping[str, Any], experts: float, said: list[Assumption]
) -> Again:
    """What is done again, and what of the rest waits in host memory."""
    found = chosen(question, settings, experts)
    found = found._replace(narrow=float(settings.get("narrow_activations", 0.0)))
    inputs, others = _offloaded(question, settings)
    said.extend(Assumption(text, about=("recompute",)) for text in found.said)
    parts = (("layers' inputs", inputs), ("results", others))
    waits = " and ".join(f"{share:.0%} of {what}" for what, share in parts if share)
    if waits:
        text = f"{waits} kept for the backward pass wait in host memory"
        said.append(Assumption(text, about=("offload",)))
    return found._replace(inputs=inputs, others=others)


OFFLOADS = ("offload", "offload_inputs", "offload_results")
"""Settings that say what waits in host memory: of both, of inputs, of all else."""


def _offloaded(question: Question, settings: Mapping[str, Any]) -> tuple[float, float]:
    """Shares of layers' inputs, and of all else that they keep, that wait in host memory; where the
    question says any of it, its stack says none."""
    said = question.settings if set(OFFLOADS) & set(question.settings) else settings
    both = said.get("offload", 0.0)
    return float(said.get("offload_inputs", both)), float(said.get("offload_results", both))


def stacked(parts: Sequence[Again]) -> Again:
    """What is done again in each of several cases, `[n]`."""
    names = [name for name in Again._fields if name != "said"]
    found: dict[str, Any] = {n: np.array([getattr(p, n) for p in parts], float) for n in names}
    return Again(**found)


def redone(again: Again, model: Model, plan: Plan) -> Plan:
    """The plan with what is done again as shares: of the layers, of the core, of the FLOPs of
    products, and of what streams; and with what of the bytes kept is offloaded."""
    products = layer(model, plan).products
    flops: Any = taken(products.flops)

    def of(*kinds: str) -> Any:
        return taken(products.of(flops, *kinds))

    heads, groups = (value(model, n, 1.0) for n in ("n_heads", "n_kv_heads"))
    groups = heads if not having(model, "n_kv_heads") else groups
    keys = groups / larger(heads + 2.0 * groups, 1.0)
    gated = value(model, "gated_mlp", 0.0)
    gate = gated / (1.0 + gated)
    up, down = of("up", "shared_up", "expert_up"), of(*LAST)
    whole = flops[:-1].sum(0)
    done = of("first") * (keys * again.keys + (1.0 - keys) * again.queries_values)
    done = done + of("latents") * again.latents + of("out") * again.out
    done = done + up * (gate * again.gate + (1.0 - gate) * again.into) + down * again.back
    done = done + again.dense * of("up", "down") + again.experts * of("shared_up", "shared_down")
    done = done + again.experts * of("expert_up", "expert_down")
    after = plan.having(
        recompute_layers=again.layers,
        recompute_attention=again.attention,
        recompute_products=done / whole,
        recompute_elementwise=again.streams,
        last_kept=again.last_kept,
    )
    forgotten = _forgotten(again, model, after)
    return offloading(again, model, after.having(recompute_bytes=forgotten))


def _forgotten(again: Again, model: Model, plan: Plan) -> Array:
    """Share of a layer's bytes that modules which are done again keep no more [1].

    Queries, keys and values from latents, dense layers' MLPs, experts with the shared ones, outputs
    of norms, results of experts' activation; 0 where what streams is done again too, which
    `memory.kept_result_bytes` counts.
    """
    kept, latent = layer_keeps(model, plan), _kept_from_latents(model, plan)
    narrow = 0.5 * again.narrow * (1.0 - again.dense)
    gone = again.latents * latent + (again.dense + narrow) * kept.dense
    gone = gone + (again.experts + narrow) * kept.shared + again.norms * kept.norms
    activated = larger(again.experts, again.activation) * kept.activated
    gone = gone + again.experts * kept.experts + activated
    return taken((1.0 - again.streams) * gone / kept.total)


def _kept_from_latents(model: Model, plan: Plan) -> Array:
    """Bytes of queries, keys and values that come from latents [byte]."""
    at = site(model, plan)
    return summed(
        times(weight, part.keeps(at).queries)
        for part, weight in zip(model.parts, model.weights, strict=True)
        if "kv_rank" in part.__dataclass_fields__
    )


def offloading(again: Again, model: Model, plan: Plan) -> Plan:
    """The plan with what of the bytes that its layers keep is offloaded."""
    parts = (memory.layer_input_bytes, memory.layer_activation_bytes)
    inputs, kept = (taken(f(model, plan)) for f in parts)
    return plan.having(offload=again.others + (again.inputs - again.others) * inputs / kept)
