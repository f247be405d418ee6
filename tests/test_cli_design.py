"""`dmodel design` from the shell: options, budgets, free sizes, certificates, prices, launch
settings, exit codes."""

import json

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from calibration.importers.settings import yaml
from calibration.importers.source import Line
from dmodel import profiles
from dmodel.cli import app
from dmodel.cli.design_doubt import row_of
from dmodel.cli.design_options import DesignJob, check, device_range, fixed_job, freed
from dmodel.cli.design_plan import search, stated_of, worth
from dmodel.cli.design_tables import show_run
from dmodel.cli.question import setting
from dmodel.coefficients import from_unconstrained, to_unconstrained
from dmodel.cost.memory import out_of_memory_probability
from dmodel.design import Limits, evaluate, evaluate_draws, exact
from dmodel.design.judge import DRAWS
from dmodel.design.search import with_more_memory
from dmodel.errors import InputError

JOB = (
    "--system H100-DGX --devices 16 --model llama-2-7b --seq-len 4096 --global-batch 32 --profile "
    "prior"
)
SMALL = {
    "system": "H100-DGX",
    "devices": "16",
    "model": "llama-2-7b",
    "seq_len": 4096,
    "global_batch": "32",
    "profile": "prior",
}
RUN = (
    "--system H100-DGX --devices 64 --model llama-3-8b --seq-len 8192 --global-batch 256 "
    "--profile prior --starts 1"
)


def run(*parts: object, code: int = 0):
    words = [w for part in parts for w in (part.split() if isinstance(part, str) else [str(part)])]
    result = CliRunner().invoke(app, ["design", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(
        result.exception
    )
    assert result.exit_code == code, result.stderr
    return result


def document(*parts: object, code: int = 0):
    return json.loads(run(*parts, "--json", code=code).stdout)


BAD = {
    "no devices": (JOB.replace("16", "none", 1), "--devices: expected an integer from 1"),
    "range upside down": (JOB.replace("--devices 16", "--devices 64:16"), "smaller number first"),
    "range of three": (JOB.replace("--devices 16", "--devices 1:2:3"), "expected an integer"),
    "batch": (JOB.replace("--global-batch 32", "--global-batch some"), "or free"),
    "free word": (f"{JOB} --free color", "shape, batch, tokens, devices, hardware"),
    "objective": (f"{JOB} --objective beauty", "time, cost, energy, loss, largest"),
    "negative budget": (
        f"{JOB} --budget-dollars -1",
        "--budget-dollars: expected a positive number",
    ),
    "loss of nan": (f"{JOB} --loss nan", "--loss: expected a positive number"),
    "loss and flop": (f"{JOB} --loss 2.2 --flop 1e22", "give one"),
    "loss to be made least": (f"{JOB} --loss 2.2 --objective loss", "leave one of the two"),
    "flop and loss to be made least": (
        f"{JOB} --flop 1e22 --objective loss",
        "time, cost or energy",
    ),
    "loss without budget": (f"{RUN} --objective loss", "expected a limit"),
    "exact search of sizes": (
        f"{JOB} --loss 2.2 --method exact",
        "--method exact: nothing to do here",
    ),
    "front of a run": (f"{RUN} --loss 2.3 --pareto", "--pareto: nothing to do here"),
    "law of a plan alone": (f"{JOB} --law loss=kaplan", "--law: nothing to do here"),
    "no plans to show": (f"{JOB} --top 0", "--top: expected at least 1"),
    "framework": (f"{JOB} --emit slurm", "megatron, nemo, torchtitan, maxtext"),
    "file without framework": (f"{JOB} --emit-out x.toml", "name a framework"),
    "file in no folder": (f"{JOB} --emit megatron --emit-out nowhere/x.args", "does not exist"),
    "space": (f"{JOB} --space huge", "usual, everything"),
    "law without a name": (f"{RUN} --loss 2.3 --law loss", "kind=name"),
    "unknown law": (f"{RUN} --loss 2.3 --law loss=mine", "besiroglu"),
    "no risk at all": (f"{JOB} --max-risk 0", "--max-risk: expected a share above 0"),
    "risk in words": (f"{JOB} --max-risk some", "--max-risk: expected a share above 0"),
    "more risk than not": (f"{JOB} --max-risk 60%", "up to 0.5"),
    "date without a run": (f"{JOB} --until 2099-01-01", "a date needs a run"),
    "date of a searched run": (f"{RUN} --loss 2.3 --until 2099-01-01", "--budget-days"),
    "tokens of a searched run": (f"{RUN} --loss 2.3 --chinchilla", "leave it out"),
    "run without a system": ("--loss 2.3 --devices 8", "--system"),
    "run without devices": ("--loss 2.3 --system H100-DGX", "--devices"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options_end_with_2_and_say_what_to_do(case):
    options, says = BAD[case]
    result = run(options, "--json", code=2)
    assert (
        result.stdout == ""
        and says in result.stderr.replace("\n", " ")
        and "Traceback" not in result.stderr
    )


def test_ranges_and_free_words():
    assert (
        device_range("64:1024") == (64, 1024)
        and device_range("8") == (8, 8)
        and device_range(None) is None
    )
    assert freed(DesignJob(devices="8:16", global_batch="free", free="shape, tokens")) == (
        "shape",
        "tokens",
        "batch",
        "devices",
    )
    assert not DesignJob(devices="8", global_batch="8", model="x", budget_days=3.0).is_run
    assert DesignJob(devices="8", loss=2.0).is_run and DesignJob(objective="largest").is_run
    with pytest.raises(InputError):
        check(DesignJob(tokens=0.0))


@pytest.fixture(scope="module")
def plain():
    return document(JOB, "--top 3 --emit megatron --pareto")


def test_a_design_has_a_certificate_margins_doubt_and_launch_settings(plain):
    best = plain["exact"][0]
    assert plain["certificate_kind"] == "all" and "which were all checked" in plain["certificate"]
    limit = plain["memory_limit"]
    spared = limit["device_bytes"] - limit["usable_bytes"]
    assert best["margins"][0]["name"] == "memory" and best["margins"][0]["margin"] == pytest.approx(
        best["headroom_bytes"] - spared
    )
    assert (
        plain["lower_bound"] == pytest.approx(best["step_time_s"], rel=1e-9)
        and plain["distance_to_lower_bound"] == 0.0
    )
    assert plain["front"][0]["step_time_s"] == pytest.approx(best["step_time_s"], rel=1e-9)
    settings = plain["emit"]["settings"]
    for name, flag in (
        ("tp", "tensor-model-parallel-size"),
        ("pp", "pipeline-model-parallel-size"),
        ("micro_batch", "micro-batch-size"),
    ):
        assert settings[flag] == best["plan"][name]
    assert (
        all(x["field"] and x["reason"] for x in plain["emit"]["left_out"])
        and plain["emit"]["target"] == "megatron"
    )


def test_predict_writes_launch_settings_of_the_plan_that_is_given(plain, tmp_path):
    words = "--system H100-DGX --devices 16 --model llama-2-7b --seq-len 4096 --global-batch 32"
    plan = "--tp 2 --micro-batch 2 --zero 1 --recompute none --profile prior --emit megatron"
    file = tmp_path / "plan.args"
    told = ["predict", *words.split(), *plan.split(), "--emit-out", str(file), "--json"]
    done = CliRunner().invoke(app, told)
    found = json.loads(done.stdout)["emit"]
    assert done.exit_code == 0 and file.read_text() == found["text"]
    settings = found["settings"]
    assert settings["tensor-model-parallel-size"] == settings["micro-batch-size"] == 2
    assert settings["use-distributed-optimizer"] and "recompute-granularity" not in settings
    of_model = [name for name in settings if name in ("num-layers", "hidden-size", "vocab-size")]
    assert of_model and all(settings[n] == plain["emit"]["settings"][n] for n in of_model)
    wrong = CliRunner().invoke(app, ["predict", *words.split(), "--emit", "slurm"])
    assert wrong.exit_code == 2 and "megatron, nemo, torchtitan, maxtext" in wrong.stderr


GRADIENT = (
    "gradient",
    "gap",
    "evaluated_by_gradient_search",
    "relaxed_merit",
    "relaxed_step_time_s",
)


def test_what_the_gradient_finds_is_there_on_request_alone(plain):
    assert not set(GRADIENT) & set(plain)
    both = document(JOB, "--method both --starts 2 --brief")
    assert set(GRADIENT) <= set(both) and both["gap"] >= 0.0
    assert both["exact"][0]["plan"] == plain["exact"][0]["plan"]


def test_what_more_memory_is_worth_is_what_a_search_with_it_finds():
    """Known from the same pass over the plans."""
    job = DesignJob(
        system="A100-DGX",
        devices="64",
        model="llama-2-70b",
        seq_len=4096,
        global_batch="64",
        profile="prior",
    )
    asked = setting(fixed_job(job))
    found, _ = search(asked, "exact", 1)
    p = stated_of(asked, "flash", "usual", Limits(), "time")
    again = exact(with_more_memory(p), 1)
    assert found.eased == again.merits[0] <= float(found.exact[0].step_time_s) * (1.0 + 1e-9)
    assert worth(p, found) == worth(p, found.replace(eased=None))


def test_draws_are_judged_as_each_alone():
    asked = setting(fixed_job(DesignJob(**SMALL)))
    found, _ = search(asked, "exact", 3)
    p = stated_of(asked, "flash", "usual", Limits(), "time")
    rows = np.array([row_of(c, p) for c in found.exact])
    z = np.asarray(to_unconstrained(p.coefficients))
    drawn = from_unconstrained(z[:, None] + np.linspace(-0.1, 0.1, DRAWS + 3))
    together = evaluate_draws(p, rows, drawn)
    assert together.step_time_s.shape == (DRAWS + 3, 3)
    for i in (0, DRAWS, DRAWS + 2):
        alone = p.replace(coefficients=jax.tree.map(lambda x, at=i: x[at], drawn))
        one = evaluate(alone, rows)
        np.testing.assert_allclose(together.step_time_s[i], one.step_time_s, rtol=1e-12)
        np.testing.assert_allclose(together.joules[i], one.joules, rtol=1e-12)


def test_tables_for_people_show_certificate_and_file(tmp_path):
    file = tmp_path / "plan.yml"
    result = run(JOB, "--top 2 --emit maxtext", "--emit-out", file)
    assert "Certificate:" in result.stdout and f"wrote {file}" in result.stderr
    settings = yaml([Line(i, line) for i, line in enumerate(file.read_text().splitlines())])
    assert settings["base_num_decoder_layers"] == "32" and settings["hardware"] == "gpu"
    assert "ici_data_parallelism" in run(JOB, "--brief --emit maxtext").stdout


def test_a_budget_is_a_limit_of_the_plan_and_too_small_a_one_says_what_would_do():
    d = document(JOB, "--tokens 1e11 --budget-days 1000 --brief")
    names = [m["name"] for m in d["exact"][0]["margins"]]
    assert "deadline" in names and "100" in " ".join(d["assumptions"]).replace("1e+11", "100")
    d = document(JOB, "--tokens 1e13 --budget-days 1 --brief", code=1)
    assert (
        d["binding"]["name"] == "deadline"
        and d["binding"]["unit"] == "s"
        and d["binding"]["amount"] > 0.0
    )
    assert any(r["name"] == "deadline" for r in d["remedies"]) and d["closest"] is not None


@pytest.fixture(scope="module")
def whole():
    return document(RUN, "--loss 2.3 --budget-days 400 --objective cost --brief --emit torchtitan")


def test_a_run_to_a_loss_has_sizes_limits_and_launch_settings(whole):
    sizes = {x["name"]: x for x in whole["sizes"]}
    assert (whole["devices"], whole["global_batch"]) == (64, 256)
    assert (
        sizes["tokens"]["free"]
        and not sizes["d_model"]["free"]
        and sizes["devices"]["value"] == 64.0
    )
    assert (
        whole["quantities"]["loss"] == pytest.approx(2.3, rel=1e-6)
        and whole["limits"]["loss"] == 2.3
    )
    assert (
        whole["value"] == pytest.approx(whole["quantities"]["dollars"])
        and whole["unit"] == "dollar"
    )
    assert whole["laws"]["loss"]["source"].startswith("Besiroglu")
    assert "valid plans" in whole["certificate"] and whole["evaluations"]["total"] > 1000
    assert (
        whole["emit"]["settings"]["model.flavor"] == "8B"
        and whole["emit"]["settings"]["training.global_batch_size"] == 256
    )


def test_a_compute_budget_is_tokens_of_a_model(whole):
    d = document(RUN, f"--flop {whole['quantities']['flop']!r} --objective cost --brief")
    assert d["quantities"]["tokens"] == pytest.approx(whole["quantities"]["tokens"], rel=1e-6)
    assert d["value"] == pytest.approx(whole["value"], rel=1e-6) and any(
        "FLOP" in a for a in d["assumptions"]
    )


@pytest.mark.slow
def test_a_run_says_what_limits_are_worth_and_which_law_decides():
    d = document(RUN, "--loss 2.3 --budget-days 400 --objective cost --profile generic")
    loss = next(p for p in d["shadow_prices"] if p["name"] == "loss")
    assert loss["elasticity"] < 0.0 and loss["kind"] == "limit" and d["deciding_law"] in d["laws"]
    assert d["robust"] is None or 0.0 <= d["robust"]["best_in"] <= 1.0


@pytest.mark.slow
def test_a_run_that_nothing_allows_ends_with_1_and_names_limits():
    d = document(RUN, "--loss 2.1 --budget-days 1 --brief", code=1)
    assert d["best"] is None and d["nearest"]["violation"] > 0.0
    assert {x["name"] for x in d["nearest_changes"]} >= {"loss", "seconds"}
    eased = {x["name"]: x["needed"] for x in d["nearest_changes"]}
    assert eased["seconds"] is not None and eased["seconds"] > 86400.0


def test_a_run_for_people(whole, capsys):
    show_run(whole)
    text = capsys.readouterr().out
    assert "days" in text and "Certificate:" in text and "n_layers" in text and "Assumed:" in text


def test_every_plan_says_how_likely_memory_is_too_little():
    """By the spread of memory that the profile has of such software, as `predict` says it of a
    plan."""
    found = document(JOB, "--top 2 --brief")
    fitted = profiles.load("prior").footprint_for("")
    for plan in found["exact"]:
        needed, room = plan["memory_bytes_per_device"], plan["headroom_bytes"]
        expected = out_of_memory_probability(needed, needed + room, fitted.spread)
        assert (
            plan["oom_probability"] == pytest.approx(float(expected))
            and 0.0 < plan["oom_probability"] < 0.5
        )
    assert "Risk: that a device has too little memory" in run(JOB, "--top 1 --brief").stdout


TIGHT = (
    "--system A100-DGX --devices 64 --model llama-2-70b --seq-len 4096 --global-batch 64 "
    "--profile prior"
)


def test_plans_keep_the_risk_and_what_that_costs_is_said():
    """With half the risk memory may be filled as it is predicted, which is the search without a
    limit of risk."""
    kept = document(TIGHT, "--brief --max-risk 5%")
    filled = document(TIGHT, "--brief --max-risk 0.5")
    assert all(plan["oom_probability"] <= 0.05 + 1e-9 for plan in kept["exact"])
    assert filled["exact"][0]["oom_probability"] > 0.05
    best, most = (d["exact"][0]["step_time_s"] for d in (kept, filled))
    assert best > most and filled["memory_limit"]["costs"] == 0.0
    assert kept["memory_limit"]["costs"] == pytest.approx(best / most - 1.0, rel=1e-9)
    asked = setting(fixed_job(DesignJob(**{**SMALL, "system": "A100-DGX"})))
    plain, _ = search(asked, "exact", 1)
    again, _ = search(asked, "exact", 1, limits=Limits(memory=1.0))
    assert plain.exact[0].plan == again.exact[0].plan


def test_where_no_plan_keeps_the_risk_the_least_risky_is_named():
    few = TIGHT.replace("--devices 64", "--devices 16")
    result = run(few, "--brief", code=1)
    assert "The least risky plan:" in result.stdout and "that plans may need" in result.stderr
    d = document(few, "--brief", code=1)
    memory = next(r for r in d["remedies"] if r["name"] == "memory")
    assert memory["was"] == pytest.approx(d["memory_limit"]["device_bytes"])
    assert d["closest"]["oom_probability"] > 0.1 and d["memory_limit"]["costs"] is None


def test_bounds_of_groups_know_the_risk():
    """A search that leaves groups out by their bounds finds the same plans."""
    asked = setting(fixed_job(DesignJob(**{**SMALL, "system": "A100-DGX"})))
    p = stated_of(asked, "flash", "usual", Limits(memory=0.6), "time")
    every, pruned = (exact(p, 3, prune=prune) for prune in (False, True))
    np.testing.assert_array_equal(every.rows, pruned.rows)


def test_of_plans_that_cannot_be_told_apart_the_simplest_is_named():
    d = document(JOB.replace("--profile prior", "--profile generic"), "--top 3")
    alike = d["robust"]["alike"]
    assert 1 <= alike["plans"] <= d["robust"]["rivals"] and alike["place"] >= 1
    assert alike["step_time_s"] >= d["exact"][0]["step_time_s"] and alike["simplest"]


def test_every_plan_of_a_run_says_days_and_dollars():
    d = document(JOB, "--tokens 1e12 --top 2 --brief --price-per-hour 1")
    assert [p["dollars"] for p in d["exact"]] == pytest.approx(
        [p["device_hours"] for p in d["exact"]]
    )
    assert d["days"] == d["exact"][0]["days"] < d["exact"][1]["days"] * (1.0 + 1e-9)
    assert d["exact"][0]["run"]["tokens"] == 1e12


@pytest.mark.parametrize(
    ("words", "attention"),
    [("--stack gpt-neox", "none"), ("--stack gpt-neox --attention flash", "flash"), ("", "flash")],
)
def test_attention_that_nobody_said_is_the_stacks(words, attention):
    job = "--system A100-DGX --devices 8 --model pythia-1b --global-batch 64 --precision fp16"
    found = document(job, words, "--brief --top 1")
    assert found["exact"][0]["plan"]["attention"] == attention
