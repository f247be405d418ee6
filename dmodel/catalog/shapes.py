"""Models as data: the form in which the catalog holds a model's blocks, and plain decoders from
their columns."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from typing import Any

import jax
import numpy as np

from dmodel.blocks import KINDS, Attention, Dense, Experts
from dmodel.catalog.loader import nearest
from dmodel.errors import InputError
from dmodel.records import NONE, OF_MODEL, Model
from dmodel.types import number

Shape = Mapping[str, Any]

SIDES = ("mixer", "feed")


def model_of(shape: Shape, seq_len: float | None = None) -> Model:
    """The model that a shape says, float64 scalars.

    A shape holds sizes of the model by name and `blocks`, a list of `{"layers": 61, "mixer":
    {"kind": "latent", …}, "feed": {"kind": "experts", …}}`; a mixer or a feed that a block lacks it
    does not have. `order` says which block each layer is, run by run ("0x3 1x58"; without it
    layers of several blocks are mixed evenly), `further` of which blocks a head of further tokens
    is made (by default one of the last). A shape without blocks is a plain decoder's (`decoder`).

    Raises:
      InputError: an unknown kind or size, a size that is missing, a bad sequence length.
    """
    own: dict[str, Any] = {**shape} | ({} if seq_len is None else {"seq_len": seq_len})
    if not 0.0 < number(own.get("seq_len")) < math.inf:
        raise InputError(
            f"seq_len: expected a positive number of tokens, got {own.get('seq_len')!r}"
        )
    if "blocks" not in own:
        return decoder(**own)
    blocks = own.pop("blocks")
    return assembled(own, blocks, _order(own.pop("order", ""), blocks), own.pop("further", None))


def assembled(
    sizes: Shape,
    blocks: Sequence[Shape],
    order: tuple[int, ...] = (),
    further: Sequence[int] | None = None,
) -> Model:
    """A model of blocks in the form of `model_of`; parts that are equal are one.

    Args:
      sizes: of the model, `n_layers` not among them. order: block of each layer. further: blocks of
        a head of further tokens; None = the last one.
    """
    layers = [float(block["layers"]) for block in blocks]
    total = sum(layers)
    (mixers, first), (feeds, second) = (_parts([b.get(side) for b in blocks]) for side in SIDES)
    mtp = [len(blocks) - 1] if further is None else list(further)
    whole = Model(
        **{name: value for name, value in sizes.items() if name != "n_layers"},
        n_layers=total,
        shares=tuple(n / total for n in layers),
        further=tuple(mtp.count(k) for k in range(len(blocks))),
        mixers=mixers,
        feeds=feeds,
        pairs=tuple(zip(first, second, strict=True)),
        order=order,
    )
    return jax.tree.map(np.float64, whole)


def _parts(said: Sequence[Shape | None]) -> tuple[tuple[Any, ...], list[int]]:
    """Parts of one side of blocks, those that are equal once; and the index of each block's."""
    found: dict[str, Any] = {}
    places = []
    for one in said:
        key = repr(sorted(one.items())) if one else ""
        if one and key not in found:
            found[key] = part_of(one)
        places.append(list(found).index(key) if one else NONE)
    return tuple(found.values()), places


def _kind_of(said: Shape) -> Any:
    """The record of a part's kind."""
    kind = KINDS.get(said.get("kind", ""))
    if kind is None:
        close = nearest(str(said.get("kind")), list(KINDS))
        hint = f" (nearest: {', '.join(close)})" if close else ""
        raise InputError(
            f"kind of block: expected one of {', '.join(KINDS)}, got {said.get('kind')!r}{hint}"
        )
    return kind


def part_of(said: Shape) -> Any:
    """A mixer or a feed-forward part by its kind and sizes.

    Raises:
      InputError: an unknown kind, an unknown size, or one that is missing.
    """
    kind = _kind_of(said)
    sizes = {name: np.float64(value) for name, value in said.items() if name != "kind"}
    fields = kind.__dataclass_fields__
    if unknown := [name for name in sizes if name not in fields]:
        raise InputError(
            f"{said['kind']}: unknown {', '.join(unknown)}; expected some of {', '.join(fields)}"
        )
    needed = [n for n in kind.COUNTED if fields[n].default is MISSING]
    if missing := [n for n in needed if n not in sizes]:
        raise InputError(f"{said['kind']}: {', '.join(missing)} missing")
    return jax.tree.map(np.float64, kind(**sizes))


def _order(text: str, blocks: Sequence[Shape]) -> tuple[int, ...]:
    """Block of each layer, from runs such as "0x3 1x58"; one block needs none."""
    if not text:
        return ()
    found: list[int] = []
    for run in text.split():
        kind, _, many = run.partition("x")
        found += [int(kind)] * int(many or 1)
    layers = [int(block["layers"]) for block in blocks]
    if [found.count(k) for k in range(len(blocks))] != layers or set(found) - {*range(len(layers))}:
        raise InputError(f"order: expected the layers of each block, {layers}; got {text!r}")
    return tuple(found)


def order_text(order: Sequence[int]) -> str:
    """The runs that `model_of` reads."""
    runs = re.findall(r"(\d+,)(\1*)", "".join(f"{kind}," for kind in order))
    counted = ((one[:-1], 1 + rest.count(",")) for one, rest in runs)
    return " ".join(kind if many == 1 else f"{kind}x{many}" for kind, many in counted)


def shape_of(model: Model) -> dict[str, Any]:
    """The shape of a model of plain numbers, as `model_of` reads it; sizes that are as when nothing
    is said are left out."""
    found: dict[str, Any] = {}
    for name in OF_MODEL:
        value, field = float(getattr(model, name)), Model.__dataclass_fields__[name]
        if name != "n_layers" and value != field.default:
            found[name] = _shown(value)
    found["blocks"] = [
        {"layers": _shown(round(float(block.layers), 9))}
        | {
            side: written(part)
            for side, part in zip(SIDES, block[:2], strict=True)
            if part is not None
        }
        for block in model.blocks
    ]
    if model.order:
        found["order"] = order_text(model.order)
    further = [k for k, times in enumerate(model.further) for _ in range(int(times))]
    if further != [len(model.pairs) - 1]:
        found["further"] = further
    return found


def written(part: Any) -> dict[str, Any]:
    """A part's kind and the sizes that are not as when nothing is said."""
    fields = part.__dataclass_fields__
    sizes = {n: float(getattr(part, n)) for n in fields}
    return {"kind": part.KIND} | {n: _shown(x) for n, x in sizes.items() if x != fields[n].default}


def _shown(value: float) -> float | int:
    return int(value) if value == int(value) else value


def decoder(
    *,
    n_layers: float,
    d_model: float,
    d_ff: float,
    n_heads: float,
    n_kv_heads: float,
    head_dim: float,
    vocab: float,
    seq_len: float,
    gated_mlp: float = 0.0,
    n_experts: float = 1.0,
    top_k: float = 1.0,
    **more: float,
) -> Model:
    """A plain decoder, all layers alike: attention, and an MLP, or routed experts where there are
    several.

    Args:
      d_ff: width of the MLP, or of an expert [count]. more: other sizes of the model, or of its two
        parts, by name.

    >>> from dmodel.counts import parameters
    >>> sizes = {"n_layers": 2, "d_model": 64, "d_ff": 256, "vocab": 100, "seq_len": 32}
    >>> int(parameters(decoder(**sizes, n_heads=4, n_kv_heads=4, head_dim=16)))
    111424
    """
    mixer = {"kind": "attention", "n_heads": n_heads, "n_kv_heads": n_kv_heads}
    feed = {"kind": "dense", "d_ff": d_ff, "gated_mlp": gated_mlp}
    if n_experts > 1.0:
        feed |= {"kind": "experts", "n_experts": n_experts, "top_k": top_k}
    own = {n: x for n, x in more.items() if n in OF_MODEL}
    parts: list[dict[str, Any]] = [mixer | {"head_dim": head_dim}, feed]
    for part, kind in zip(parts, (Attention, Experts if n_experts > 1.0 else Dense), strict=True):
        fields = kind.__dataclass_fields__
        part |= {n: x for n, x in more.items() if n in fields and n not in own}
    taken = {*own, *parts[0], *parts[1]}
    if unknown := [n for n in more if n not in taken]:
        raise InputError(f"{', '.join(unknown)}: a plain decoder has no such size")
    sizes = {"d_model": d_model, "vocab": vocab, "seq_len": seq_len, **own}
    return assembled(sizes, [{"layers": n_layers, "mixer": parts[0], "feed": parts[1]}])
