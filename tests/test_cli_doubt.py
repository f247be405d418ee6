"""What designs and pairs of plans say of their own doubt: intervals, and the chance that one plan
beats another."""

import json

import pytest
from typer.testing import CliRunner

from dmodel.asked import provenance
from dmodel.cli import app
from dmodel.cli.against import _row, against, second_question
from dmodel.cli.design_doubt import _line_of_alike, add_intervals, doubt_lines
from dmodel.cli.design_plan import design_document, search, show_design, stated_of
from dmodel.cli.options import Job
from dmodel.cli.question import plan_document, setting, short
from dmodel.design import Limits
from dmodel.errors import InputError
from dmodel.profiles import family
from dmodel.question import Question
from dmodel.records import leaf
from dmodel.uncertainty import step_times
from tests.plans import plan as plan_of

WORDS = "--system H100-DGX --devices 16 --model llama-2-7b --seq-len 4096 --global-batch 32"


@pytest.fixture(scope="module")
def asked():
    return setting(Job("H100-DGX", 16, "llama-2-7b", 4096, 32, profile="generic"))


@pytest.fixture(scope="module")
def designed(asked):
    found, _ = search(asked, "exact", 2)
    document = design_document(found, 2)
    add_intervals(asked, stated_of(asked, "flash", "usual", Limits(), "time"), found, document)
    return found, document


def test_software_that_is_not_named_is_said_to_widen_intervals_and_does(asked):
    """The stacks that are named know the chip, and with one of them the interval is narrower and
    nothing more is said."""
    line = provenance(asked)
    assert "--stack" in line and line.startswith("profile generic: ")
    named = line.rpartition("(")[2].strip(")").split(", ")
    known = {
        family(pair.partition(" ")[2])
        for pair in asked.profile.pair_covariances
        if pair.startswith("H100-80GB ")
    }
    assert named and set(named) - {"…"} <= known
    nemo = setting(Job("H100-DGX", 16, "llama-2-7b", 4096, 32, profile="generic", stack="nemo"))
    assert provenance(nemo) == "profile generic: asked for"
    view = provenance(setting(Job("H100-DGX", 16, "llama-2-7b", 4096, 32, profile="h100-megatron")))
    assert "any software:" in line and "any software of the family of megatron:" in view
    plan = plan_of(asked.model, 16, global_batch=32)
    wide, narrow = (
        step_times(a.profile, a.accelerator, a.stack, a.cluster, a.model, plan)
        for a in (asked, nemo)
    )
    assert wide is not None and narrow is not None
    assert narrow.high[0] / narrow.low[0] < 0.8 * wide.high[0] / wide.low[0]


def test_intervals_of_a_design_are_those_of_its_plans(asked, designed):
    found, document = designed
    best, d = found.exact[0], document["exact"][0]
    alone = step_times(asked.profile, asked.accelerator, "", asked.cluster, asked.model, best.plan)
    assert alone is not None
    assert (d["step_time_s_low"], d["step_time_s_high"]) == pytest.approx(
        (alone.low[0], alone.high[0]), rel=1e-9
    )
    assert d["step_time_s_low"] < d["step_time_s"] < d["step_time_s_high"]


def test_a_design_and_a_pair_of_plans_agree_on_which_is_faster(asked, designed):
    (first, second), document = designed[0].exact, designed[1]
    chance = document["beats_next"]["probability"]
    pair = against(asked, first.plan, words_of(second.plan), "generic")
    assert 0.5 <= chance < 1.0 and pair["probability_first_is_faster"] == pytest.approx(
        chance, rel=1e-9
    )
    assert (
        pair["label"] == document["beats_next"]["label"]
        and pair["label"] in doubt_lines(document)[0]
    )
    back = against(asked, second.plan, words_of(first.plan), "generic")
    assert back["probability_first_is_faster"] == pytest.approx(1.0 - chance, rel=1e-9)


def words_of(plan) -> str:
    """A plan's layout as `--against` takes it."""
    names = ("tp", "pp", "cp", "ep", "micro_batch", "interleave", "zero", "shard", "sp", "reshard")
    at = {name: float(leaf(plan, name)) for name in names}
    share = float(plan.layout.recompute_layers)
    again = f"recompute_layers={share!r}" if share else "recompute=none"
    return ",".join([*(f"{n}={x:g}" for n, x in at.items() if n != "shard" or at["zero"]), again])


def test_the_table_of_a_design_shows_the_intervals(asked, designed, capsys):
    near = {"published": {"near": True}}
    show_design({**asked.document(), **designed[1], **near, "assumptions": []})
    text = capsys.readouterr().out
    assert "90 %" in text and "The first plan is faster than the second" in text


def test_a_second_plan_is_the_first_but_for_what_is_named():
    first = Question({"tp": 4.0, "pp": 2.0, "dp": 2.0, "micro_batch": 2.0})
    found = second_question(first, "tp=2, --micro-batch=1,sp=off,recompute=full").columns
    assert found == {"tp": 2.0, "pp": 2.0, "micro_batch": 1.0, "sp": 0.0, "recompute": "full"}
    assert second_question(first, "dp=8,dp=8").columns["dp"] == 8.0
    refused = {
        "tpp=4": "unknown name",
        "tp": "expected NAME=VALUE",
        "tp=two": "tp",
        "tp=2,tp=4": "as 2 and as 4",
    }
    for text, says in refused.items():
        with pytest.raises(InputError, match=says):
            second_question(first, text)


def test_the_shell_sets_two_plans_side_by_side(tmp_path):
    run = lambda words: CliRunner().invoke(app, f"predict {words}".split())  # noqa: E731
    done = run(f"{WORDS} --profile prior --tp 2 --against tp=4 --json")
    other = json.loads(done.stdout)["against"]
    assert (
        other["plan"]["tp"] == 4
        and other["plan"]["dp"] == 4
        and other["probability_first_is_faster"] is None
        and other["probability_first_is_cheaper"] is None
    )
    assert "Two plans" in run(f"{WORDS} --profile prior --tp 2 --against tp=4").stdout
    refused = run(f"{tmp_path}/traces.csv --against tp=4")
    assert refused.exit_code == 2 and "--against is about one plan" in refused.stderr


LLAMA = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
"""A configuration as Hugging Face writes it."""


def test_another_system_and_another_model_leave_open_what_was_said_of_the_first(tmp_path):
    first = Question({"accelerator": "H100-80GB", "n_layers": 30.0, "n_accel": 16.0, "dp": 16.0})
    first = first._replace(system="H100-DGX")
    found = second_question(first, "system=B200-DGX,devices=8")
    assert found.system == "B200-DGX" and found.columns == {"n_layers": 30.0, "n_accel": 8.0}
    found = second_question(first, "model=llama-3-8b")
    assert found.system == "H100-DGX" and "n_layers" not in found.columns
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA))
    found = second_question(first, f"model={file}")
    assert found.model is not None and float(found.model.n_layers) == LLAMA["num_hidden_layers"]
    found = second_question(first, "accelerator=A100-80GB")
    assert found.system == "" and found.columns["accelerator"] == "A100-80GB"
    with pytest.raises(InputError, match="say one"):
        second_question(first, "system=B200-DGX,system=H100-DGX")


def test_two_systems_side_by_side_by_term():
    other = ask_against("system=A100-DGX,devices=16")
    assert other["against"]["system"] == "A100-DGX" and other["against"]["devices"] == 16
    assert other["against"]["peak_flops_per_s"] < other["peak_flops_per_s"]
    for p in (other, other["against"]):
        assert sum(p["breakdown"].values()) == pytest.approx(p["step_time_s"], rel=1e-6)
    chance = other["against"]["probability_first_is_faster"]
    assert 0.5 < chance <= 1.0
    same = ask_against("micro_batch=1")["against"]
    assert same["probability_first_is_cheaper"] == pytest.approx(
        same["probability_first_is_faster"]
    )


def test_a_plan_beside_itself_is_as_likely_faster_as_not_and_a_free_one_is_cheaper():
    """Another profile's draws would not be common; here both have one."""
    other = ask_against("tp=2")["against"]
    assert other["probability_first_is_faster"] == pytest.approx(0.5)
    half = ask_against("devices=8,global_batch=16")["against"]
    assert 0.0 <= half["probability_first_is_faster"] <= 1.0


def test_a_second_plan_says_what_is_assumed_of_it_alone_or_that_it_is_the_first():
    show = lambda text: (  # noqa: E731
        CliRunner().invoke(app, f"predict {WORDS} --tp 2 --against {text}".split()).stdout
    )
    assert ask_against("tp=2")["against"]["same"] and "Both are the same run" in show("tp=2")
    ruled = ask_against("stack=torchtitan")
    own = set(ruled["against"]["assumptions"]) - set(ruled["assumptions"])
    text = show("stack=torchtitan")
    assert not ruled["against"]["same"] and "Both are the same run" not in text
    assert bool(own) == ("Assumed of the second alone" in text) and own


def test_a_difference_that_rounding_leaves_is_none():
    from dmodel.cli.output import seconds

    assert _row("x", 6.44, 6.44 - 3e-8, seconds)[-1] == seconds(0.0)
    assert _row("x", 6.44, 6.43, seconds)[-1].startswith("−")


def ask_against(text: str):
    words = f"predict {WORDS} --profile generic --tp 2 --against {text} --json"
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("worse", "says"), [(-0.0138, "1.38 % faster"), (0.02, "2.00 % slower")])
def test_the_simplest_plan_may_be_the_faster_one(worse, says):
    alike = {"plans": 2, "simplest": "tp 1", "place": 2, "worse": worse}
    assert says in _line_of_alike(alike, 64)


def test_plans_that_differ_in_sequence_parallelism_have_labels_of_their_own(designed):
    plan = designed[0].exact[0].plan
    labels = {short(plan_document(plan.having(tp=2.0, sp=sp))) for sp in (0.0, 1.0)}
    assert len(labels) == 2
    alone = {short(plan_document(plan.having(tp=1.0, sp=sp))) for sp in (0.0, 1.0)}
    assert len(alone) == 1
