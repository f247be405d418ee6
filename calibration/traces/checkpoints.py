"""What a stack's recomputation does again in the backward pass: whole layers, or parts of them by
the policy of a recipe; and what of the rest waits in the host's memory. Facts about software, each
with its source."""

from __future__ import annotations

import re

from calibration.traces.again import Again
from calibration.traces.modules import NOTED_MODULES, by_modules, layers_in_host_memory, of_modules
from calibration.traces.recipes import TITAN, XLA
from calibration.traces.schema import base_precision
from calibration.traces.submissions import Kept
from calibration.traces.table import Row
from dmodel.profiles import family

DOTS = ("qkv", "out", "up", "down")
"""Results of all products of a layer."""

POLICIES = {
    "minimal": DOTS,
    "minimal_offloaded": DOTS,
    "minimal_flash": (*DOTS, "core"),
    "minimal_with_context": (*DOTS, "core"),
    "save_dot_with_context_except_mlp": ("qkv", "core", "out"),
    "save_dot_except_mlpwi": ("qkv", "out", "down"),
    "save_dot_except_mlp": ("qkv", "out"),
    "save_qkv_proj": ("qkv",),
    "qkv_proj_offloaded": ("qkv",),
    "save_out_proj": ("out",),
}
"""What MaxText's policies of that name keep of a layer beside its input, on the device or, where
they end so, in the host's memory (its `get_remat_policy`; `minimal` keeps products without batch
dimensions, which the core of attention has)."""

OFFLOADED = "_offloaded"
"""How the names of those end whose results wait in the host's memory, beside layers' inputs on the
device."""

NAMED = re.compile(r"\bremat(?:erialization|_policy)?[ =:]+(\w+)")
"""How notes name one of these."""

KEPT = {
    "q, k, v": "qkv",
    "attention outputs": "core",
    "attention and mlp outputs": "core",
    "results of the output projection": "out",
    "mlp outputs": "down",
}
"""How notes say, in any case, what a policy of a recipe's own keeps (Google's for TPUs:
`remat_policy=custom`; `context`, which is the core's result with what its backward pass needs,
`out_proj` and `mlpwo`)."""

HOST = re.compile(r"(?:^|; |: )([^;:]*?) kept in host memory")
"""How notes say what waits there: layers' inputs by that name, results by those of `KEPT`, or all
that some layers keep."""

OF_LAYERS = re.compile(r"activations of (\d+) of ([1-9]\d*) layers$")
"""How notes say the last of these."""

REST = re.compile(r"(?:^|; )([^;]*?) kept\b[^;]*, the rest recomputed")


def _policy(note: str) -> str:
    """The policy of `POLICIES` that a note names; "" where it names none."""
    return next((found[1] for found in NAMED.finditer(note) if found[1] in POLICIES), "")


def kept_by(note: str) -> tuple[str, ...] | None:
    """What a note says that a layer keeps beside its input; None where it says nothing of the
    kind."""
    if name := _policy(note):
        return POLICIES[name]
    if found := REST.search(note):
        return _parts(found[1])
    return None


def _parts(words: str) -> tuple[str, ...]:
    """What of `KEPT` a note names, each once."""
    return tuple(dict.fromkeys(part for said, part in KEPT.items() if said in words.lower()))


def in_host_memory(note: str) -> tuple[float, float]:
    """Whether a note says that layers' inputs, and all else that layers keep, wait in host memory:
    0 or 1 each, or a share of both."""
    found = HOST.search(note)
    if not found:
        return 0.0, float(_policy(note).endswith(OFFLOADED))
    words = found[1].strip().lower()
    if some := OF_LAYERS.search(words):
        share = min(int(some[1]) / int(some[2]), 1.0)
        return share, share
    return float("layer input" in words), float(bool(_parts(words)))


def by_policy(keeps: tuple[str, ...], experts: float, known: str) -> Again:
    """What is done again of a layer that keeps `keeps`: all that its backward pass reads and that
    is not kept, so not the last product,
    but of experts, whose results are weighted. What streams all is: XLA leaves only what nothing
    reads. known: how, in words."""
    said = (
        f"recompute: a layer keeps {', '.join(keeps) or 'nothing'} beside its input, by {known}, "
        "and does the rest again"
    )
    qkv, core, out, up, down = (
        float(part not in keeps) for part in ("qkv", "core", "out", "up", "down")
    )
    products = Again(
        queries_values=qkv,
        keys=qkv,
        latents=qkv,
        out=out,
        into=up,
        gate=up,
        back=down * (experts > 1.0),
    )
    return products._replace(attention=core, streams=1.0, said=(said,))


def by_operator(experts: float) -> Again:
    """What torchtitan's selective checkpoints do again by operator, as its presets ask for
    (`selective_ac_option` op; `_save_list` and `_get_custom_policy` of its `parallelize_llama.py`):
    attention and every second product are kept, counted through a layer, so the products of keys,
    of attention's output and of the second matrix into the MLP run again, and all that streams.
    Experts' grouped products are on no list of what is kept."""
    said = (
        "selective recompute by operator: every second product of a layer is done again, and what "
        "streams"
    )
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


ONE_IN = re.compile(r"\b(?:every (second) layer|1 of ([1-9]\d*) layers) recomputed")
"""How notes give the share of layers recomputed."""


def _noted(note: str) -> float:
    found = ONE_IN.search(note)
    return 1.0 / int(found[2] or 2) if found else 0.0


def recomputed(
    kind: str, stack: str, *, note: str = "", experts: float = 1.0, fused: bool = True
) -> Again:
    """What is done again, by what a stack means with a word of the column, or by the note (a share
    of the layers, a policy, names
    of `modules.MODULES`). Blank: nothing, until the rule decides.

    `selective` is the core of attention alone in Megatron's code base, which runs it again fused or
    not (`checkpoint_core_attention`); stacks that XLA compiles keep all products (`minimal`);
    torchtitan's goes by operator. The programs of `dmodel collect` have fused attention that never
    keeps scores.

    Args:
      experts: routed experts of a layer [count]. fused: whether attention is.
    """
    name = stack.lower()
    if kind in ("none", "full"):
        return Again(float(kind == "full"))
    if share := _noted(note):
        return Again(
            share, said=(f"recompute {kind or 'blank'}: {share:.2g} of the layers, by the note",)
        )
    if (keeps := kept_by(note)) is not None:
        return by_policy(keeps, experts, "the note's policy")
    if found := NOTED_MODULES.search(note):
        return of_modules(found[1].split(", "), "the note", experts)
    if kind == "selective" and family(name) == TITAN:
        return by_operator(experts)
    collected = name.startswith("dmodel-collect")
    if kind == "selective" and name.startswith(XLA) and not collected:
        return by_policy(DOTS, experts, "the policy `minimal`")
    return Again(attention=float(kind == "selective" and not (fused and collected)))


def offloaded(again: Again, note: str, share: float) -> Again:
    """What is done again, with what of the rest waits in the host's memory by a note, or for a
    share of the layers by a recipe."""
    inputs, others = in_host_memory(note)
    if inputs or others:
        what = " and ".join(
            name for name, told in (("layers' inputs", inputs), ("results", others)) if told
        )
        return again._replace(
            inputs=inputs,
            others=others,
            said=(*again.said, f"{what} that wait for the backward pass: in host memory"),
        )
    if share:
        said = (
            f"activations of {share:.0%} of the layers wait in host memory, as the stack's recipe "
            "has it"
        )
        return again._replace(inputs=share, others=share, said=(*again.said, said))
    return again


ENDS_EARLY = (
    "llm-foundry",
    "torchtitan",
    "kempnerforge",
    "automodel",
    "fms-fsdp",
    "dmodel-collect",
    *XLA,
)
"""Beginnings of stacks whose full recomputation ends once the backward pass has what it needs:
PyTorch's checkpoints that do not re-enter autograd (`use_reentrant=False`;
`torch.utils.checkpoint.set_checkpoint_early_stop`, on by default from 2.1) around layers of plain
PyTorch, which save a product's inputs before they compute it; and XLA, which drops what nothing
reads."""

TO_THE_END = ("llm-foundry/pure",)
"""Variants of these that ran on a PyTorch before 2.1: LLM Foundry's tables in pure 16 bits (its
benchmark's image has 1.13). With twelve rows of the stack, predictions of its large models, all
recomputed, were 8 to 11 % too slow beside its small ones, but not these."""


def recomputes_last(
    stack: str, experts: float, trainable: float = 1.0
) -> tuple[float, tuple[str, ...]]:
    """`Software.recompute_last` of a stack, 0 or 1, said in words where it is 0. The last product's
    result is needed in every stack where experts' results are weighted, as the gradients of the
    weights read them, and where adapters come after a frozen product."""
    name = stack.lower()
    early = (
        name.startswith(ENDS_EARLY)
        and not name.startswith(TO_THE_END)
        and experts <= 1.0
        and trainable == 1.0
    )
    return float(not early), (
        "recomputation ends before the last product of a layer: the stack's checkpoints",
    ) if early else ()


def end_of(row: Row) -> tuple[float, tuple[str, ...]]:
    """Where recomputation of a row ends; see `recomputes_last`."""
    return recomputes_last(
        row.stack, row.number("n_experts") or 1.0, float("lora" not in row.flags)
    )


def of_row(row: Row, run: Kept | None, assumed: list[str]) -> tuple[Again, float]:
    """What is done again in a row, and `Software.recompute_last`; blank: as in the run's
    configuration (`submissions.kept`) or the recipe (`by_modules`), else nothing, until the rule
    decides."""
    known = {
        "note": row.text("note"),
        "experts": row.number("n_experts") or 1.0,
        "fused": row.text("attention") != "none",
    }
    again = recomputed(row.text("recompute"), row.stack, **known)
    job = (
        row.stack,
        row.text("model"),
        row.accelerator,
        base_precision(row.text("precision")) or "bf16",
    )
    again = again._replace(narrow=run.narrow) if run else again
    if not row.text("recompute"):
        tuned = "lora" in row.flags or row.text("model").lower().endswith("-sft")
        again = again._replace(layers=run.recomputed) if run else again
        if not (tuned or again.ends or again.said):
            again = by_modules(*job, row.known("n_layers") / (row.number("pp") or 1.0)) or again
    as_recipe = row.text("recompute") in ("", "none") and "lora" not in row.flags
    share = (
        layers_in_host_memory(*job, row.number("zero_stage") or 0.0, row.number("pp") or 1.0)
        if as_recipe
        else 0.0
    )
    again = offloaded(again, row.text("note"), share)
    last, said = end_of(row)
    assumed.extend((*again.said, *said) if again.ends else again.said)
    return again, last
