"""Parts of a model and a plan that several frameworks share the words for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dmodel.emit.memories import own_memory
from dmodel.emit.sheet import Setting, Sheet, where
from dmodel.records import BUCKET_GRADIENTS, BUCKET_GRADIENTS_PER_RANK, RULES, having
from dmodel.stages import ENDS, held, layout

FORMATS = {1.0: "8-bit", 0.5: "4-bit", 2.0: "16-bit", 4.0: "32-bit"}


def is_mixture(sheet: Sheet) -> bool:
    """Whether the model has experts."""
    return sheet["n_experts"] > 1


def is_latent(sheet: Sheet) -> bool:
    """Whether attention projects keys and values to a latent (MLA)."""
    return sheet["kv_rank"] > 0


def dense_width(sheet: Sheet) -> float:
    """Width of the MLP of layers without experts."""
    dense = is_mixture(sheet) and sheet["n_dense_layers"]
    return sheet["d_ff_dense"] if dense else sheet["d_ff"]


def chunk_layers(sheet: Sheet) -> float:
    """Layers of one model chunk of the fullest stage, L/(pp v) where all are alike."""
    return (
        float(held(sheet["n_layers"], sheet["pp"], sheet["interleave"]).fullest)
        / sheet["interleave"]
    )


def _is_laid_out_as_usual(sheet: Sheet) -> bool:
    """Whether stages hold what they hold where nothing is said."""
    fold = RULES[sheet.values["schedule"]].fold
    usual = layout(sheet["n_layers"], sheet["pp"], sheet["interleave"], sheet["n_mtp"], fold)
    return all(abs(sheet[name] - float(value)) < 1e-9 for name, value in usual.items())


def _fill_with_ends(layers: float, chunks: float, dealt: bool) -> bool:
    """Whether layers, with the places of embedding and head, fill the chunks."""
    return dealt or (layers + ENDS) % chunks == 0


def lay_out(sheet: Sheet, ends: Mapping[str, Setting] | None, dealt: bool = False) -> None:
    """What stages of the pipeline hold (`dmodel.stages`).

    Args:
      ends: settings that give embedding and head a layer's place each, None where the framework has
        none. dealt: whether it deals out what chunks do not divide.
    """
    layers, chunks = sheet["n_layers"], sheet["pp"] * sheet["interleave"]
    whole = layers % chunks == 0
    fits = whole or (ends is not None and _fill_with_ends(layers, chunks, dealt))
    sheet.keeps(
        "stage_excess head_displaces",
        fits and _is_laid_out_as_usual(sheet),
        "stages that are not alike have layouts of their own to write",
        None if whole else ends,
    )
    places = "layers" if ends is None else "layers, or those and embedding and head,"
    sheet.rule(
        fits,
        f"{places} are a multiple of pp · model chunks: {layers:g} is no multiple of {chunks:g}",
    )


class Usual(NamedTuple):
    """What launchers do with some fields, and say by no setting.

    Attributes:
      names: of the fields. values: name → the value that launchers have. reason: what they do.
    """

    names: str
    values: Mapping[str, float]
    reason: str


def as_usual(sheet: Sheet, entries: Iterable[Usual]) -> None:
    """Fields that have the value of launchers are told by the default, others are left out."""
    for each in entries:
        holds = all(sheet[name] == value for name, value in each.values.items())
        sheet.keeps(each.names, holds, each.reason)


_ADAPTERS = "first_adapters first_adapted last_adapters last_adapted adapter_dropout"

DECODERS = (
    Usual(
        "expert_biases",
        {"expert_biases": 0},
        "biases of products follow from a model's own settings, beside its norms (Megatron-LM: "
        "leave out --disable-bias-linear)",
    ),
    Usual(
        "hybrid",
        {"hybrid": 0},
        "hybrid stacks have launchers and layer patterns of their own; write that pattern yourself",
    ),
    Usual("causal", {"causal": 1}, "launchers of language models train causal attention"),
    Usual(
        "unpadded_vocab",
        {"unpadded_vocab": 0},
        "frameworks pad their vocabulary, or have it padded, to what ranks of tp divide by 8",
    ),
    Usual(
        f"trainable {_ADAPTERS}",
        {"trainable": 1, **dict.fromkeys(_ADAPTERS.split(), 0)},
        "adapters on a frozen base have settings of their own",
    ),
)
"""Models that decoder launchers build."""

LAYER_KERNELS = (
    Usual(
        "split_rotary",
        {"split_rotary": 0},
        "rotary embeddings are one kernel where the framework has one for the model's; no setting "
        "splits it",
    ),
    Usual(
        "split_softmax",
        {"split_softmax": 0},
        "without fused attention, softmax is one kernel where the framework has one; no setting "
        "splits it",
    ),
    Usual(
        "narrow_gathers",
        {"narrow_gathers": 1},
        "whether tensor ranks gather in 8 bits follows from how the framework quantizes",
    ),
    Usual(
        "narrow_sums",
        {"narrow_sums": 0},
        "tensor ranks sum in 8 bits by settings of each product (Megatron Bridge: "
        "TPOverlapCfg.fp8_buf)",
    ),
)
"""Kernels of one layer, and what its tensor ranks exchange."""

WHOLE_STEPS = (
    Usual("composed", {"composed": 0}, "a sum of parts measured apart is run by nobody"),
)
"""Steps that are run as they are measured."""

FUSED_KERNELS = (
    Usual(
        "route_bytes",
        {"route_bytes": 0},
        "ranks gather the map of who visits whom as their dispatcher does (Megatron-LM: "
        "--moe-flex-dispatcher-backend hybridep)",
    ),
    Usual(
        "fused_experts",
        {"fused_experts": 0},
        "fused products of experts are a matter of chip, precision and release (Megatron-LM: "
        "--use-transformer-engine-op-fuser)",
    ),
    Usual(
        "attention_bytes",
        {"attention_bytes": 2},
        "attention in 8 bits is a setting of the model's configuration (Megatron-Core: "
        "fp8_dot_product_attention)",
    ),
    Usual(
        "attention_rate attention_backward_rate",
        {"attention_rate": 1, "attention_backward_rate": 1},
        "attention runs in the kernels that the framework has for the chip",
    ),
    Usual(
        "stream_ratio loss_ratio",
        {"stream_ratio": 1, "loss_ratio": 1},
        "whether a compiler fuses norms, activations and the loss is a setting of the framework",
    ),
)
"""Kernels of experts and of attention."""


def leave_what_no_launcher_knows(sheet: Sheet) -> None:
    """Fields that describe what happens, not what is launched, and models that decoder launchers do
    not build."""
    sheet.keeps(
        "imbalance",
        not is_mixture(sheet),
        "how uneven routing is follows from data and router; no framework takes it as a setting",
    )
    sheet.keeps(
        "sparse_kernels",
        not sheet["hybrid"] or bool(sheet["sparse_kernels"]),
        "kernels of sparse attention are those that the framework has",
    )
    as_usual(sheet, DECODERS)


def launched(sheet: Sheet, fused: bool, looped: bool, why: str, compiled: bool = False) -> None:
    """How kernels are started.

    Args:
      fused: whether products of weight gradients add to what is held. looped: whether experts are
        looped over. why: the reason. compiled: whether the framework compiles its programs; graphs
        are left to the user elsewhere.
    """
    sheet.keeps("fused_sums", bool(sheet["fused_sums"]) == fused, why)
    as_usual(sheet, LAYER_KERNELS)
    sheet.keeps(
        "logit_bytes",
        sheet["logit_bytes"] in ((2,) if compiled else (8, 12)),
        "the framework's loss decides whether it reads a copy of the logits",
    )
    own_memory(sheet)
    sheet.keeps(
        "graphed",
        compiled or not sheet["graphed"],
        "CUDA graphs need settings that follow from the shapes of a run; write them yourself",
    )
    as_usual(sheet, WHOLE_STEPS)
    sheet.keeps(
        "sparse_kernels",
        sheet["sparse_kernels"] or not having(sheet.job.model, "index_top"),
        "kernels of sparse attention are a matter of release (Megatron-Core: dsa_kernel_backend)",
    )
    told = not is_mixture(sheet) or bool(sheet["looped_experts"]) == looped
    sheet.keeps("looped_experts", told, why)
    as_usual(sheet, FUSED_KERNELS)


def buckets(sheet: Sheet, grown: float, why: str, fixed: dict[str, Setting] | None = None) -> None:
    """How much messages once per step grow by each rank of their group (`grown` [byte]), for the
    reason `why`. Where they have one size instead, settings that keep it (`fixed`)."""
    few = sheet["dp"] * sheet["cp"] <= BUCKET_GRADIENTS / BUCKET_GRADIENTS_PER_RANK
    alike = few or sheet["zero"] == 3 or not sheet["overlap_dp"]
    told = (
        {}
        if alike or sheet["bucket_per_rank"] == grown
        else fixed
        if sheet["bucket_per_rank"] == 0
        else None
    )
    sheet.either("bucket_per_rank", told, why)


def copies(sheet: Sheet, hidden: bool, why: str) -> None:
    """Whether sums over HSDP's replicas run beside compute (`hidden`), for the reason `why`."""
    told = (
        not sheet["zero"]
        or sheet["shard"] >= sheet["dp"]
        or bool(sheet["overlap_replica"]) == hidden
    )
    sheet.keeps("overlap_replica", told, why)


def sharded_rounds(sheet: Sheet, accumulates: bool, why: str) -> None:
    """When FSDP reduces: after each micro-batch or (`accumulates`)
    once per step, for the reason `why`."""
    sharded = sheet["zero"] in (2, 3) and sheet["global_batch"] > sheet["dp"] * sheet["micro_batch"]
    sheet.keeps("accumulate", not sharded or bool(sheet["accumulate"]) == accumulates, why)


def leave_parts(sheet: Sheet, why: str, key: str = "") -> None:
    """Layers of which products, what streams or modules are done again, but not all. No setting
    says that, for the reason `why`; where a framework names modules in a setting `key`, which
    products and bytes are of the plan does not say."""
    named = (
        f"a plan holds shares of what runs again, no names of modules: write {key} yourself"
        if key
        else why
    )
    for part, reason in (("products", named), ("elementwise", why), ("bytes", named)):
        told = not sheet[f"recompute_{part}"] or sheet["recompute_layers"] == 1
        sheet.keeps(f"recompute_{part}", told, reason)


def block_layers(sheet: Sheet) -> tuple[int, float]:
    """Layers of each model chunk that are done again: whole ones, and as planned."""
    layers = sheet["recompute_layers"] * chunk_layers(sheet)
    nearest = round(layers)
    return nearest if abs(layers - nearest) <= 1e-9 else -int(-layers // 1), layers


def leave_part_layers(sheet: Sheet) -> None:
    """Say where whole layers are done again instead of the planned part of them."""
    k, layers = block_layers(sheet)
    if abs(layers - k) > 1e-9:
        sheet.leave(
            "recompute_layers",
            f"recomputed are whole layers of each model chunk: {k} instead of {layers:g}",
        )


def overlapped(sheet: Sheet, kind: str, degree: float, why: str) -> None:
    """A kind of message that the framework hides behind compute wherever there is one."""
    sheet.keeps(f"overlap_{kind}", sheet[f"overlap_{kind}"] or degree == 1, why)


def balanced(sheet: Sheet, why: str) -> None:
    """Ranks of context parallelism that always have alike work, for the reason `why`."""
    sheet.keeps("cp_balanced", sheet["cp"] == 1 or sheet["cp_balanced"], why)


def latent_only(sheet: Sheet) -> None:
    """Queries that are wider than values, where attention has no latent."""
    sheet.keeps(
        "qk_extra", sheet["qk_extra"] == 0, "queries wider than values need latent attention"
    )


def split_as_the_rest(sheet: Sheet) -> None:
    """Experts whose tensor parallelism has no setting of its own."""
    sheet.keeps(
        "etp",
        sheet["etp"] == sheet["tp"],
        "experts are split by the same tensor parallelism as the rest",
    )


def micro_batches(sheet: Sheet) -> float:
    """Micro-batches of a rank in one step."""
    return sheet["global_batch"] / (sheet["dp"] * sheet["micro_batch"])


def context_rule(sheet: Sheet, axis: str = "cp") -> None:
    """Sequences are cut into two pieces for each rank of context parallelism."""
    if sheet["cp"] > 1:
        sheet.divides(
            sheet["seq_len"], 2 * sheet["cp"], f"the sequence is a multiple of 2 · {axis}"
        )


def interleaving_rule(sheet: Sheet) -> None:
    """Model chunks take turns over groups of pp micro-batches."""
    if sheet["interleave"] > 1:
        sheet.divides(
            micro_batches(sheet),
            sheet["pp"],
            "micro-batches are a multiple of pp, with interleaving",
        )


def _recomputes(sheet: Sheet) -> bool:
    """Whether anything is done again."""
    parts = ("layers", "attention", "products", "elementwise", "bytes")
    return any(sheet[f"recompute_{part}"] for part in parts)


def offloaded_layers(sheet: Sheet, key: str, more: Mapping[str, Setting]) -> None:
    """Layers whose activations wait in the host's memory, by a setting of that name. Whole ones,
    not all, and not beside a pipeline or
    any recomputation, as Megatron-Core refuses."""
    share, layers = sheet["offload"], sheet["offload"] * sheet["n_layers"]
    whole = abs(layers - round(layers)) < 1e-9 and round(layers) < sheet["n_layers"]
    able = whole and sheet["pp"] == 1 and not _recomputes(sheet)
    why = "whole layers are offloaded, without a pipeline and without recomputation"
    sheet.keeps("offload", able or not share, why, where(share, {**more, key: round(layers)}))


def recomputed_end(sheet: Sheet, early: bool, why: str) -> None:
    """Where recomputation of a layer ends: before its last product (`early`) or with it, for the
    reason `why`."""
    again = sheet["recompute_layers"] or sheet["recompute_elementwise"]
    told = not again or bool(sheet["recompute_last"]) != early
    sheet.keeps("recompute_last", told, why)
    sheet.tell("last_kept exchange_kept")


def leave_without_experts(sheet: Sheet, names: str) -> bool:
    """Where the model is dense, fields of experts have nothing to say; whether that is so."""
    if is_mixture(sheet):
        return False
    sheet.tell(names)
    return True


def common_rules(sheet: Sheet) -> None:
    """Divisibility that every framework asks for."""
    dp, b, batch = sheet["dp"], sheet["micro_batch"], sheet["global_batch"]
    sheet.divides(batch, dp * b, "the global batch is a multiple of dp · micro-batch")
    sheet.divides(sheet["n_heads"], sheet["tp"], "attention heads are a multiple of tp")
    sheet.divides(sheet["n_kv_heads"], sheet["tp"], "key/value heads are a multiple of tp")
    sheet.divides(
        sheet["d_ff"],
        sheet["etp"] if is_mixture(sheet) else sheet["tp"],
        "the width of the MLP is a multiple of tp",
    )
    if is_mixture(sheet):
        sheet.divides(sheet["n_experts"], sheet["ep"], "experts are a multiple of ep")
        ranks = dp * sheet["tp"] * sheet["cp"]
        sheet.divides(
            ranks,
            sheet["ep"] * sheet["etp"],
            "dp · tp · cp is a multiple of ep · expert tensor parallel",
        )
