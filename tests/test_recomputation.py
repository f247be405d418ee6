"""What a layer does again, and what waits in host memory: from words to shares of a plan."""

import numpy as np
import pytest

from calibration.predict import as_asked
from calibration.traces import published, read, to_cases
from dmodel.api import Job, Layout, Site, cluster, predict
from dmodel.cli.question import plan_document
from dmodel.cost import memory
from dmodel.errors import InputError
from dmodel.footprint import RISK
from dmodel.left_blank import Chosen, never_recompute
from dmodel.recomputation import MODULES, PRODUCTS, by_policy, of_modules
from dmodel.records import Plan, leaf
from dmodel.resolve import Resolved
from tests.rows import answered, job, table_file, told

PARTS = ("layers", "attention", "products", "elementwise")


def parts(found: Resolved) -> tuple[float, ...]:
    """What is done again: of layers, the core of attention, products, and what streams."""
    return tuple(float(leaf(found.plan, f"recompute_{part}")) for part in PARTS)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"recompute": "none"}, (0.0, 0.0, 0.0, 0.0)),
        ({"recompute": "selective"}, (0.0, 1.0, 0.0, 0.0)),
        ({"recompute": "full"}, (1.0, 0.0, 0.0, 0.0)),
        ({"recompute": "", "set": "recompute_layers=0.25"}, (0.25, 0.0, 0.0, 0.0)),
        ({"recompute": "", "set": "recompute_modules=core_attn"}, (0.0, 1.0, 0.0, 0.0)),
        ({"recompute": "", "set": "recompute_modules=nothing"}, (0.0, 0.0, 0.0, 0.0)),
        ({"recompute": "", "stack": "megatron-bridge"}, (0.0, 0.0, 0.0, 0.0)),
        ({"recompute": "", "stack": "maxtext"}, (1.0, 0.0, 0.0, 0.0)),
        ({"recompute": "none", "stack": "maxtext"}, (0.0, 0.0, 0.0, 0.0)),
        ({"recompute": "", "stack": "tpu-recipes"}, (0.0, 0.0, 0.0, 0.0)),
        ({"recompute": "selective", "stack": "nemo"}, (0.0, 1.0, 0.0, 0.0)),
        ({"recompute": "full", "stack": "maxtext"}, (1.0, 0.0, 0.0, 0.0)),
        ({"recompute": "selective", "stack": "dmodel-collect"}, (0.0, 0.0, 0.0, 0.0)),
        (
            {"recompute": "selective", "stack": "dmodel-collect", "attention": "none"},
            (0.0, 1.0, 0.0, 0.0),
        ),
    ],
)
def test_what_words_do_again(changes, expected):
    assert parts(answered(**changes)) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"recompute": "none", "set": "recompute_layers=0.5"},
        {"recompute": "full", "set": "recompute_keeps=qkv"},
        {"recompute": "", "set": "recompute_layers=0.5; recompute_modules=mlp"},
    ],
)
def test_words_that_contradict_each_other_are_refused(changes):
    with pytest.raises(InputError, match="these say different things; say one of them"):
        answered(**changes)


def test_policies_keep_results_and_do_the_rest_again():
    """A layer has products of 1 (queries), 1, 1, 1 (output of attention) and 3 · 3.5 parts, of
    which 7 go into the MLP."""
    shape = {"n_layers": "64", "d_model": "8192", "d_ff": "57344"}
    shape |= {"n_heads": "128", "n_kv_heads": "128", "head_dim": "128"}
    ff = 57344 / 16384
    every = 4.0 + 3.0 * ff
    out, up = 1.0 / every, 2.0 * ff / every

    def redone(keeps: str, stack: str = "tpu-recipes", **more: str) -> tuple[float, ...]:
        said = f"recompute_keeps={keeps}" if keeps else ""
        return parts(
            answered(**{"stack": stack, "recompute": "selective", "set": said, **shape, **more})
        )

    assert redone("qkv") == pytest.approx((0.0, 1.0, out + up, 1.0))
    assert redone("qkv+out") == pytest.approx((0.0, 1.0, up, 1.0))
    assert redone("qkv+core") == pytest.approx((0.0, 0.0, out + up, 1.0))
    assert redone("", "maxtext") == redone("qkv+out+up+down", "maxtext") == (0.0, 1.0, 0.0, 1.0)
    assert redone("core+qkv+out+up+down", "maxtext", recompute="") == (0.0, 0.0, 0.0, 1.0)
    # results of experts are weighted: needed again; the router's are few
    visited = 4.0 + 6.0 * ff
    again = (0.0, 1.0, 1.0 - 3.0 / visited, 1.0)
    assert redone("qkv", n_experts="8", top_k="2") == pytest.approx(again, rel=1e-4)


def test_torchtitan_keeps_every_second_product():
    """Llama 3 8B has products of 4, 1, 1, 4, 14, 14 and 14 parts: q, v, w1 and w2 are kept, k, the
    output's and w3 done again."""
    shape = {"d_ff": "14336", "n_kv_heads": "8", "head_dim": "128", "recompute": "selective"}
    case = answered(stack="torchtitan", **shape)
    assert parts(case) == pytest.approx((0.0, 0.0, (1.0 + 4.0 + 14.0) / 52.0, 1.0))
    assert float(case.plan.layout.recompute_bytes) == 0.0
    assert float(case.plan.software.last_kept) == 1.0
    assert float(answered(stack="maxtext", **shape).plan.software.last_kept) == 0.0
    # without a gate the sixth product is the last
    plain = answered(stack="torchtitan", gated_mlp="0", **shape)
    assert parts(plain) == pytest.approx((0.0, 0.0, (1.0 + 4.0) / 38.0, 1.0))


DEEPSEEK = {
    "n_layers": "61",
    "d_model": "7168",
    "d_ff": "2048",
    "n_heads": "128",
    "n_kv_heads": "128",
    "n_experts": "256",
    "top_k": "8",
    "stack": "nemo/25.07",
    "model": "deepseek-v3",
    "recompute": "",
    "tp": "1",
    "dp": "64",
    "pp": "1",
    "ep": "1",
}


def modules(names: str, **more: str) -> Resolved:
    """DeepSeek-V3 with modules that are done again."""
    return answered(**{**DEEPSEEK, "set": f"recompute_modules={names}" if names else "", **more})


def kept(names: str) -> float:
    """Bytes that a layer keeps."""
    found = modules(names)
    return float(memory.layer_activation_bytes(found.model, found.plan))


def test_modules_that_run_again_keep_less():
    """What queries, dense MLPs and experts keep goes with the module, by hand; norms and the
    activation too."""
    plain = modules("")
    t, h, f = float(plain.model.seq_len * plain.plan.layout.micro_batch), 7168.0, 2048.0
    experts = 8.0 * 58.0 / 61.0
    queries = t * 2.0 * (256.0 * (128.0 + 64.0) + 128.0 * 128.0)
    dense, shared = t * 6.0 * 18432.0 * 3.0 / 61.0, t * 6.0 * f * 58.0 / 61.0
    routed, norms = t * experts * (2.0 * h + 6.0 * f), t * 2.0 * 2.0 * h
    gone = {"mla_up_proj": queries, "mlp": dense, "moe": routed + shared, "core_attn": 0.0}
    gone |= {"moe_act": t * experts * 2.0 * f, "layernorm": norms}
    for name, expected in gone.items():
        assert kept("") - kept(name) == pytest.approx(expected, rel=1e-9, abs=1e-6), name
    every = queries + dense + routed + shared
    assert kept("") - kept("mla_up_proj+mlp+moe") == pytest.approx(every, rel=1e-9)
    assert kept("moe+moe_act") == kept("moe"), "what is gone is not gone twice"


def test_modules_that_run_again_take_the_time_of_their_products():
    shares = [parts(modules(names))[2] for names in ("mlp", "moe", "mlp+moe")]
    assert shares[0] + shares[1] == pytest.approx(shares[2], rel=1e-9) and shares[2] < 1.0
    bytes_alone = modules("layernorm+moe_act").plan.layout
    assert float(bytes_alone.recompute_products) == 0.0 < float(bytes_alone.recompute_bytes) < 1.0
    attention = modules("core_attn")
    assert parts(attention) == (0.0, 1.0, 0.0, 0.0)


def test_modules_that_a_model_lacks_are_said():
    lone = answered(stack="nemo/25.07", recompute="", set="recompute_modules=mla_up_proj+moe")
    layout = lone.plan.layout
    assert float(layout.recompute_bytes) == float(layout.recompute_products) == 0.0
    assert "recompute of moe: not counted; counted are core_attn" in told(lone)
    mlp = answered(stack="nemo/25.07", recompute="", set="recompute_modules=mlp").plan.layout
    # all layers of a dense model
    assert 0.3 < float(mlp.recompute_products) < 0.9 and 0.3 < float(mlp.recompute_bytes) < 0.9
    with pytest.raises(InputError, match="expected one of core_attn, mla_up_proj"):
        modules("shared_experts")


def test_every_module_and_policy_says_what_it_is():
    assert of_modules(tuple(MODULES), 8.0).said == (f"recompute of modules {', '.join(MODULES)}",)
    assert by_policy((), 1.0).back == 0.0 < by_policy((), 8.0).back == 1.0
    assert by_policy(PRODUCTS, 1.0).attention == 1.0


@pytest.mark.parametrize(
    ("stack", "model", "accelerator", "precision", "expected"),
    [
        ("megatron-bridge/26.02", "deepseek-v3", "GB200", "mxfp8", "mla_up_proj"),
        ("megatron-bridge/25.09", "deepseek-v3", "H100-80GB", "fp8", "mla_up_proj, mlp"),
        ("megatron-bridge/26.06", "deepseek-v3", "GB300", "mxfp8", ""),
        ("megatron-bridge/26.04", "kimi-k2", "GB300", "mxfp8", "mla_up_proj"),
        ("megatron-bridge/26.04", "qwen3-30b-a3b", "B200", "mxfp8", ""),
        ("megatron-bridge/25.11", "llama3-8b", "H100-80GB", "fp8", ""),
    ],
)
def test_modules_that_megatron_bridge_does_again(stack, model, accelerator, precision, expected):
    found = job(stack, model, accelerator, precision)
    texts = [t for t in told(found).splitlines() if t.startswith("recompute of modules ")]
    assert texts == ([f"recompute of modules {expected}"] if expected else [])
    assert (parts(found)[2] > 0.0) == bool(expected)


def test_layers_and_products_from_latents_of_megatron_bridge():
    """Five of 32 layers on one stage; of DeepSeek-V3, 9.3 % of the products of the mean layer come
    from latents (54.5 of 583 million)."""
    bridge = ("megatron-bridge/26.02", "llama3-8b", "H100-80GB", "fp8")
    assert parts(job(*bridge)) == (5.0 / 32.0, 0.0, 0.0, 0.0)
    assert parts(job(*bridge, pp=2)) == (5.0 / 16.0, 0.0, 0.0, 0.0)
    for said in ({"tuning": "lora"}, {"recompute": "none"}):
        assert parts(job(*bridge, **said)) == (0.0, 0.0, 0.0, 0.0)
    names = ("deepseek-v3", "megatron-bridge/26.02")
    found = to_cases(published().select(lambda r: (r.text("model"), r.stack) == names))
    np.testing.assert_allclose(found.plan.layout.recompute_products, 0.093, atol=0.001)
    assert not np.any(found.plan.layout.recompute_elementwise)
    assert not np.any(found.plan.layout.recompute_layers)


@pytest.mark.parametrize(
    ("changes", "share", "last"),
    [
        ({"stack": "llm-foundry", "recompute": "full"}, 1.0, 0.0),
        ({"stack": "llm-foundry/pure", "recompute": "full"}, 1.0, 1.0),
        ({"stack": "maxtext", "recompute": "full"}, 1.0, 0.0),
        ({"stack": "megatron-lm", "recompute": "full"}, 1.0, 1.0),
        ({"stack": "automodel", "recompute": "full", "flag": "lora"}, 1.0, 1.0),
        ({"stack": "automodel", "recompute": "full", "n_experts": "8", "top_k": "2"}, 1.0, 1.0),
        ({"stack": "torchtitan/0.1.0", "recompute": "", "set": "recompute_layers=0.5"}, 0.5, 0.0),
        ({"stack": "torchtitan", "recompute": "", "set": "recompute_layers=0.5"}, 0.5, 1.0),
        ({"stack": "torchtitan/0.1.0", "recompute": "none"}, 0.0, 0.0),
    ],
)
def test_where_recomputation_ends(changes, share, last):
    plan = answered(**changes).plan
    assert float(plan.layout.recompute_layers) == share
    assert float(plan.software.recompute_last) == last


def test_what_waits_in_the_memory_of_the_host():
    """As shares of the bytes kept: queries, keys and values are 3 of 4 widths beside the layer's
    input."""
    shape = {"n_layers": "64", "d_model": "8192", "d_ff": "57344", "stack": "tpu-recipes"}
    shape |= {"n_heads": "64", "n_kv_heads": "64", "head_dim": "128"}

    def share(said: str, recompute: str = "selective") -> float:
        return float(answered(**shape, recompute=recompute, set=said).plan.layout.offload)

    both = "offload_inputs=1; offload_results=1"
    assert share(f"recompute_keeps=qkv; {both}") == pytest.approx(1.0)
    assert share("recompute_keeps=qkv; offload_results=1") == pytest.approx(0.75)
    assert share("offload_inputs=1", "full") == pytest.approx(1.0)
    assert share("offload=0.25", "none") == pytest.approx(0.25)
    assert share("recompute_keeps=qkv") == share("", "full") == 0.0


FSDP = {"stack": "megatron-bridge/26.04", "model": "llama3-70b", "zero_stage": 3}


@pytest.mark.parametrize(
    ("chip", "changes", "share"),
    [
        ("GB200", {}, 40.0 / 80.0),
        ("GB300", {}, 20.0 / 80.0),
        ("B200", {}, 5.0 / 80.0),
        ("H100-80GB", {}, 0.0),
        ("GB300", {"precision": "bf16"}, 30.0 / 80.0),
        ("GB200", {"model": "llama3.1-405b"}, 95.0 / 126.0),
        ("GB200", {"zero_stage": 1}, 0.0),
        ("GB200", {"pp": 2}, 0.0),
        ("GB200", {"recompute": "full"}, 0.0),
        ("GB200", {"model": "llama3-70b-sft"}, 0.0),
        ("GB200", {"tuning": "lora"}, 0.0),
    ],
)
def test_what_recipes_of_megatron_bridge_offload_beside_fsdp(chip, changes, share):
    found = job(**{**FSDP, "accelerator": chip, "precision": "fp8", "tp": 2, **changes})
    assert float(found.plan.layout.offload) == pytest.approx(share)
    assert ("wait in host memory" in told(found)) == (share > 0.0)


def test_a_rule_that_recomputes_leaves_the_same_parts_in_the_memory_of_the_host(tmp_path):
    """Layer inputs are a small share of what layers keep, and all of it once they are
    recomputed."""
    row = {"stack": "tpu-recipes", "recompute": "", "set": "offload_inputs=1"}
    table = read(table_file(tmp_path, row))
    rules = never_recompute, lambda cases: Chosen(np.ones(1), np.zeros(1), ["so"])
    nothing, everything = (to_cases(table, rule).plan.layout for rule in rules)
    assert 0.0 < nothing.offload[0] < 0.1
    assert (everything.recompute_layers[0], everything.offload[0]) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("done", "words"),
    [
        ({}, "none"),
        ({"recompute_attention": 1.0}, "selective"),
        ({"recompute_elementwise": 1.0, "recompute_products": 0.5}, "selective"),
        ({"recompute_products": 0.2}, "parts of a layer"),
        ({"recompute_products": 0.6, "recompute_attention": 1.0}, "parts of a layer"),
        ({"recompute_layers": 1.0}, "full"),
        ({"recompute_layers": 0.25}, "0.25 of the layers"),
    ],
)
def test_a_document_says_what_is_done_again(done, words):
    assert plan_document(Plan.of(dp=1.0, global_batch=1.0, **done))["recompute"] == words


@pytest.mark.parametrize("stack", ["megatron-lm", ""])
def test_blank_recomputation_is_the_least_at_the_usual_risk_of_the_stack(stack):
    """What is chosen is what is reported: the risk that `predict` states, by the stack's own
    footprint, is the usual one; and where not even all layers fit, that is said."""
    run = Job("llama-3.1-405b", 8192, 256), cluster("H100-DGX", 512)
    found = predict(*run, Layout(tp=8, pp=16), stack=stack)
    assert found.document["oom_probability"] == pytest.approx(RISK, abs=1e-3)
    assert f"a risk of {100 * RISK:.0f} % at most" in str(found.assumptions)
    small = predict(*run, Layout(tp=8, pp=4), stack=stack)
    assert float(small.plan.layout.recompute_layers) == 1.0
    assert small.document["oom_probability"] > RISK
    risk = f"{100 * small.document['oom_probability']:.0f} %"
    assert f"full, even so the risk that memory is not enough is {risk}" in str(small.assumptions)


def test_a_row_with_blank_recomputation_is_predicted_as_its_question(tmp_path):
    row = {"model": "llama-3.1-405b", "accelerator": "H100-80GB", "n_accel": "512", "tp": "8"}
    row |= {"pp": "16", "dp": "4", "global_batch": "256", "seq_len": "8192", "stack": "megatron-lm"}
    row |= {"recompute": "", "micro_batch": "1", "step_time_s": ""}
    shape = "n_layers d_model d_ff n_heads n_kv_heads head_dim vocab gated_mlp".split()
    none = {"recompute": "none"}
    file = table_file(tmp_path, {**row, **dict.fromkeys(shape, "")}, none)
    table = read(file, require_time=False)
    cases = as_asked(table, to_cases(table), None)
    asked = predict(
        Job("llama-3.1-405b", 8192, 256),
        Site("", "H100-80GB", 512),
        Layout(tp=8, pp=16),
        stack="megatron-lm",
    )
    wanted = float(asked.plan.layout.recompute_layers)
    assert cases.plan.layout.recompute_layers.tolist() == pytest.approx([wanted, 0.0])
    assert wanted > to_cases(table).plan.layout.recompute_layers[0]
