"""Commands of the shell agree: `design` judges a plan as `predict` does the same degrees; what was
fitted is what is used."""

import dataclasses

import numpy as np
import pytest

from calibration.fit import fit
from calibration.traces import published, to_cases
from dmodel.cli import answer
from dmodel.cli.design_plan import search, stated_of
from dmodel.cli.options import Degrees, Job
from dmodel.cli.question import choices_of, plan, provenance, setting
from dmodel.design import Limits, evaluate, rows
from dmodel.profiles import load, save
from dmodel.types import InputError

NODE = {"system": "H100-DGX", "devices": 16, "model": "llama-3-8b", "global_batch": 32}
NAMES = ("micro_batch", "tp", "pp", "cp", "ep", "interleave", "zero", "shard")


def degrees_of(row: np.ndarray) -> Degrees:
    """A row of the space as options."""
    at = {name: int(row[rows.INDEX[name]]) for name in NAMES}
    share = float(row[rows.INDEX["recompute_layers"]])
    sharded = {
        "shard": at["shard"] if at["zero"] else None,
        "reshard": at["zero"] < 3 or bool(row[rows.INDEX["reshard"]]),
    }
    return Degrees(
        **{**at, **sharded},
        sp=bool(row[rows.INDEX["sp"]]),
        recompute=repr(share) if share else "none",
    )


STAGED = [
    ("nemo-launcher", "fp8"),
    ("mlperf-train-v4.0", "bf16"),
    ("ultrascale-playbook", "bf16"),
    ("torchtitan", "bf16"),
]


@pytest.mark.parametrize(
    ("stack", "precision", "differ"),
    [*((*names, True) for names in STAGED), ("deepspeed", "bf16", False)],
)
def test_design_judges_plans_as_predict_does(stack, precision, differ):
    """Random plans of the space, one by one: step time and memory."""
    job = setting(Job(**NODE, precision=precision, stack=stack))
    choices, said = choices_of(job)
    assert bool(choices.kept) == differ == any("ZeRO stage" in text for text in said)
    stated = stated_of(job, "flash", "usual", Limits(), "time")
    offered = rows.all_rows(stated.space)
    chosen = offered[np.random.default_rng(0).permutation(len(offered))[:24]]
    assert len(set(chosen[:, rows.INDEX["zero"]])) >= 3
    found = evaluate(stated, chosen)
    for i, row in enumerate(chosen):
        told = answer.answer(job, plan(job, degrees_of(row))[0])
        assert told["step_time_s"] == pytest.approx(float(found.step_time_s[i]), rel=1e-9)
        assert told["memory_bytes_per_device"] == pytest.approx(
            float(found.memory_bytes[i]), rel=1e-9
        )


def test_a_recipe_for_stage_1_is_found_where_there_is_nothing_to_shard():
    """GPT-3 175B on 32 H100 in 8 bits fits with the 10 bytes of NeMo's optimizer alone, on one
    data-parallel rank."""
    asked = {
        **NODE,
        "devices": 32,
        "model": "gpt-3-175b",
        "seq_len": 4096,
        "precision": "fp8",
        "stack": "nemo-launcher",
    }
    found, said = search(setting(Job(**asked)), "exact", 1)
    best = found.exact[0].plan
    assert (
        float(best.layout.zero),
        float(best.layout.dp),
        float(best.precision.optimizer_bytes),
    ) == (1.0, 1.0, 10.0)
    assert any("each plan's ZeRO stage" in text for text in said) and not any(
        "gradients reduced in" in text for text in said
    )


@pytest.mark.parametrize(
    ("stack", "model", "devices", "pp"),
    [
        ("ultrascale-playbook", "llama-3-8b", 16, 4),
        ("megatron-bridge/26.02", "deepseek-v3", 512, 16),
    ],
)
def test_stages_lie_as_the_stack_lays_them_out(stack, model, devices, pp):
    """nanotron's by cost, those of Megatron-Bridge's recipe for DeepSeek-V3: a search has what one
    plan has, and tells of it."""
    job = setting(
        Job(system="H100-DGX", devices=devices, model=model, global_batch=4 * devices, stack=stack)
    )
    choices, said = choices_of(job)
    own = {(laid.pp, laid.interleave): laid for laid in choices.laid}[pp, 1]
    asked = Degrees(pp=pp, ep=8 if float(job.model.n_experts) > 1.0 else 1)
    one = plan(job, asked)[0]
    assert (
        (float(one.layout.stage_excess), float(one.layout.head_displaces))
        == (own.stage_excess, own.head_displaces)
        != (0.0, 0.0)
    )
    assert any("as the stack lays them out" in text for text in said)
    assert not choices_of(setting(Job(**NODE, stack="vtrain")))[0].laid


def test_torchtitan_runs_stage_2_as_stage_1():
    job = setting(Job(**NODE, stack="torchtitan"))
    (one, _), (two, said) = (plan(job, Degrees(tp=2, zero=zero)) for zero in (1, 2))
    assert float(two.layout.zero) == 1.0 and "reduced once a step" in " ".join(said)
    assert float(one.precision.reduce_bytes) == float(two.precision.reduce_bytes)
    assert choices_of(job)[0].zero == (0, 1, 3)


def test_a_plan_fits_by_all_that_a_device_holds():
    """Of a stack with measured peaks: memory, whether it fits and how likely it does not are of one
    device, as `design` has it."""
    job = setting(Job(**{**NODE, "devices": 64, "global_batch": 128}, stack="torchtitan"))
    told = answer.answer(job, plan(job, Degrees(zero=3))[0])
    assert sum(told["memory"].values()) == pytest.approx(told["memory_bytes_per_device"], rel=1e-12)
    assert told["fits"] == (told["oom_probability"] < 0.5)


def test_a_share_of_layers_is_recomputed():
    job = setting(Job(**NODE))
    whole, none, some = (
        plan(job, Degrees(zero=3, recompute=text))[0] for text in ("full", "none", "0.25")
    )
    assert [float(p.layout.recompute_layers) for p in (whole, none, some)] == [1.0, 0.0, 0.25]
    for text in ("1.5", "-0.1", "nan", "some"):
        with pytest.raises(InputError, match="recompute: expected"):
            plan(job, Degrees(zero=3, recompute=text))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A profile of eight rows of one stack, as the shell writes it."""
    cases = to_cases(
        published().select(
            lambda row: row.stack == "llm-foundry" and row.accelerator == "H100-80GB"
        )
    )
    path = tmp_path_factory.mktemp("fitted") / "mine.json"
    save(fit(cases.take(np.arange(8)), load("h100-megatron"), starts=1), path)
    return path


def test_a_fitted_profile_answers_for_its_own_stack(fitted):
    """Without `--stack` a profile fitted to rows of one stack answers for that one, and says so; of
    several it asks, naming them first."""
    asked, named = (
        setting(Job(**NODE, profile=str(fitted), stack=stack)) for stack in ("", "llm-foundry")
    )
    assert asked.stack == "llm-foundry" and "llm-foundry" in provenance(asked)
    assert answer.answer(asked, plan(asked, Degrees())[0]) == answer.answer(
        named, plan(named, Degrees())[0]
    )
    two = dataclasses.replace(load(str(fitted)), own=("vtrain", "llm-foundry"))
    save(two, fitted.parent / "two.json")
    open_ = setting(Job(**NODE, profile=str(fitted.parent / "two.json")))
    assert open_.stack == "" and "(vtrain, llm-foundry, " in provenance(open_)
