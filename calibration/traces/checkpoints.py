"""What a stack's recomputation does again in the backward pass: whole layers, or parts of them by the policy of a recipe; and what of the
rest waits in the host's memory. Facts about software, each with its source."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibration.traces.recipes import BRIDGE, NEMO, TITAN, XLA
from calibration.traces.schema import base_precision
from calibration.traces.submissions import Kept
from calibration.traces.table import Row
from dmodel import counts
from dmodel.catalog.loader import fold
from dmodel.cost import memory
from dmodel.plan import Plan
from dmodel.profiles import family
from dmodel.types import Array
from dmodel.workload import Transformer


class Again(NamedTuple):
    """What is done again of a layer in the backward pass: 0, 1 or a share each, numbers or arrays of them.

    Attributes:
      layers: share of the layers that are done again in full; the rest is about the others. attention: the core.
      queries_values, keys: their products, or for latents what these come from. latents: products from latents. out: that of attention's
        output. into, gate, back: into the MLP or experts, the gate's, and out of them. dense: MLPs of dense layers beside experts.
      streams: kernels that stream. last_kept: 1 where the last product's result is kept though nothing reads it. inputs, others: what of a
        layer's input, and of all else that it keeps, waits in the host's memory. said: how it is known, in words.
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
    streams: Array = 0.0
    last_kept: Array = 0.0
    inputs: Array = 0.0
    others: Array = 0.0
    said: tuple[str, ...] = ()

    @property
    def ends(self) -> bool:
        """Whether so much is done again that its end matters."""
        return bool(self.layers > 0.0 or self.streams > 0.0)


def stacked(parts: Sequence[Again]) -> Again:
    """What is done again in each of several rows, `[row]`."""
    return Again(*(np.array(values, float) for values in zip(*(part[:-1] for part in parts), strict=True)))


def redone(again: Again, model: Transformer, plan: Plan) -> Plan:
    """The plan with what is done again as shares: of the layers, of the core, of the FLOPs of products, and of what streams; and with what
    of the bytes kept is offloaded."""
    flops = np.asarray(counts.matmuls(model, plan).flops)[:-1]
    heads, groups = np.asarray(model.n_heads), np.asarray(model.n_kv_heads)
    keys = groups / np.maximum(heads + 2.0 * groups, 1.0)
    gate = np.asarray(model.gated_mlp) / (1.0 + np.asarray(model.gated_mlp))
    wide, shared = model.n_dense_layers * model.d_ff_dense, (model.n_layers - model.n_dense_layers) * model.n_shared_experts * model.d_ff
    dense = np.asarray(wide / np.maximum(wide + shared, 1.0)) * again.dense
    up, down = flops[3] + flops[5], flops[4] + flops[6]
    products = flops[0] * (keys * again.keys + (1.0 - keys) * again.queries_values) + flops[1] * again.latents + flops[2] * again.out
    products = products + up * (gate * again.gate + (1.0 - gate) * again.into) + down * again.back + dense * (flops[3] + flops[4])
    done = plan.replace(
        recompute_layers=again.layers,
        recompute_attention=again.attention,
        recompute_products=products / flops.sum(0),
        recompute_elementwise=again.streams,
        last_kept=again.last_kept,
    )
    return offloading(again, model, done)


def offloading(again: Again, model: Transformer, plan: Plan) -> Plan:
    """The plan with what of the bytes that its layers keep is offloaded."""
    inputs, kept = (np.asarray(f(model, plan)) for f in (memory.layer_input_bytes, memory.layer_activation_bytes))
    return plan.replace(offload=again.others + (again.inputs - again.others) * inputs / kept)


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
"""What MaxText's policies of that name keep of a layer beside its input, on the device or, where they end so, in the host's memory (its
`get_remat_policy`; `minimal` keeps products without batch dimensions, which the core of attention has)."""

OFFLOADED = "_offloaded"
"""How the names of those end whose results wait in the host's memory, beside layers' inputs on the device."""

NAMED = re.compile(r"\bremat(?:erialization|_policy)?[ =:]+(\w+)")
"""How notes name one of these."""

KEPT = {
    "q, k, v": "qkv",
    "attention outputs": "core",
    "attention and mlp outputs": "core",
    "results of the output projection": "out",
    "mlp outputs": "down",
}
"""How notes say, in any case, what a policy of a recipe's own keeps (Google's for TPUs: `remat_policy=custom`; `context`, which is the
core's result with what its backward pass needs, `out_proj` and `mlpwo`)."""

HOST = re.compile(r"(?:^|; |: )([^;:]*?) kept in host memory")
"""How notes say what waits there: layers' inputs by that name, results by those of `KEPT`, or all that some layers keep."""

OF_LAYERS = re.compile(r"activations of (\d+) of ([1-9]\d*) layers$")
"""How notes say the last of these."""

REST = re.compile(r"(?:^|; )([^;]*?) kept\b[^;]*, the rest recomputed")


def kept_by(note: str) -> tuple[str, ...] | None:
    """What a note says that a layer keeps beside its input; None where it says nothing of the kind."""
    if found := NAMED.search(note):
        return POLICIES.get(found[1])
    if found := REST.search(note):
        return _parts(found[1])
    return None


def _parts(words: str) -> tuple[str, ...]:
    """What of `KEPT` a note names, each once."""
    return tuple(dict.fromkeys(part for said, part in KEPT.items() if said in words.lower()))


def in_host_memory(note: str) -> tuple[float, float]:
    """Whether a note says that layers' inputs, and all else that layers keep, wait in host memory: 0 or 1 each, or a share of both."""
    named, found = NAMED.search(note), HOST.search(note)
    if not found:
        return 0.0, float(bool(named and named[1].endswith(OFFLOADED)))
    words = found[1].strip().lower()
    if some := OF_LAYERS.search(words):
        share = min(int(some[1]) / int(some[2]), 1.0)
        return share, share
    return float("layer input" in words), float(bool(_parts(words)))


def by_policy(keeps: tuple[str, ...], experts: float, known: str) -> Again:
    """What is done again of a layer that keeps `keeps`: all that its backward pass reads and that is not kept, so not the last product,
    but of experts, whose results are weighted. What streams all is: XLA leaves only what nothing reads. known: how, in words."""
    said = f"recompute: a layer keeps {', '.join(keeps) or 'nothing'} beside its input, by {known}, and does the rest again"
    qkv, core, out, up, down = (float(part not in keeps) for part in ("qkv", "core", "out", "up", "down"))
    products = Again(queries_values=qkv, keys=qkv, latents=qkv, out=out, into=up, gate=up, back=down * (experts > 1.0))
    return products._replace(attention=core, streams=1.0, said=(said,))


def by_operator(experts: float) -> Again:
    """What torchtitan's selective checkpoints do again by operator, as its presets ask for (`selective_ac_option` op; `_save_list` and
    `_get_custom_policy` of its `parallelize_llama.py`): attention and every second product are kept, counted through a layer, so the
    products of keys, of attention's output and of the second matrix into the MLP run again, and all that streams. Experts' grouped products
    are on no list of what is kept."""
    said = "selective recompute by operator: every second product of a layer is done again, and what streams"
    mixture = float(experts > 1.0)
    return Again(keys=1.0, out=1.0, into=mixture, gate=1.0, back=mixture, streams=1.0, last_kept=1.0 - mixture, said=(said,))


ONE_IN = re.compile(r"\b(?:every (second) layer|1 of ([1-9]\d*) layers) recomputed")
"""How notes give the share of layers recomputed."""


def _noted(note: str) -> float:
    found = ONE_IN.search(note)
    return 1.0 / int(found[2] or 2) if found else 0.0


def recomputed(kind: str, stack: str, *, note: str = "", experts: float = 1.0, fused: bool = True) -> Again:
    """What is done again, by what a stack means with a word of the column, or by the note (a share of the layers, a policy, modules of
    `MODULES`). Blank: nothing, until the rule decides.

    `selective` is the core of attention alone in Megatron's code base, which runs it again fused or not (`checkpoint_core_attention`);
    stacks that XLA compiles keep all products (`minimal`); torchtitan's goes by operator. The programs of `dmodel collect` have fused
    attention that never keeps scores.

    Args:
      experts: routed experts of a layer [count]. fused: whether attention is.
    """
    name = stack.lower()
    if kind in ("none", "full"):
        return Again(float(kind == "full"))
    if share := _noted(note):
        return Again(share, said=(f"recompute {kind or 'blank'}: {share:.2g} of the layers, by the note",))
    if (keeps := kept_by(note)) is not None:
        return by_policy(keeps, experts, "the note's policy")
    if found := NOTED_MODULES.search(note):
        return _of_modules(found[1].split(", "), "the note")
    if kind == "selective" and family(name) == TITAN:
        return by_operator(experts)
    collected = name.startswith("dmodel-collect")
    if kind == "selective" and name.startswith(XLA) and not collected:
        return by_policy(DOTS, experts, "the policy `minimal`")
    return Again(attention=float(kind == "selective" and not (fused and collected)))


MODULES = {
    "core_attn": {"attention": 1.0},
    "mla_up_proj": {"latents": 1.0},
    "mlp": {"dense": 1.0},
    "moe": {"into": 1.0, "gate": 1.0, "back": 1.0},
}
"""What Megatron-Core does again for names of `recompute_modules` (its `transformer_config.py`): queries, keys and values from their
latents; MLPs of dense layers; products of experts, whose exchange of tokens is not counted again here. `layernorm` and `moe_act` (norms
before an MLP, experts' activation; gpt-oss on H100, B200 and GB200, Nemotron 3 Super on B200 and in NVFP4 on B300, Ultra) are left out:
they cost 1 % of a step of Super (NVFP4 over MXFP8 on B300, where it has them, to GB300, where neither has: 0.982 to 0.969), but 7 as
`elementwise_traffic` of Megatron-Bridge has what streams, and the fit of all rows loses 6 nats with them; 11 with the rotation that comes
with `mla_up_proj`, and 3 with casts of the products that are done again."""


NOTED_MODULES = re.compile(r"\brecompute of modules (\w+(?:, \w+)*)")
"""How notes name them."""


def _of_modules(names: Sequence[str], known: str) -> Again:
    """What is done again for names of modules; of those not in `MODULES` it is said that they are not counted. known: how, in words."""
    counted, others = ([name for name in names if (name in MODULES) == there] for there in (True, False))
    parts = {part: value for name in counted for part, value in MODULES[name].items()}
    said = [f"recompute blank: {', '.join(counted)}, {known}"] if counted else []
    if others:
        said.append(f"recompute of {', '.join(others)}, {known}: not counted; counted are {', '.join(MODULES)}")
    return Again(**parts, said=tuple(said))


def modules(stack: str, model: str, accelerator: str, precision: str) -> tuple[tuple[str, ...], float]:
    """Modules that Megatron-Bridge's recipes for pretraining recompute, of those in `MODULES`, and layers of each stage that they recompute
    in full [count].

    By its `scripts/performance/configs` and `perf_recipes`, told apart by release through the layouts of its published tables: DeepSeek-V3
    and Kimi K2 do products from latents again, and dense layers' MLPs on H100, but DeepSeek-V3 on GB300 none of these in 25.11, in bf16,
    and in MXFP8 from 26.06 on; Nemotron 3 Nano on H100, and Super there and in bf16 on B200, experts; Llama 3 8B in 8 bits on H100 five
    layers from 26.02 on, 70B on B200 in 25.09. Qwen3 and all others nothing. Two versions of a release differ for some that no table has.
    """
    name, chip, release = fold(model), accelerator.lower(), stack.partition("/")[2]
    hopper, late = chip.startswith("h"), release >= "26.06"
    if name.startswith("kimik2"):
        return (("mla_up_proj", "mlp") if hopper else ("mla_up_proj",)), 0.0
    if name.startswith("deepseekv3"):
        if chip == "gb300" and (precision == "bf16" or release == "25.11" or (late and precision == "mxfp8")):
            return (), 0.0
        if chip == "gb200" and late and precision == "fp8":
            return ("mlp",), 0.0
        dense = hopper or (precision == "mxfp8" and ((chip == "gb200" and release == "25.09") or (chip == "b200" and late)))
        return (("mla_up_proj", "mlp") if dense else ("mla_up_proj",)), 0.0
    if name.startswith("nemotron3super") and precision == "bf16" and (hopper or chip == "b200"):
        return ("moe", "core_attn"), 0.0
    if name.startswith("nemotron3nano") and hopper:
        return (("moe",) if precision == "bf16" else ("moe", "core_attn")), 0.0
    five = (name == "llama38b" and hopper and release >= "26.02") or (name == "llama370b" and chip == "b200" and release == "25.09")
    return (), 5.0 if five and precision == "fp8" else 0.0


def by_modules(stack: str, model: str, accelerator: str, precision: str, layers: float) -> Again | None:
    """What Megatron-Bridge's recipe for a job does again (`modules`); None for other stacks and where that is nothing.

    Args:
      layers: of a stage [count].
    """
    if family(stack.lower()) != BRIDGE:
        return None
    names, full = modules(stack, model, accelerator, precision)
    if full:
        return Again(min(full / layers, 1.0), said=(f"recompute blank: {full:g} layers of each stage, as the stack's recipe has it",))
    return _of_modules(names, "as the stack's recipe has it") if names else None


def keeps_activations(stack: str) -> bool:
    """Whether recipes of a stack recompute no layers where a table does not say.

    Those of Megatron-Bridge keep activations, or recompute the parts of a layer that `modules` has; with FSDP they move those of some
    layers to the host (`cpu_offloading_num_layers`: 40 of Llama 3 70B's 80 on GB200, 20 on GB300) while others compute, which takes no
    time here. NeMo's launcher leaves `activations_checkpoint_granularity` empty in every configuration behind its tables (selective for
    GPT-3 20B, a hundredth of its step), and the tables of NeMo 2 go on with the same jobs at the same times.
    """
    return family(stack.lower()) in (BRIDGE, *NEMO)


def layers_in_host_memory(stack: str, model: str, accelerator: str, zero: float, pp: float = 1.0) -> float:
    """Share of the layers whose activations a recipe keeps in the host's memory: Megatron-Bridge's for Llama 3 70B with FSDP
    (`keeps_activations`). Megatron-Core offloads beside no pipeline."""
    chip = accelerator.lower()
    told = family(stack.lower()) == BRIDGE and fold(model) == "llama370b" and zero == 3.0 and pp == 1.0
    return {"gb200": 40.0 / 80.0, "gb300": 20.0 / 80.0}.get(chip, 0.0) if told else 0.0


def offloaded(again: Again, note: str, share: float) -> Again:
    """What is done again, with what of the rest waits in the host's memory by a note, or for a share of the layers by a recipe."""
    inputs, others = in_host_memory(note)
    if inputs or others:
        what = " and ".join(name for name, told in (("layers' inputs", inputs), ("results", others)) if told)
        return again._replace(inputs=inputs, others=others, said=(*again.said, f"{what} that wait for the backward pass: in host memory"))
    if share:
        said = f"activations of {share:.0%} of the layers wait in host memory, as the stack's recipe has it"
        return again._replace(inputs=share, others=share, said=(*again.said, said))
    return again


ENDS_EARLY = ("llm-foundry", "torchtitan", "kempnerforge", "automodel", "fms-fsdp", "dmodel-collect", *XLA)
"""Beginnings of stacks whose full recomputation ends once the backward pass has what it needs: PyTorch's checkpoints that do not re-enter
autograd (`use_reentrant=False`; `torch.utils.checkpoint.set_checkpoint_early_stop`, on by default from 2.1) around layers of plain PyTorch,
which save a product's inputs before they compute it; and XLA, which drops what nothing reads."""

TO_THE_END = ("llm-foundry/pure",)
"""Variants of these that ran on a PyTorch before 2.1: LLM Foundry's tables in pure 16 bits (its benchmark's image has 1.13). With twelve
rows of the stack, predictions of its large models, all recomputed, were 8 to 11 % too slow beside its small ones, but not these."""


def recomputes_last(stack: str, experts: float, trainable: float = 1.0) -> tuple[float, tuple[str, ...]]:
    """`Plan.recompute_last` of a stack, 0 or 1, said in words where it is 0. The last product's result is needed in every stack where
    experts' results are weighted, as the gradients of the weights read them, and where adapters come after a frozen product."""
    name = stack.lower()
    early = name.startswith(ENDS_EARLY) and not name.startswith(TO_THE_END) and experts <= 1.0 and trainable == 1.0
    return float(not early), ("recomputation ends before the last product of a layer: the stack's checkpoints",) if early else ()


def end_of(row: Row) -> tuple[float, tuple[str, ...]]:
    """Where recomputation of a row ends; see `recomputes_last`."""
    return recomputes_last(row.stack, row.number("n_experts") or 1.0, float("lora" not in row.flags))


def of_row(row: Row, run: Kept | None, assumed: list[str]) -> tuple[Again, float]:
    """What is done again in a row, and `Plan.recompute_last`; blank: as in the run's configuration (`submissions.kept`) or the recipe
    (`by_modules`), else nothing, until the rule decides."""
    known = {"note": row.text("note"), "experts": row.number("n_experts") or 1.0, "fused": row.text("attention") != "none"}
    again = recomputed(row.text("recompute"), row.stack, **known)
    if not row.text("recompute"):
        tuned = "lora" in row.flags or row.text("model").lower().endswith("-sft")
        again = again._replace(layers=run.recomputed) if run else again
        if not (tuned or again.ends or again.said):
            stage = row.known("n_layers") / (row.number("pp") or 1.0)
            precision = base_precision(row.text("precision")) or "bf16"
            again = by_modules(row.stack, row.text("model"), row.accelerator, precision, stage) or again
    job = row.stack, row.text("model"), row.accelerator, row.number("zero_stage") or 0.0, row.number("pp") or 1.0
    as_recipe = row.text("recompute") in ("", "none") and "lora" not in row.flags
    again = offloaded(again, row.text("note"), layers_in_host_memory(*job) if as_recipe else 0.0)
    last, said = end_of(row)
    assumed.extend((*again.said, *said) if again.ends else again.said)
    return again, last
