"""Parts of a model and a plan that several frameworks share the words for."""

from __future__ import annotations

from collections.abc import Mapping

from dmodel.emit.sheet import Setting, Sheet
from dmodel.records import BUCKET_GRADIENTS, BUCKET_GRADIENTS_PER_RANK
from dmodel.stages import ENDS, held, layout

FORMATS = {1.0: "8-bit", 0.5: "4-bit", 2.0: "16-bit", 4.0: "32-bit"}


def is_mixture(sheet: Sheet) -> bool:
    """Whether the model has experts."""
    return sheet["n_experts"] > 1


def is_latent(sheet: Sheet) -> bool:
    """Whether attention projects keys and values to a latent (MLA)."""
    return sheet["kv_rank"] > 0


def chunk_layers(sheet: Sheet) -> float:
    """Layers of one model chunk of the fullest stage, L/(pp v) where all are alike."""
    return (
        float(held(sheet["n_layers"], sheet["pp"], sheet["interleave"]).fullest)
        / sheet["interleave"]
    )


def lay_out(sheet: Sheet, ends: Mapping[str, Setting] | None, dealt: bool = False) -> None:
    """What stages of the pipeline hold: all alike, or with a layer's place for embedding and head
    each by the settings `ends`, where the framework has such (`dmodel.stages`); whether it deals
    out what chunks do not divide (`dealt`)."""
    layers, chunks = sheet["n_layers"], sheet["pp"] * sheet["interleave"]
    usual = layout(layers, sheet["pp"], sheet["interleave"], sheet["n_mtp"])
    as_usual = all(abs(sheet[name] - float(value)) < 1e-9 for name, value in usual.items())
    whole, shared = (
        layers % chunks == 0,
        ends is not None and (dealt or (layers + ENDS) % chunks == 0),
    )
    told = None if not as_usual else {} if whole else ends if shared else None
    sheet.either(
        "stage_excess head_displaces",
        told,
        "stages that are not alike have layouts of their own to write",
    )
    places = "layers, or those and embedding and head," if ends is not None else "layers"
    sheet.rule(
        whole or shared,
        f"{places} are a multiple of pp · model chunks: {layers:g} is no multiple of {chunks:g}",
    )


def leave_what_no_launcher_knows(sheet: Sheet) -> None:
    """Fields that describe what happens, not what is launched, and models that decoder launchers do
    not build."""
    if is_mixture(sheet):
        sheet.leave(
            "imbalance",
            (
                "how uneven routing is follows from data and router; no framework takes it as a "
                "setting"
            ),
        )
    else:
        sheet.tell("imbalance")
    biases = (
        "biases of products follow from a model's own settings, beside its norms (Megatron-LM: "
        "leave out --disable-bias-linear)"
    )
    sheet.either("expert_biases", {} if sheet["expert_biases"] == 0 else None, biases)
    hybrid = (
        "attention_share mlp_share mamba_share mamba_inner mamba_heads mamba_groups mamba_state"
    )
    if sheet["mamba_share"] or sheet["attention_share"] != 1 or sheet["mlp_share"] != 1:
        sheet.leave(
            hybrid,
            (
                "hybrid stacks have launchers and layer patterns of their own; write that pattern "
                "yourself"
            ),
        )
    else:
        sheet.tell(hybrid)
    sheet.either(
        "causal",
        {} if sheet["causal"] == 1 else None,
        "launchers of language models train causal attention",
    )
    padded = {} if sheet["unpadded_vocab"] == 0 else None
    sheet.either(
        "unpadded_vocab",
        padded,
        "frameworks pad their vocabulary, or have it padded, to what ranks of tp divide by 8",
    )
    adapters = "first_adapters first_adapted last_adapters last_adapted adapter_dropout"
    whole = sheet["trainable"] == 1 and not any(sheet[name] for name in adapters.split())
    sheet.either(
        f"trainable {adapters}",
        {} if whole else None,
        "adapters on a frozen base have settings of their own",
    )


def launched(sheet: Sheet, fused: bool, looped: bool, why: str, compiled: bool = False) -> None:
    """How kernels are started: whether products of weight gradients add to what is held (`fused`),
    whether experts are looped over (`looped`), for the reason `why`; graphs are left to the user,
    but where the framework compiles its programs (`compiled`)."""
    sheet.either("fused_sums", {} if bool(sheet["fused_sums"]) == fused else None, why)
    rotary = (
        "rotary embeddings are one kernel where the framework has one for the model's; no setting "
        "splits it"
    )
    sheet.either("split_rotary", {} if not sheet["split_rotary"] else None, rotary)
    gathers = "whether tensor ranks gather in 8 bits follows from how the framework quantizes"
    sheet.either("narrow_gathers", {} if sheet["narrow_gathers"] == 1 else None, gathers)
    sums = (
        "tensor ranks sum in 8 bits by settings of each product (Megatron Bridge: "
        "TPOverlapCfg.fp8_buf)"
    )
    sheet.either("narrow_sums", {} if not sheet["narrow_sums"] else None, sums)
    loss = {} if sheet["logit_bytes"] == (2 if compiled else 8) else None
    sheet.either(
        "logit_bytes", loss, "the framework's loss decides whether it reads a copy of the logits"
    )
    graphs = "CUDA graphs need settings that follow from the shapes of a run; write them yourself"
    sheet.either("graphed", {} if compiled or not sheet["graphed"] else None, graphs)
    sheet.either(
        "composed",
        {} if not sheet["composed"] else None,
        "a step that is added up from parts measured apart is run by nobody",
    )
    told = not is_mixture(sheet) or bool(sheet["looped_experts"]) == looped
    sheet.either("looped_experts", {} if told else None, why)
    route = (
        "ranks gather the map of who visits whom as their dispatcher does (Megatron-LM: "
        "--moe-flex-dispatcher-backend hybridep)"
    )
    sheet.either("route_bytes", {} if not sheet["route_bytes"] else None, route)
    fuser = (
        "fused products of experts are a matter of chip, precision and release (Megatron-LM: "
        "--use-transformer-engine-op-fuser)"
    )
    sheet.either("fused_experts", {} if not sheet["fused_experts"] else None, fuser)
    core = (
        "attention in 8 bits is a setting of the model's configuration (Megatron-Core: "
        "fp8_dot_product_attention)"
    )
    sheet.either("attention_bytes", {} if sheet["attention_bytes"] == 2 else None, core)
    kernels = "attention runs in the kernels that the framework has for the chip"
    newest = sheet["attention_rate"] == 1 and sheet["attention_backward_rate"] == 1
    sheet.either("attention_rate attention_backward_rate", {} if newest else None, kernels)


def buckets(sheet: Sheet, grown: float, why: str, fixed: dict[str, Setting] | None = None) -> None:
    """How much messages once per step grow by each rank of their group (`grown` [byte]), for the
    reason `why`; where they have one size instead, settings that keep it (`fixed`)."""
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
    sheet.either("overlap_replica", {} if told else None, why)


def sharded_rounds(sheet: Sheet, accumulates: bool, why: str) -> None:
    """When FSDP reduces: after each micro-batch or (`accumulates`)
    once per step, for the reason `why`."""
    sharded = sheet["zero"] in (2, 3) and sheet["global_batch"] > sheet["dp"] * sheet["micro_batch"]
    sheet.either(
        "accumulate", {} if not sharded or bool(sheet["accumulate"]) == accumulates else None, why
    )


def leave_parts(sheet: Sheet, why: str, key: str = "") -> None:
    """Layers of which products, what streams or modules are done again, but not all: no setting
    says that, for the reason `why`; where a framework names modules in a setting `key`, which
    products and bytes are of the plan does not say."""
    named = (
        f"a plan holds shares of what runs again, no names of modules: write {key} yourself"
        if key
        else why
    )
    for part, reason in (("products", named), ("elementwise", why), ("bytes", named)):
        told = not sheet[f"recompute_{part}"] or sheet["recompute_layers"] == 1
        sheet.either(f"recompute_{part}", {} if told else None, reason)


def offloaded_layers(sheet: Sheet, key: str, more: Mapping[str, Setting]) -> None:
    """Layers whose activations wait in the host's memory, by a setting of that name: whole ones,
    not all, and not beside a pipeline or
    any recomputation, as Megatron-Core refuses."""
    share, layers = sheet["offload"], sheet["offload"] * sheet["n_layers"]
    again = any(
        sheet[f"recompute_{part}"]
        for part in ("layers", "attention", "products", "elementwise", "bytes")
    )
    whole = abs(layers - round(layers)) < 1e-9 and round(layers) < sheet["n_layers"]
    able = sheet["pp"] == 1 and not again and whole
    told: dict[str, Setting] = {**more, key: round(layers)} if share else {}
    why = "whole layers are offloaded, without a pipeline and without recomputation"
    sheet.either("offload", told if able or not share else None, why)


def recomputed_end(sheet: Sheet, early: bool, why: str) -> None:
    """Where recomputation of a layer ends: before its last product (`early`) or with it, for the
    reason `why`."""
    again = sheet["recompute_layers"] or sheet["recompute_elementwise"]
    told = not again or bool(sheet["recompute_last"]) != early
    sheet.either("recompute_last", {} if told else None, why)
    sheet.tell("last_kept")


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
