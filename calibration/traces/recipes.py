"""What published recipes of a stack switch on where its tables do not say so: facts about software,
each with its source.

Megatron-Bridge's performance tables are made by the recipes of its `scripts/performance/configs`
(2025 to 2026), one for each model, chip and precision. What those have in common, and what tells
them apart in ways that the step model has a mechanism for, stands here; so does what torchtitan
means with a word. The reader of files and the shell ask the same functions, but for what only a
table leaves blank.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from dmodel.catalog.loader import fold
from dmodel.profiles import family, members

BRIDGE = "megatron-bridge"

NEMO = ("nemo-launcher", "nemo")
"""Families of NeMo's stacks: its launcher, and its documents by release ("nemo/24.07"; NeMo 2 from
24.09 on). Not its tables of 2023 and of long sequences, of which no row can be used."""

TITAN = "torchtitan"

KEMPNER = "kempnerforge"

AUTOMODEL = "automodel"

NARROW_STATES = (KEMPNER, AUTOMODEL)
"""Families of stacks whose parameters are bf16 throughout, see `widths`."""

XLA = ("maxtext", "jax", "pax", "levanter", "tpu", "gpu-recipes", "dmodel-collect/jax")
"""Beginnings of stacks whose messages XLA schedules (Google's recipes for GPUs run MaxText; the
last one is `calibration.collect`'s)."""


class Widths(NamedTuple):
    """Bytes per element of gradients as they are reduced and as they are held, of parameters as
    they are gathered, and of the optimizer's states [byte]."""

    reduced: float
    held: float
    gathered: float
    optimizer: float = 12.0


def widths(
    stack: str, precision: str, zero: float = 1.0, model: str = "", note: str = ""
) -> Widths | None:
    """What the recipes of a stack keep gradients and states and send parameters in; None for stacks
    without.

    Megatron-Bridge: `grad_reduce_in_fp32` is off for Llama, Qwen3, DeepSeek-V3 and gpt-oss alike,
    so gradients are reduced and accumulated in 16 bits; parameters quantized by tensor are gathered
    in 8 bits, those of MXFP8 in 16, as both directions are quantized afterwards. NeMo under ZeRO-1:
    its launcher's scripts for H100 (`examples`, 2024), NeMo 2's for performance and NVIDIA's for
    MLPerf 4.0 (GPT-3; `grad_sync_dtype`) reduce gradients in bf16 and hold them so. The launcher's
    distributed Adam keeps of a master weight the 16 bits that the bf16 weight lacks (10 bytes with
    two moments); in fine-tuning (`sft`) the moments are bf16, and so is the master weight that
    8-bit weights need (6 bytes); those weights are what is gathered (`fp8_params`), and wherever a
    note says "fp8 parameters".
    KempnerForge and AutoModel hold the model in bf16 (`build_parallel_model` of the one's
    `distributed/parallel.py`; the dtype of the other's configurations), so the optimizer has two
    moments in 16 bits and no master weight; both reduce gradients in fp32, and hold
    them so while they add up whole (`accumulates`, `reduces_once`; PyTorch's
    `_to_accumulated_grad_if_needed`).
    MaxText with weights in 16 bits, where a note says so (`weight_dtype`): moments and gradients
    follow.
    torchtitan's preset of Llama 3 405B (`train_configs/llama3_405b.toml`) gathers weights that are
    scaled by tensor in 8 bits (`enable_fsdp_float8_all_gather`); those of its smaller models leave
    that off.
    """
    name = stack.lower()
    if family(name) == BRIDGE:
        return Widths(2.0, 2.0, 1.0 if precision == "fp8" else 2.0)
    if (family(name) in NEMO or name.startswith("mlperf")) and zero == 1.0:
        launcher = family(name) == NEMO[0] or "" < name.partition("/")[2] < "24.09"
        tuned = model.lower().endswith("-sft")
        narrow = precision == "fp8" and ((launcher and tuned) or "fp8 parameters" in note)
        return Widths(
            2.0, 2.0, 1.0 if narrow else 2.0, (6.0 if tuned else 10.0) if launcher else 12.0
        )
    if family(name) in NARROW_STATES and precision == "bf16":
        return Widths(4.0, 4.0 if accumulates(stack) or zero < 2.0 else 2.0, 2.0, 4.0)
    if shards_master(stack, zero) and "weights in 16 bits" in note:
        return Widths(2.0, 2.0, 2.0, 6.0)
    if (
        family(name) == TITAN
        and "rowwise" not in name
        and precision == "fp8"
        and fold(model).endswith("405b")
    ):
        return Widths(4.0, 4.0, 1.0)
    return None


ONCE = (
    "zero_stage 1: weights stay gathered and gradients are reduced once a step, as the stack does"
)
"""What is said of rows and plans of which `reduces_once` holds."""


def reduces_once(stack: str, zero: float) -> bool:
    """Whether gradients of micro-batches add up where they are and are reduced once a step, which
    is what ZeRO-1 sends, though the table says stage 2 for weights that stay gathered: PyTorch's
    pipelines over `fully_shard` switch the reduction off in every backward pass and run it behind
    the last (`backward_maybe_with_nosync` in `torch/distributed/pipelining/stage.py`; AutoModel's
    own for experts does so for the step, `patched_backward_maybe_with_nosync` of its
    `components/moe/fsdp_mixin.py`), and torchtitan's runs of DeepSeek-V3 reduce likewise without a
    pipeline (its pull request 5058). Reduced with every micro-batch, torchtitan's were predicted 10
    to 24 % too slow, AutoModel's 24 and 42."""
    return zero == 2.0 and family(stack.lower()) in (TITAN, AUTOMODEL)


MASTER_SHARDED = (
    "llm-foundry",
    "torchtitan",
    "fms-fsdp",
    "fsdp",
    "maxtext",
    "jax-toolbox",
    "gpu-recipes",
    "tpu-recipes",
    "pax",
)
"""Beginnings of stacks on PyTorch's FSDP with mixed precision, and on MaxText or Pax
(`weight_dtype` float32, `dtype` bfloat16)."""


def shards_master(stack: str, zero: float, trainable: float = 1.0) -> bool:
    """Whether what is sharded under ZeRO 3 is the optimizer's master copy itself, cast as it is
    gathered (`MASTER_SHARDED`), with no
    16-bit copy beside it as Megatron's and DeepSpeed's have. Weights that are frozen have no
    master, and are held as they are."""
    return zero == 3.0 and trainable == 1.0 and stack.lower().startswith(MASTER_SHARDED)


def accumulates(stack: str) -> bool:
    """Whether gradients of sharded micro-batches add up whole and are reduced once a step
    (`Software.accumulate`).

    KempnerForge's do: its profile of 13B on 24 H200 has 41 reductions a step, one for each of its
    sharded modules, beside two gathers of each in every one of four micro-batches
    (`benchmarks/profiling`), and its 175B was run without accumulation because gradients would have
    stayed whole in fp32 (`benchmarks/175b_360gpu`). LLM Foundry's do not: Composer defers
    reductions of DDP alone (`ddp_sync_context`).
    """
    return family(stack.lower()) == KEMPNER


def wide_layers(stack: str, model: str, precision: str) -> float:
    """Layers that a recipe keeps in 16 bits whatever the precision of the others [count].

    Megatron-Bridge runs Nemotron 3 Super in NVFP4 with the first layer and the last 14 in bf16
    (`nemotron_3_super_bf16_with_nvfp4_mixed`). Its list of modules beside it (`te_quant.cfg`) is
    not public, so the other layers count as in 4 bits throughout.
    """
    return (
        15.0
        if family(stack.lower()) == BRIDGE
        and fold(model).startswith("nemotron3super")
        and precision == "nvfp4"
        else 0.0
    )


class Tensor(NamedTuple):
    """How messages of tensor parallelism go: `Precision.narrow_gathers`, `Precision.narrow_sums`,
    and 1 where they may hide. said: in words."""

    narrow_gathers: float
    narrow_sums: float
    overlap_tp: float
    said: tuple[str, ...]


def tensor(stack: str, model: str, precision: str) -> Tensor:
    """Messages of tensor parallelism of a stack.

    NeMo and Megatron-Bridge give the products that end in sums a buffer of 8 bits (`fp8_buf` of
    `proj_fprop` and `fc2_fprop` in their `userbuffers.py`), which Transformer Engine uses where one
    scale is for a whole tensor, not for blocks. It takes messages to 0.83 of what they are with
    gathers in 8 bits alone; rows in 8 bits ask for 0.78 ± 0.06, those in MXFP8 and NVFP4, whose
    scales are for blocks, for 1.10 ± 0.07 and 1.03 ± 0.09 (`docs/coefficients.md`).
    torchtitan gathers in 8 bits with one scale for a whole tensor, in 16 with one for a row (its
    `parallelize.py`), as rows of it say. Messages wait for no product beside them where recipes of
    Megatron-Bridge do not switch `tp_comm_overlap` on: for Nemotron 3 Super.
    """
    software, precision = family(stack.lower()), precision.lower()
    awaits = software == BRIDGE and fold(model).startswith("nemotron3super")
    narrow = software in (BRIDGE, *NEMO) and precision == "fp8" and not awaits
    wide = precision == "fp8-rowwise"
    said = (
        *(["tp: gathers go in 16 bits, as scales are for rows"] if wide else []),
        *(["tp: forward sums go in 8 bits: the stack's recipe"] if narrow else []),
        *(
            ["messages of tensor parallelism hide behind nothing: the stack's recipe"]
            if awaits
            else []
        ),
    )
    return Tensor(float(not wide), float(narrow), float(not awaits), said)


def hybrid_shards(stack: str, model: str) -> float:
    """Ranks over which a recipe shards weights (ZeRO 3) whatever a table's column says [count]; 0
    where none is known to.

    Megatron-Bridge trains Nemotron 3 Ultra with Megatron-FSDP in groups of 64
    (`_apply_nemotron_3_ultra_fsdp_hsdp`), where its table has no mark for FSDP: 550 billion
    parameters would not fit otherwise.
    """
    return (
        64.0
        if family(stack.lower()) == BRIDGE and fold(model).startswith("nemotron3ultra")
        else 0.0
    )


PACKED_WINDOW = 500.0
"""Causal window that stands for sequences of 4,096 tokens packed of short documents [token].
Documents of SQuAD have 200 tokens (what attention adds to 4 FLOPs per parameter and token in the
FLOP/s that Megatron-Bridge reports of adapters, counted by document), of which a query sees 100;
kernels work on blocks of 128. Fits of all rows are as likely with 300 to 1,000, and 13 nats less
with 200."""

_PACKED = re.compile(r"\bpacked sequences\b")


def packed_window(stack: str, model: str, note: str, flags: Collection[str]) -> tuple[float, str]:
    """Window of attention where sequences are packed of documents, which it does not leave [token],
    and how that is known, in words; 0 where sequences are whole.

    A note decides. NeMo and Megatron-Bridge fine-tune on SQuAD, packed (their READMEs and scripts,
    `packed_sequence`); NeMo's tables leave attention out of the FLOP/s that they report of it,
    Megatron-Bridge's count that of adapters by document.
    """
    said = (
        f"sequences are packed of documents, attention costs what a window of {PACKED_WINDOW:g} "
        "tokens would"
    )
    if _PACKED.search(note):
        return PACKED_WINDOW, f"{said}: the note's packed sequences"
    tuned = "lora" in flags or model.lower().endswith("-sft")
    return (
        (PACKED_WINDOW, f"{said}: the stack's recipe")
        if tuned and family(stack.lower()) in (BRIDGE, *NEMO)
        else (0.0, "")
    )


class Job(NamedTuple):
    """Micro-batch [sequence], model chunks per stage [count], and 1 where gradients are reduced
    beside the backward pass, 0 where after."""

    micro_batch: float
    chunks: float
    overlap: float


TABLE_1 = {
    24.0: Job(16.0, 1.0, 1.0),
    30.0: Job(16.0, 1.0, 1.0),
    36.0: Job(16.0, 1.0, 1.0),
    40.0: Job(8.0, 1.0, 1.0),
    48.0: Job(4.0, 1.0, 0.0),
    60.0: Job(2.0, 3.0, 0.0),
    80.0: Job(2.0, 2.0, 0.0),
    96.0: Job(1.0, 2.0, 0.0),
    105.0: Job(1.0, 3.0, 0.0),
    128.0: Job(1.0, 1.0, 0.0),
}
"""By layers, the jobs behind table 1 of Narayanan et al. 2021: Megatron-LM's
`examples/sc21/run_table_1.sh`. Its `DDP=local` reduces all gradients once the backward pass is
over."""


def job(stack: str, n_layers: float) -> Job | None:
    """What the published scripts of a table say of a row that the table leaves out; None where
    there are none."""
    return TABLE_1.get(n_layers) if stack.lower() == "megatron-sc21-t1" else None


NEMO_CHUNKS = {"llama3-70b": 5.0}
"""By model, chunks per stage in the configurations of NeMo's launcher (`conf/training`) where they
are fewer than layers allow."""


def chunks(stack: str, model: str, layers: float, adapters: bool) -> float | None:
    """Model chunks per stage by the recipes of a stack whose table leaves them out; None for stacks
    without, and for layers in parts.

    NeMo's interleave as deep as layers divide (the tables of its successor, which have the column,
    hold 4 to 20 chunks wherever there are stages), but for `NEMO_CHUNKS`; the launcher's scripts
    for adapters (`examples/peft`) set none, and NeMo 2's tables go on at the same times. NVIDIA's
    for MLPerf 4.0, GPT-3: 4 and 8 chunks of 12 and 16 layers.

    Args:
      layers: of a stage. adapters: whether these are all that is trained, in NeMo.
    """
    name = stack.lower()
    if not name.startswith(("nemo", "mlperf")) or layers != int(layers):
        return None
    if family(name) not in NEMO:
        return layers
    fewer = NEMO_CHUNKS.get(model.lower(), layers)
    return 1.0 if adapters else fewer if layers % fewer == 0.0 else layers


OF_2021 = ("megatron-sc21", "mt-nlg", "vtrain", "megatron-deepspeed", "megatron-lm/dlperf")
"""Beginnings of stacks of Megatron's code base as it was in 2021: the tables of then, and
DeepSpeed's forks.

Its products of weight gradients did not add to the gradients held yet
(`gradient_accumulation_fusion`, default since it came late in
2021; its FSDP has a kernel for the sum to this day, so `Software.fused_sums` holds for gradients
that are whole). Gradients were reduced once the backward pass was over: by its own data parallelism
(`DDP_impl` local, the default), in vTrain's runs without buckets by its table,
and by DeepSpeed's pipeline engine, which its forks use with one stage too (`GPTModelPipe`) and
whose schedule reduces between the last backward pass and the step (`ReduceGrads`)."""

AWAITED = "sums over replicas are waited for, layer by layer, as in XLA's loops over layers"


def awaits_replicas(stack: str) -> bool:
    """Whether what HSDP's replicas sum is waited for, layer by layer: stacks that XLA compiles,
    whose layers are a loop.

    From 8 to 32 pods of TPU v5e, MaxText's published steps grow by 0.65 ms for each pod and layer,
    in its models of 32 and of 64 layers alike, one of 16 tensor ranks by twice that: hops of a
    ring, of which the rest of the layer hides none, whatever its flags ask for
    (`xla_tpu_enable_data_parallel_all_reduce_opt`). Read as hidden, rows held out by group missed
    by 5.9 % in the mean; read so, by 4.7.
    """
    return stack.lower().startswith(XLA)


AFTER = "gradients reduced after the backward pass, as the stack does"


def reduces_after(stack: str, n_layers: float) -> bool:
    """Whether gradients are reduced once the backward pass is over: by the script of the job, else
    for stacks `OF_2021`."""
    known = job(stack, n_layers)
    return stack.lower().startswith(OF_2021) if known is None else not known.overlap


def fuses_sums(stack: str) -> bool:
    """Whether products add to the gradients held: the code base of Megatron, but for stacks
    `OF_2021`."""
    return members(None, stack)["lineage"] == "megatron" and not stack.lower().startswith(OF_2021)


def further_tokens(stack: str, model: str, note: str) -> tuple[float, str]:
    """Heads of further tokens that a row was trained with [count], and how that is known, in words.

    A note decides. Megatron-Bridge trains DeepSeek-V3 with one: FLOPs per token of its tables are
    260 GFLOP, 249 where a note says without. So it does Nemotron 3 Super and Ultra, 84 and 361
    GFLOP, 79 and 346 by their layers alone, and Nemotron 3.5 Lightning with two, by its recipe
    (`mtp_num_layers`) and by 28.1 GFLOP, 22.6 by its layers, which are those of Nano.
    """
    if "w/ MTP" in note or "w/o MTP" in note:
        heads = float("w/ MTP" in note)
        return heads, f"{heads:g} heads of further tokens, from the note" if heads else ""
    folded, bridge = fold(model).replace(".", ""), family(stack.lower()) == BRIDGE
    if bridge and folded.startswith(
        ("deepseekv3", "deepseekr1", "nemotron3super", "nemotron3ultra")
    ):
        return 1.0, "1 head of further tokens: the stack's recipe"
    if bridge and folded.startswith("nemotron35lightning"):
        return 2.0, "2 heads of further tokens: the stack's recipe"
    return 0.0, ""


IN_ORDER = ("torchtitan",)
"""Stacks whose published context-parallel rows cost what an unbalanced ring does: from 32,768 to
262,144 tokens on as many times the ranks (8B on 8 H100, full recomputation) a step takes 8.4, 12.9,
30.6 and 59.8 s, of which attention at 0.4 of the peak would be 3.6, 7.3, 15 and 29 balanced, and
3.6, 11, 26 and 55 in order."""


def held_in_order(stack: str) -> bool:
    """Whether ranks of cp hold a sequence in order; see `IN_ORDER`."""
    return stack.lower().startswith(IN_ORDER)


ACTIVATIONS_SPLIT = ("maxtext",)
"""Beginnings of stacks whose tensor parallelism splits activations between products too, along
their width (MaxText's axis rules hold `activation_embed` to the tensor axis): what sequence
parallelism does along the sequence. Without it the published plans of 64b to 1024b on v5p would
need 1.6 to 3.1 times the memory that there is, with it 0.4 to 1.0 times, but for 64b (1.5)."""


WORDS = 50_257
"""Words of GPT-2, which vTrain's configurations leave at their default (`vocab_size` in its
`src/config.py`)."""


class Composed(NamedTuple):
    """vocab: columns of the logits over all ranks. unpadded: 1 where a rank's are no multiple of 8.
    said: in words."""

    vocab: float
    unpadded: float
    said: tuple[str, ...]


def composed(stack: str, flags: Collection[str], tp: float) -> Composed | None:
    """What vTrain's rows of one node are composed of, whatever their columns say; None for other
    rows.

    They are sums of one measured cost per layer and micro-batch and one of the head, by (width, tp,
    micro-batch), as its program has them: its modules hold `50,257 // tp` words, padded by nobody
    (`src/model/gpt_modeling.py`), and a last stage recomputes nothing (`src/predictor.py`). Its
    configurations have recomputation on, and so has the column, but a layer takes the same time
    where the one stage is the last as where four are. Recomputed, that time would leave elementwise
    kernels three quarters of the least traffic that
    they can have (`elementwise_traffic` 0.74 in a fit of all 300 rows), as it is 2.3 times; and
    bases that know no row of the stack miss
    by 16.9 % in the median for 25.6.

    Its collectives take what single calls of them took in a table, one after the other with the
    kernels, which were traced on one device (`_add_tp_communication`, `get_allreduce_LUT`,
    `trainer.py`): nothing hides them, and no rank waits for another; and a step has no
    work of its own beside its parts (`Software.composed`).
    """
    if family(stack.lower()) != "vtrain" or "composed" not in flags:
        return None
    columns = WORDS // tp
    said = (
        (
            "composed rows recompute nothing: a layer takes the same time in the last stage, which "
            "never does, as in the others"
        ),
        (
            "composed rows hide no messages and wait for no rank: their collectives are single "
            "calls, "
            "added to kernels traced on one device"
        ),
        (
            f"vocabulary {WORDS:,} // tp = {columns:g} words a rank, which nobody pads: the "
            "default "
            "of the stack's program"
        ),
    )
    return Composed(columns * tp, float(columns % 8.0 > 0.0), said)


def splits_activations(stack: str) -> bool:
    """Whether tensor parallelism splits activations between products without being told to; see
    `ACTIVATIONS_SPLIT`."""
    return stack.lower().startswith(ACTIVATIONS_SPLIT)
