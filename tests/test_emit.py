"""Launch settings: what is emitted reads back as the plan, nothing is dropped, broken rules are
named."""

import json
import re
import tomllib
from itertools import product
from pathlib import Path

import pytest

from calibration.importers import Source, formats
from calibration.importers.settings import yaml
from calibration.importers.source import Line
from dmodel import Plan, catalog
from dmodel.emit import TARGETS, Job, emit
from dmodel.emit.sheet import Sheet
from dmodel.errors import InputError
from dmodel.records import LEAVES, having, leaf, sized
from dmodel.settings import parse
from tests.plans import plan as plan_of
from tests.points import EDGE_MODELS

DENSE = catalog.transformer("llama-3-70b", 8192)
LARGEST = catalog.transformer("llama-3.1-405b", 8192)
EXPERTS = catalog.transformer("deepseek-v3", 4096)
FRAMEWORKS = [name for name in TARGETS if name != "json"]
FIELDS = set(LEAVES)


def job(
    model=DENSE,
    name="llama-3-70b",
    devices=512,
    batch=1024,
    precision="bf16",
    accelerator="H100-80GB",
    base=None,
    **plan,
) -> Job:
    return Job(
        model,
        plan_of(model, devices, global_batch=batch, base=base, **plan),
        name,
        precision,
        accelerator,
    )


JOBS = {
    "interleaved": job(tp=8, pp=4, interleave=5, zero=1),
    "sharded over all": job(devices=64, batch=128, zero=3, recompute="full"),
    "hybrid": job(devices=64, batch=128, zero=3, shard=8, micro_batch=2),
    "context": job(devices=128, batch=64, tp=4, cp=4, zero=1, recompute="selective"),
    "stages not alike": job(
        LARGEST, "llama-3.1-405b", devices=1024, tp=8, pp=16, interleave=4, zero=1
    ),
    "stages of a prime": job(DENSE.replace(n_layers=61.0), "", tp=8, pp=16, zero=1),
    "alone": job(devices=1, batch=1),
    "experts": job(EXPERTS, "deepseek-v3", devices=512, tp=2, ep=32, zero=3, shard=64),
    "fp8": job(
        devices=64,
        batch=128,
        tp=8,
        zero=1,
        precision="fp8",
        base=Plan.of(dp=1.0, global_batch=1.0, operand_bytes=1.0),
    ),
}


def megatron_log(settings: dict, devices: int, layers: int) -> str:
    """The dump of arguments that Megatron-LM prints at its start, and one iteration."""
    named = {name.replace("-", "_"): value for name, value in settings.items()}
    renamed = {
        "fp8_format": "fp8",
        "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
    }
    args = {renamed.get(name, name): value for name, value in named.items()}
    inner = (
        args["tensor_model_parallel_size"]
        * args["pipeline_model_parallel_size"]
        * args["context_parallel_size"]
    )
    defaults = {
        "group_query_attention": False,
        "swiglu": False,
        "sequence_parallel": False,
        "recompute_granularity": None,
    }
    args = defaults | {"use_distributed_optimizer": False, "fp16": False} | args
    args |= {
        "world_size": devices,
        "data_parallel_size": devices // inner,
        "padded_vocab_size": args["vocab_size"],
    }
    args["attention_backend"] = "AttnBackend." + args["attention_backend"]
    dump = "\n".join(f"  {name} {'.' * (48 - len(name))} {value}" for name, value in args.items())
    line = (
        " iteration 1/ 5 | elapsed time per iteration (ms): 1000.0 | global batch size: {} |"
    ).format(args["global_batch_size"])
    return f"------------------------ arguments ------------------------\n{dump}\n{line}\n"


def nemo_log(text: str, _: dict) -> str:
    body = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    step = "Training epoch 0, iteration 1/5 | train_step_timing in s: 1.0 | global_step: 1 |"
    return (
        f"[NeMo I] ************** Experiment configuration ***********\n{body}\n[NeMo I] "
        f"start\n{step}\n"
    )


def torchtitan_log(text: str, _: dict) -> str:
    config: dict = {}
    for section, pairs in tomllib.loads(text).items():
        config[section] = pairs
    told = json.dumps(config, indent=1)
    return (
        f"[titan] Running with configs: {told}\n[titan] step: 1  loss: 8.0  memory: "
        "1.00GiB(1.00%)  tps: 1,000  tflops: 1.0  mfu: 1.00%\n"
    )


def maxtext_log(text: str, job: Job) -> str:
    settings = yaml([Line(i, line) for i, line in enumerate(text.splitlines())])
    batch = int(float(job.plan.global_batch))
    settings |= {"global_batch_size_to_train_on": str(batch)}
    lines = [f"Config param {name}: {value}" for name, value in settings.items()]
    devices = int(float(job.plan.devices))
    return (
        "\n".join(
            [
                *lines,
                f"Num_devices: {devices}",
                "completed step: 1, seconds: 1.0, TFLOP/s/device: 1.0",
            ]
        )
        + "\n"
    )


def read_back(target: str, job: Job) -> dict[str, str]:
    """Cells that the importer reads out of a log of a run with the emitted settings."""
    found = emit(target, job)
    if target == "megatron":
        text = megatron_log(found.settings, int(float(job.plan.devices)), int(job.model.n_layers))
    else:
        text = {"nemo": nemo_log, "torchtitan": torchtitan_log, "maxtext": maxtext_log}[target](
            found.text, job
        )
    _, result = formats.parse(Source("run.log", text.encode()), target)
    [(_, cells)] = result.rows
    return cells


def expected(job: Job, left: set[str]) -> dict[str, str]:
    """Cells of the plan that the framework was told."""
    plan = job.plan
    words = {(1.0, 0.0): "full", (0.0, 1.0): "selective", (0.0, 0.0): "none"}
    names = {
        "dp": "dp",
        "tp": "tp",
        "pp": "pp",
        "cp": "cp",
        "micro_batch": "micro_batch",
        "global_batch": "global_batch",
    }
    cells = {
        cell: f"{float(leaf(plan, name)):g}" for name, cell in names.items() if name not in left
    }
    cells["recompute"] = words[
        float(plan.layout.recompute_layers), float(plan.layout.recompute_attention)
    ]
    cells["n_accel"], cells["precision"] = f"{float(plan.devices):g}", job.precision
    return cells


@pytest.mark.parametrize("target", FRAMEWORKS)
@pytest.mark.parametrize("name", JOBS)
def test_what_is_emitted_reads_back_as_the_plan(target, name):
    asked = JOBS[name]
    found = emit(target, asked)
    cells, left = read_back(target, asked), {x.field for x in found.left_out}
    wanted = expected(asked, left)
    if target == "torchtitan" and "recompute_attention" in left:
        wanted["recompute"] = "none"
    if target == "nemo" and "operand_bytes" in left:
        wanted.pop("precision")
    assert {k: cells.get(k) for k in wanted} == wanted
    if target != "torchtitan" or "n_layers" not in left:
        assert target == "torchtitan" or cells["n_layers"] == f"{asked.model.n_layers:g}"
    if asked.plan.layout.zero == 3 and target != "nemo":
        assert cells["zero_stage"] == "3"
    if (
        target in ("torchtitan", "maxtext")
        and 1 < asked.plan.layout.shard < asked.plan.layout.dp
        and asked.plan.layout.zero == 3
    ):
        assert cells["shard"] == f"{float(asked.plan.layout.shard):g}"
    if target == "megatron":
        assert cells["zero_stage"] == f"{float(asked.plan.layout.zero):g}"
        assert cells.get("interleave", "1") == f"{float(asked.plan.layout.interleave):g}"


def test_stages_that_do_not_divide_the_layers_are_told_where_a_framework_can_be():
    """126 and 61 layers on 16 stages: Megatron-LM takes the first, torchtitan both, the others
    neither, and say so."""
    exact, dealt = JOBS["stages not alike"], JOBS["stages of a prime"]
    flags = {f"account-for-{end}-in-pipeline-split": True for end in ("embedding", "loss")}
    told = emit("megatron", exact)
    assert flags.items() <= told.settings.items() and not told.broken
    for asked, layers in ((exact, 2), (dealt, 4)):
        settings = emit("torchtitan", asked).settings
        named = ("layers_per_stage", "first_stage_less_layers", "last_stage_less_layers")
        assert [settings[f"parallelism.pipeline_parallel_{name}"] for name in named] == [
            layers,
            1,
            1,
        ]
    for target, asked in (("megatron", dealt), ("nemo", exact), ("maxtext", exact)):
        found = emit(target, asked)
        assert {"stage_excess", "head_displaces"} <= {x.field for x in found.left_out}
        assert any("multiple of pp" in rule for rule in found.broken)
        assert not flags.keys() & found.settings.keys()


@pytest.mark.parametrize("target", FRAMEWORKS)
def test_every_field_is_told_or_left_out(target):
    """Turning every field away from its default never makes the emitter forget it: `Sheet.done`
    would raise."""
    plain = JOBS["interleaved"].plan
    turned = {
        "dp": 32.0,
        "zero": 3.0,
        "shard": 8.0,
        "reshard": 0.0,
        "sp": 0.0,
        "micro_batch": 2.0,
        "recompute_layers": 0.3,
    }
    turned |= {"accumulate": 1.0}
    turned |= {
        "recompute_attention": 0.5,
        "flash": 0.0,
        "gather_bytes": 1.0,
        "weight_bytes": 4.0,
        "gradient_bytes": 2.0,
    }
    turned |= {
        "optimizer_bytes": 8.0,
        "reduce_bytes": 4.0,
        "schedule": "zero-bubble",
        "placement": ("pp", "dp", "ep", "cp", "tp"),
    }
    turned |= {f"overlap_{kind}": 0.0 for kind in ("tp", "cp", "ep", "dp", "pp")}
    for name, value in turned.items():
        sharded = {"zero": 3.0} if name == "accumulate" else {}
        found = emit(
            target, JOBS["interleaved"]._replace(plan=plain.having(**{name: value, **sharded}))
        )
        named = {x.field for x in found.left_out}
        changed = found.settings != emit(target, JOBS["interleaved"]).settings
        quiet = name in ("overlap_cp", "overlap_ep") or (name, target) in {
            ("reshard", t) for t in FRAMEWORKS
        }
        assert (
            changed
            or name in named
            or quiet
            or found.left_out != emit(target, JOBS["interleaved"]).left_out
        ), name


@pytest.mark.parametrize(
    ("target", "name"), list(product(FRAMEWORKS, ("hybrid", "experts", "context")))
)
def test_what_is_left_out_stands_in_the_file(target, name):
    found = emit(target, JOBS[name])
    comments = " ".join(
        line.lstrip("# ") for line in found.text.splitlines() if line.startswith("#")
    )
    for x in found.left_out:
        assert f" {x.field} = " in comments and " ".join(x.reason.split()) in comments
    for rule in found.broken:
        assert f"BROKEN RULE: {rule}." in comments
    assert found.version in comments


BROKEN = [
    ("megatron", {"n_kv_heads": 8.0}, {"tp": 16, "devices": 512}, "key/value heads"),
    ("megatron", {"seq_len": 8200.0}, {"tp": 1, "cp": 8, "devices": 64, "batch": 64}, "2 · cp"),
    ("torchtitan", {}, {"tp": 8, "zero": 0, "devices": 64, "batch": 64}, "plain data parallelism"),
    (
        "torchtitan",
        {},
        {"tp": 1, "pp": 8, "devices": 64, "batch": 32, "zero": 3},
        "fill the pipeline",
    ),
    ("maxtext", {}, {"tp": 1, "pp": 8, "devices": 64, "batch": 32, "zero": 3}, "multiple of pp"),
    ("maxtext", {"vocab": 50257.0}, {"tp": 8, "devices": 64, "batch": 64}, "vocabulary"),
    ("nemo", {}, {"tp": 8, "pp": 4, "zero": 3, "devices": 64, "batch": 64}, "beside pipeline"),
]


@pytest.mark.parametrize(("target", "shape", "plan", "says"), BROKEN)
def test_rules_of_a_framework_that_a_valid_plan_breaks_are_named(target, shape, plan, says):
    found = emit(target, job(sized(DENSE, **shape), "", **plan))
    assert any(says in rule for rule in found.broken), found.broken


def test_partial_recomputation_is_whole_layers_and_what_changes_is_named():
    asked = JOBS["interleaved"]
    exact = emit("megatron", asked._replace(plan=asked.plan.having(recompute_layers=0.25)))
    assert exact.settings["recompute-num-layers"] == 1 and "recompute_layers" not in {
        x.field for x in exact.left_out
    }
    rounded = emit("megatron", asked._replace(plan=asked.plan.having(recompute_layers=0.3)))
    assert rounded.settings["recompute-num-layers"] == 2 and "recompute_layers" in {
        x.field for x in rounded.left_out
    }
    every = emit("torchtitan", asked._replace(plan=asked.plan.having(recompute_layers=0.25)))
    assert every.settings["activation_checkpoint.selective_ac_option"] == "4"


def test_what_of_a_layer_is_done_again_is_told_where_there_are_words_for_it():
    asked = JOBS["interleaved"]
    parts = {
        "recompute_layers": 0.0,
        "recompute_products": 0.4,
        "recompute_elementwise": 1.0,
        "recompute_last": 0.0,
    }
    by_operator = asked._replace(plan=asked.plan.having(**parts))
    left = {
        target: {x.field for x in emit(target, by_operator).left_out} & set(parts)
        for target in FRAMEWORKS
    }
    assert (
        emit("torchtitan", by_operator).settings["activation_checkpoint.selective_ac_option"]
        == "op"
        and not left["torchtitan"]
    )
    assert left["megatron"] >= {"recompute_products", "recompute_elementwise"} and left[
        "maxtext"
    ] == {"recompute_products"}
    for core, streams, policy in (
        (1.0, 1.0, "minimal"),
        (0.0, 1.0, "minimal_with_context"),
        (0.0, 0.0, "none"),
    ):
        plan = asked.plan.having(
            recompute_layers=0.0, recompute_attention=core, recompute_elementwise=streams
        )
        found = emit("maxtext", asked._replace(plan=plan))
        assert found.settings["remat_policy"] == policy
        assert not {x.field for x in found.left_out} & {
            "recompute_attention",
            "recompute_products",
            "recompute_elementwise",
        }


def test_activations_in_the_host_s_memory_are_whole_layers_or_inputs_of_recomputed_ones():
    asked = JOBS["interleaved"]
    flat = asked._replace(
        plan=asked.plan.having(
            pp=1.0,
            dp=asked.plan.layout.dp * asked.plan.layout.pp,
            interleave=1.0,
            schedule="1f1b",
            offload=0.5,
        )
    )
    layers = float(asked.model.n_layers) / 2.0
    plain = flat._replace(plan=flat.plan.having(recompute_layers=0.0, recompute_attention=0.0))
    assert emit("megatron", plain).settings["cpu-offloading-num-layers"] == layers
    told = emit("nemo", plain).settings
    assert (
        told["model.cpu_offloading_num_layers"] == layers and told["model.cpu_offloading"] is True
    )
    inputs = flat._replace(
        plan=flat.plan.having(offload=1.0, recompute_layers=1.0, recompute_attention=0.0)
    )
    found = emit("maxtext", inputs).settings
    assert (found["remat_policy"], found["decoder_layer_input"]) == ("custom", "offload")
    for target, job in (
        ("megatron", inputs),
        ("nemo", inputs),
        ("maxtext", plain),
        ("torchtitan", plain),
    ):
        assert "offload" in {x.field for x in emit(target, job).left_out}, target
    refused = (
        {"offload": 1.0},
        *(
            {part: 1.0}
            for part in ("recompute_attention", "recompute_products", "recompute_elementwise")
        ),
    )
    # by Megatron-Core: all layers, and any recomputation beside
    for target, change in product(("megatron", "nemo"), refused):
        found = emit(target, plain._replace(plan=plain.plan.having(**change)))
        assert [x.reason for x in found.left_out if x.field == "offload"] == [
            "whole layers are offloaded, without a pipeline and without recomputation"
        ], (target, change)
        assert not any("offloading" in name for name in found.settings)
    for target in FRAMEWORKS:
        assert "offload" not in {x.field for x in emit(target, asked).left_out}


def test_activations_in_the_host_s_memory_are_read_back():
    plain = job(devices=64, batch=64, zero=3)
    half, inputs = (
        plain._replace(plan=plain.plan.having(recompute_attention=0.0, **x))
        for x in (
            {"recompute_layers": 0.0, "offload": 0.5},
            {"recompute_layers": 1.0, "offload": 1.0},
        )
    )
    for target, asked, kind, settings in (
        ("megatron", half, "none", {"offload": 0.5}),
        ("nemo", half, "none", {"offload": 0.5}),
        ("maxtext", inputs, "full", {"offload_inputs": 1.0}),
    ):
        cells = read_back(target, asked)
        assert cells["recompute"] == kind and parse(cells["set"]) == settings, target


def test_axes_of_maxtext_multiply_to_the_devices_inside_and_between_domains():
    for name, asked in JOBS.items():
        found = emit("maxtext", asked).settings
        inside = [v for k, v in found.items() if re.fullmatch(r"ici_\w+_parallelism", k)]
        between = [v for k, v in found.items() if re.fullmatch(r"dcn_\w+_parallelism", k)]
        total = 1
        for value in inside + between:
            total *= value
        assert total == asked.plan.devices, name
        product_inside = 1
        for value in inside:
            product_inside *= value
        assert asked.per_domain % product_inside == 0


def test_files_are_of_their_language():
    asked = JOBS["experts"]
    assert set(tomllib.loads(emit("torchtitan", asked).text)) >= {
        "model",
        "parallelism",
        "training",
    }
    assert json.loads(emit("json", asked).text)["ep"] == 32
    lines = [line for line in emit("megatron", asked).text.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"--[a-z0-9-]+( \S+)?", line) for line in lines)
    nemo = yaml([Line(i, line) for i, line in enumerate(emit("nemo", asked).text.splitlines())])
    assert nemo["model.num_moe_experts"] == "256" and nemo["model.optim.name"] == "fused_adam"


@pytest.mark.parametrize(
    ("target", "asked", "says"),
    [
        ("slurm", JOBS["alone"], "megatron, nemo, torchtitan, maxtext, json"),
        ("megatron", JOBS["alone"]._replace(precision="fp8"), "1 bytes"),
        ("megatron", JOBS["alone"]._replace(precision="fp7"), "bf16"),
        (
            "nemo",
            JOBS["alone"]._replace(plan=JOBS["interleaved"].plan.having(tp=2.5)),
            "whole number",
        ),
    ],
)
def test_what_cannot_be_launched_is_refused(target, asked, says):
    with pytest.raises(InputError, match=says):
        emit(target, asked)


def test_a_forgotten_field_is_a_defect():
    sheet = Sheet(JOBS["alone"])
    sheet.tell("tp")
    with pytest.raises(RuntimeError, match="dp"):
        sheet.done()


def test_the_flags_are_those_of_the_projects():
    """Names as they stand in the file `emit_names.json`, taken from the sources named in the
    emitters."""
    known = json.loads((Path(__file__).parent / "data" / "emit_names.json").read_text())
    for target, asked in product(FRAMEWORKS, JOBS.values()):
        names = {
            name.removeprefix("model.") if target == "nemo" else name
            for name in emit(target, asked).settings
        }
        assert names <= set(known[target]["names"]), (
            f"{target}: {sorted(names - set(known[target]['names']))}"
        )


def test_buckets_that_grow_are_told_where_a_framework_can_be():
    """Megatron's grow by a million gradients a rank from 40 ranks on, unless they are given a size;
    those of the others never do."""

    def left(target: str, ranks: int, per_rank: float) -> tuple[bool, object]:
        asked = job(devices=8 * ranks, batch=8 * ranks, tp=8, zero=1)
        found = emit(target, asked._replace(plan=asked.plan.having(bucket_per_rank=per_rank)))
        return "bucket_per_rank" in {x.field for x in found.left_out}, found.settings.get(
            "ddp-bucket-size"
        )

    grown = 1e6 * float(job(tp=8, zero=1).plan.precision.reduce_bytes)
    assert all(
        left(target, 32, size) == (False, None)
        for target in FRAMEWORKS
        for size in (0.0, grown, 3e6)
    )
    assert [left("megatron", 64, size) for size in (0.0, grown, 3.5e6)] == [
        (False, 40_000_000),
        (False, None),
        (True, None),
    ]
    for target in set(FRAMEWORKS) - {"megatron"}:
        assert [left(target, 64, size)[0] for size in (0.0, grown)] == [False, True]


def test_whether_sums_over_copies_hide_is_as_the_framework_has_it():
    """XLA's loop over layers waits for them, PyTorch and Megatron do not; without copies there is
    nothing to say."""
    hybrid = JOBS["hybrid"]

    def left(target: str, hides: float, shard: float) -> bool:
        asked = hybrid._replace(plan=hybrid.plan.having(overlap_replica=hides, shard=shard))
        return "overlap_replica" in {x.field for x in emit(target, asked).left_out}

    assert {(t, h) for t in FRAMEWORKS for h in (0.0, 1.0) if left(t, h, 8.0)} == {
        ("maxtext", 1.0),
        ("megatron", 0.0),
        ("nemo", 0.0),
        ("torchtitan", 0.0),
    }
    assert not any(left(t, h, float(hybrid.plan.layout.dp)) for t in FRAMEWORKS for h in (0.0, 1.0))


def test_how_kernels_are_started_is_told_where_a_framework_can_be():
    """Megatron adds weight gradients to what it holds unless told otherwise; the others do as they
    do, and graphs are the user's."""
    fused = JOBS["interleaved"]._replace(
        plan=JOBS["interleaved"].plan.having(fused_sums=1.0, graphed=1.0)
    )
    assert "no-gradient-accumulation-fusion" not in emit("megatron", fused).settings
    assert emit("megatron", JOBS["interleaved"]).settings["no-gradient-accumulation-fusion"] is True
    left = {target: {x.field for x in emit(target, fused).left_out} for target in FRAMEWORKS}
    added = fused._replace(plan=fused.plan.having(composed=1.0))
    assert all(
        "composed" in {x.field for x in emit(target, added).left_out} for target in FRAMEWORKS
    )
    assert {target for target, names in left.items() if "graphed" not in names} == {"maxtext"}, (
        "XLA compiles its programs anyway"
    )
    assert {target for target, names in left.items() if "fused_sums" in names} == {
        "torchtitan",
        "maxtext",
    }


@pytest.mark.parametrize("target", FRAMEWORKS)
@pytest.mark.parametrize("index", [0, 8, 11, 12])
def test_layers_that_launchers_of_decoders_do_not_build_are_named(target, index):
    """Scans, gates of the output and picked keys; plain decoders have none."""
    model = EDGE_MODELS[index]
    whole = sized(model, n_kv_heads=11.0) if having(model, "n_kv_heads") else model
    found = emit(target, job(whole, "", devices=8, batch=8))
    named = {x.field for x in found.left_out}
    assert ("hybrid" in named) == (index > 0)


@pytest.mark.parametrize(
    ("target", "precision", "told"),
    [
        ("torchtitan", "fp8", 'recipe_name = "tensorwise"'),
        ("torchtitan", "fp8-rowwise", 'recipe_name = "rowwise"'),
        ("torchtitan", "fp8-blockwise128", ""),
        ("megatron", "fp8", "--fp8-recipe delayed"),
        ("megatron", "fp8-tensorwise", "--fp8-recipe tensorwise"),
        ("megatron", "fp8-blockwise128", "--fp8-format e4m3\n--fp8-recipe blockwise"),
        ("megatron", "fp8-rowwise", ""),
        ("nemo", "fp8", "fp8_hybrid: True"),
        ("nemo", "fp8-rowwise", ""),
        ("maxtext", "fp8", "quantization: fp8"),
        ("maxtext", "fp8-blockwise128", ""),
    ],
)
def test_how_operands_are_scaled_is_told_or_left_out(target, precision, told):
    """Never another recipe than the one that was asked for."""
    text = emit(target, JOBS["fp8"]._replace(precision=precision)).text
    left = any("LEFT OUT operand_bytes" in line for line in text.splitlines())
    assert left == (not told)
    assert told in text
    for words in ("quantize.linear", "--fp8-recipe", "fp8_hybrid", "quantization: fp8"):
        assert told or words not in text
