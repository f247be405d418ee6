"""Questions that cannot be answered: each with its reason and what was expected."""

import pytest

from dmodel.checks import problems
from dmodel.errors import InputError
from dmodel.resolve import resolve
from tests.rows import answered, asked

ZERO_3 = {"dp": "64", "tp": "1", "pp": "1", "zero_stage": "3"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dp": "4"}, "degrees do not multiply to the devices: dp·tp·pp·cp = 4·4·2·1 = 32"),
        ({"tp": "3", "n_accel": "48"}, "tp = 3 does not divide n_heads = 32"),
        ({"pp": "64", "n_accel": "2048"}, "pp = 64 stages for n_layers = 32: a stage would have"),
        ({"interleave": "32"}, "pp·interleave = 64 chunks for n_layers = 32"),
        ({"cp": "3", "dp": "", "n_accel": "48"}, "cp = 3 does not divide seq_len = 4096"),
        ({"global_batch": "100"}, "global_batch = 100 is not divisible by dp·micro_batch = 8·2"),
        ({"n_kv_heads": "5"}, "n_heads = 32 is not divisible by n_kv_heads = 5"),
        ({"d_model": "4100"}, "d_model = 4100 is not divisible by n_heads = 32"),
        ({"n_experts": "4", "top_k": "8"}, "top_k = 8 is more than n_experts = 4"),
        ({"n_experts": "6", "top_k": "2", "ep": "4"}, "ep = 4 does not divide n_experts = 6"),
        ({"ep": "8"}, "ep = 8 without experts"),
        ({**ZERO_3, "shard": "128"}, "shard = 128 is more than dp = 64: expected"),
        ({**ZERO_3, "shard": "3"}, "shard = 3 does not divide dp = 64: expected"),
        ({"zero_stage": "0", "shard": "16"}, "shard = 16 is more than dp = 8"),
    ],
)
def test_what_makes_a_question_impossible(changes, reason):
    question = asked(**changes)
    assert any(reason in each for each in problems(question))
    with pytest.raises(InputError) as error:
        resolve(question)
    assert reason in str(error.value)
    assert str(error.value).startswith("test:2: ")


def test_a_good_question_has_no_problems():
    assert problems(asked()) == []
    assert problems(asked(d_model="4100", head_dim="128")) == []
    # a few chunks may hold the embedding or the head alone
    assert problems(asked(n_layers="63", pp="8", dp="2", interleave="8")) == []


def test_the_message_says_which_degree_would_do():
    with pytest.raises(InputError, match="n_accel = 64; dp = 8 would do"):
        answered(dp="4")
    with pytest.raises(InputError, match="choose degrees whose product divides the devices"):
        answered(dp="", tp="3", n_heads="33", d_model="4224")


def test_more_than_one_reason_is_given_at_once():
    found = problems(asked(n_kv_heads="5", global_batch="100"))
    assert len(found) == 2
