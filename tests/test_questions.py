"""Questions whose end is known: what counts as right, and what is written down of each."""

import re
import shlex

import pytest

from dmodel.diagnose.causes import beliefs
from experiments import questions
from experiments.questions import CHECKS, asked, summary

ALL = asked()
PAIR = {"step_time_s": 2.0, "against": {"step_time_s": 1.5}}
SURE = {"speedup": 4 / 3, "speedup_low": 1.0, "speedup_high": 2.0}
SLOW = {
    "verdict": "slower",
    "causes": [
        {"name": n} for n in ("nothing", "straggler", "slow-host", "throttled", "pcie-inside")
    ],
    "kinds": {"nothing": 0.4, "straggler": 0.2, "host": 0.2, "chip": 0.1, "network": 0.1},
}


def test_each_has_a_name_a_source_and_something_to_be_right_about():
    names = [each["name"] for each in ALL]
    assert len(set(names)) == len(names) > 100
    for each in ALL:
        assert re.fullmatch(r"[a-z0-9.-]+", each["name"]), each["name"]
        assert each["source"].startswith("https://"), each["name"]
        assert each["asked"] and each["known"], each["name"]
        assert {*CHECKS, "peak_gib"} & set(each), each["name"]
        extra = set(each) - {*CHECKS, "peak_gib"}
        assert extra == {"about", "name", "source", "seen", "asked", "known", "command"}


def test_commands_and_causes_are_those_of_the_program():
    causes = {each.name for each in beliefs().causes}
    for each in ALL:
        command, *words = shlex.split(each["command"])
        assert command in ("predict", "diagnose", "design", "solve")
        assert "--json" not in words
        assert causes.issuperset(each.get("causes", ())), each["name"]


@pytest.mark.parametrize(
    ("check", "said", "right", "is_right"),
    [
        ("ratio", PAIR, 0.75, True),
        ("ratio", PAIR, 0.86, True),
        ("ratio", PAIR, 0.95, False),
        ("ratio", PAIR, 1.2, False),
        ("ratio", {**PAIR, "against": {"step_time_s": 1.5, **SURE}}, 0.95, True),
        ("ratio", {**PAIR, "against": {"step_time_s": 1.5, **SURE}}, 1.05, False),
        ("ratio", {**PAIR, "against": {"step_time_s": 2.02}}, 0.99, True),
        ("ratio", {**PAIR, "faster": {"step_time_s": 1.0, "second_step_time_s": 0.4}}, 0.4, True),
        ("ratio", {**PAIR, "faster": {"step_time_s": 1.0, "second_step_time_s": 0.4}}, 1.4, False),
        ("step_s", {"step_time_s": 1.2}, 1.0, True),
        ("step_s", {"step_time_s": 1.3}, 1.0, False),
        ("step_s", {"step_time_s": 1.3, "faster": {"step_time_s": 1.1}}, 1.0, True),
        ("hours", {"step_time_s": 2.0, "device_hours": 70.0}, 100.0, False),
        ("fits", {"fits": True}, False, False),
        ("advice", {"would_fit": [{"change": "zero 3"}]}, True, True),
        ("advice", {}, True, False),
        ("verdict", SLOW, ["slower", "inside"], True),
        ("causes", SLOW, ["slow-host"], True),
        ("causes", SLOW, ["pcie-inside"], False),
        ("causes", {**SLOW, "kinds": {"network": 0.5}}, ["pcie-inside"], True),
    ],
)
def test_what_is_right(check, said, right, is_right):
    assert CHECKS[check](said, right) is is_right


def test_an_answer_is_judged_and_counted(monkeypatch):
    told = {**PAIR, "fits": True, "memory_bytes_per_device": 2.0**35, "oom_probability": 0.1}
    given = iter([{**told, "device_memory_bytes": 2.0**36}, "no such model"])
    monkeypatch.setattr(questions, "answer", lambda _: next(given))
    question = {"about": "a", "name": "n", "seen": False, "source": "s", "command": "c"}
    right = questions.judged({**question, "ratio": 0.75, "peak_gib": 40.0})
    wrong = questions.judged({**question, "seen": True, "fits": True})
    assert right["right"] and right["ratio_right"] and not right["peak_gib_right"]
    assert not wrong["right"] and wrong["said"] == "no answer: no such model"
    first, *_, last = summary([right, wrong])
    assert (first["asked"], first["questions"], first["right"]) == ("mended on", 1, 0)
    assert (last["about"], last["asked"], last["right"], last["peaks right"]) == (
        *("all", "held out"),
        *(1, 0),
    )


def test_intervals_of_times_and_hours_hold_what_is_known():
    said = {
        "step_time_s_low": 1.0,
        "step_time_s_high": 2.0,
        "run": {"device_hours_low": 5.0, "device_hours_high": 9.0},
    }
    assert questions.inside(said, {"step_s": 2.0}) and questions.inside(said, {"hours": 5.0})
    assert not questions.inside(said, {"step_s": 2.1}) and not questions.inside(said, {"hours": 1})
    assert questions.inside({}, {"step_s": 2.1}) is None is questions.inside(said, {"fits": True})
    assert questions.inside("no answer", {"step_s": 1.0}) is None


def test_no_answer_is_its_message():
    assert "gpt-9" in str(
        questions.answer("predict --system H100-DGX --devices 8 --global-batch 8 --model gpt-9")
    )
