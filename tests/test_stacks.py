"""Facts about software: the shipped files hold together, and names, ranges and releases are read
as they are meant."""

from __future__ import annotations

import csv
import re
from typing import Any

import pytest

from calibration.traces.published import PUBLISHED
from dmodel.catalog.checked import problems
from dmodel.catalog.facts import (
    COMPARE,
    Fact,
    apply,
    condition,
    fact,
    release,
)
from dmodel.catalog.stack import (
    AFTER,
    EVERY,
    RUNS,
    consequences,
    files,
    known_family,
    names,
    stack,
)
from dmodel.described import described, vocabulary
from dmodel.errors import InputError
from dmodel.profiles import members
from dmodel.question import Question
from dmodel.resolve import resolve

FILES = sorted(files())


def _published() -> set[str]:
    with PUBLISHED.open(encoding="utf-8") as lines:
        return {row["stack"] or row["source"] for row in csv.DictReader(lines)}


FAMILIES = sorted({stack(name).id for name in _published()})
"""Families of stacks with published rows."""


@pytest.mark.parametrize("name", FILES)
def test_a_file_loads_with_all_that_it_extends(name: str) -> None:
    file = files()[name]
    assert file.about
    assert set(file.runs) <= set(RUNS)
    if not name.startswith("_"):
        assert stack(name).known
        assert len(stack(name).facts) >= len(files()[EVERY].facts) + len(file.facts)


@pytest.mark.parametrize("name", FILES)
def test_what_a_file_says_can_be_meant(name: str) -> None:
    """Names, words, rules and ranges are known, and no two facts contradict each other."""
    published = [family for family in FAMILIES if family not in names()]
    assert problems(files()[name].facts, vocabulary(), published) == []


def _spellings(name: str) -> list[str]:
    spaced, joined = name.replace("-", " "), name.replace("-", "").title()
    return [name.upper(), spaced, name.replace("-", "_"), joined]


@pytest.mark.parametrize("name", names())
def test_every_spelling_of_a_stack_gives_its_facts(name: str) -> None:
    whole = stack(f"{name}/26.06")
    for spelled in _spellings(name):
        assert stack(f"{spelled}/26.06") == whole


def test_an_alias_is_the_stack_itself() -> None:
    aliases = [(alias, file.id) for file in files().values() for alias in file.aliases]
    assert [pair for pair in aliases if stack(pair[0]) != stack(pair[1])] == []


def test_what_begins_as_a_pattern_has_the_facts_of_its_file() -> None:
    assert known_family("MaxText-mine") == ("maxtext-mine", "maxtext")
    assert stack("maxtext-mine").facts == stack("maxtext").facts
    assert not stack("nobodys-stack").known
    assert stack("nobodys-stack").facts == files()[EVERY].facts


def test_every_published_stack_is_described() -> None:
    assert sorted(name for name in _published() if not stack(name).known) == []


@pytest.mark.parametrize("name", [name for name in FILES if "zero" in stack(name).runs])
def test_a_blank_zero_stage_is_one_that_the_stack_has(name: str) -> None:
    job = {"model": "llama-3-8b", "accelerator": "H100-80GB", "n_accel": 16.0, "seq_len": 4096.0}
    for pp in (1.0, 2.0):
        found = resolve(Question(job | {"pp": pp, "global_batch": 64.0, "stack": name}))
        zero = 2.0 if "weights stay gathered" in str(found.assumptions) else found.plan.layout.zero
        assert zero in stack(name).runs["zero"], pp


@pytest.mark.parametrize(
    ("name", "lineage"),
    [
        ("maxtext-readme", "maxtext"),
        ("jax-toolbox-maxtext/25.01", "maxtext"),
        ("gpu-recipes", "maxtext"),
        ("tpu-recipes/trillium", "tpu-recipes"),
        ("jax-toolbox-pax/24.03", "pax"),
        ("levanter", "levanter"),
        ("llm-foundry/pure", "fsdp"),
        ("torchtitan/async-tp", "fsdp"),
        ("hf-trainer", "fsdp"),
        ("fms-fsdp", "fms-fsdp"),
        ("kempnerforge/eager", "kempnerforge"),
        ("automodel", "automodel"),
        ("deepspeed-zero3-sc21", "deepspeed"),
        ("dmodel-collect/jax-0.10", "dmodel-collect"),
    ],
)
def test_stacks_of_one_code_base_share_a_lineage(name: str, lineage: str) -> None:
    assert stack(name).lineage == lineage


def test_releases_compare_as_versions() -> None:
    names_ = ["24.05-dgxc", "26.9", "26.10", "26.10.1", "main"]
    found = [release(name) for name in names_]
    assert found == sorted(found, key=lambda at: at or ())
    assert release("pure") is None
    from_26_10 = condition("release", ">=26.10", "release")
    assert [from_26_10(at) for at in [*found, None]] == [False, False, True, True, True, False]


def test_ranges_of_numbers_leave_out_what_is_not_known() -> None:
    some = condition("tp", ">1, <=4", "number")
    assert [some(value) for value in (2.0, 4.0)] == [True, True]
    assert not any(some(value) for value in (1.0, 8.0, None, "4"))
    assert set(COMPARE) == {">=", "<=", ">", "<"}


def _made(name: str, given: frozenset[str] = frozenset(), **words: Any) -> dict[str, Any]:
    found = stack(name)
    asked = {"stack": found.id, "variant": found.variant, "n_experts": 1.0, "zero": 3.0, **words}
    return apply(found.facts, asked, given).values


def test_what_a_user_says_is_kept_but_what_a_word_means_is_replaced() -> None:
    assert _made("torchtitan")["reduce_bytes"] == 4.0
    assert "reduce_bytes" not in _made("torchtitan", frozenset({"reduce_bytes"}), reduce_bytes=2.0)
    assert _made("torchtitan", frozenset({"zero"}), zero=2.0)["zero"] == 1.0


@pytest.mark.parametrize(
    ("name", "words", "key", "value"),
    [
        ("llm-foundry", {}, "recompute_last", 0.0),
        ("llm-foundry/pure", {}, "recompute_last", 1.0),
        ("llm-foundry", {"recompute": "", "model": "mpt-7b"}, "recompute_layers", 1.0),
        ("llm-foundry", {"recompute": "none", "model": "mpt-7b"}, "recompute_layers", None),
        ("llm-foundry", {"recompute": "", "model": "mpt-1b"}, "recompute_layers", None),
        ("huggingface", {"attention": "none"}, "split_softmax", 1.0),
        ("huggingface", {"attention": "flash"}, "split_softmax", None),
        ("llm-foundry", {"n_experts": 8.0}, "recompute_last", None),
        ("llm-foundry", {"tuning": "lora"}, "weight_bytes", None),
        ("llm-foundry", {"precision": "fp32"}, "weight_bytes", 4.0),
        ("automodel", {"precision": "bf16"}, "gradient_bytes", 2.0),
        ("automodel", {"precision": "bf16", "zero": 2.0}, "gradient_bytes", 4.0),
        ("maxtext", {"tp": 4.0}, "sp", 1.0),
        ("tpu-recipes", {"tp": 4.0}, "sp", None),
        ("gpu-recipes", {"generation": "hopper"}, "graphed", 0.75),
        ("gpu-recipes", {"generation": "tpu"}, "graphed", 1.0),
        ("dmodel-collect/jax-0.10", {"generation": "hopper"}, "graphed", 0.75),
        ("dmodel-collect", {"generation": "hopper"}, "graphed", None),
        ("jax-toolbox-pax", {"tuning": "lora"}, "adapters", []),
        ("nobodys-stack", {"tuning": "lora"}, "adapters", ["q_proj", "v_proj"]),
    ],
)
def test_a_stack_does_what_its_file_says(
    name: str, words: dict[str, Any], key: str, value: Any
) -> None:
    assert _made(name, frozenset(words), **words).get(key) == value


def test_what_follows_is_no_fact_of_a_stack_itself() -> None:
    assert consequences() == files()[AFTER].facts != ()
    assert not any(one is other for one in consequences() for other in stack("torchtitan").facts)


def test_a_users_file_with_an_unknown_key_is_refused(tmp_path: Any) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('linage = "megatron"\n', encoding="utf-8")
    with pytest.raises(InputError, match="unknown key 'linage'; nearest: lineage"):
        stack(str(path))


SAID = 'source = "a page"\ndate = "2026"\n'


def _written(folder: Any, text: str, name: str = "mine.toml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("set = { sp = 1 }", "a source and a date"),
        ('set = { sp = 1 }\nsource = "x"\ndate = "soon"', "a source and a date"),
        (SAID, "must `set` something"),
        (f"sets = {{ sp = 1 }}\n{SAID}", "a fact has no 'sets'; nearest: set. Its keys are set"),
        (f'set = {{ sp = 1 }}\nwhen = {{ tp = "> many" }}\n{SAID}', "bounds"),
    ],
)
def test_a_users_fact_that_is_none_is_refused(tmp_path: Any, text: str, says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        stack(_written(tmp_path, f"[[fact]]\n{text}\n"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("set = { graped = 1 }", "cannot set 'graped'; nearest: graphed"),
        ("set = { xqz = 1 }", "cannot set 'xqz'; facts set tuning"),
        ('set = { graphed = "yes" }', "graphed: expected a number or a rule, got 'yes'"),
        ('set = { dispatcher = "deep" }', "nearest: deepep"),
        ('set = { adapters = ["q_prj"] }', "adapters = 'q_prj'; nearest: q_proj"),
        ('set = { system = "H100-DGXX" }', "nearest: H100-DGX"),
        ('set = { sp = { rule = "share_of_layer" } }', "no rule 'share_of_layer'; nearest: share_"),
        ('set = { sp = 1 }\nwhen = { modl = "gpt-2" }', "condition 'modl'; nearest: model"),
        ('set = { sp = 1 }\nwhen = { model = "llama-3-71b" }', "nearest: llama-3-70b"),
        ('set = { sp = 1 }\nwhen = { model = ["!lama-9*"] }', "model = 'lama-9*': never so"),
        ('set = { sp = 1 }\nwhen = { chip = "H101" }', "chip = 'H101': never so; nearest: H100"),
        ('set = { sp = 1 }\nwhen = { generation = "hoper" }', "nearest: hopper"),
        ('set = { sp = 1 }\nwhen = { precision = "fp8-rowwise" }', "nearest: fp8"),
        (
            'set = { sp = 1 }\nwhen = { scaling = "fp9-rowwise" }',
            "scaling = 'fp9-rowwise': never so",
        ),
        ('set = { sp = 1 }\nwhen = { tuning = "lorra" }', "nearest: lora"),
        ('set = { sp = 1 }\nwhen = { recompute = "ful" }', "nearest: full"),
        ('set = { sp = 1 }\nwhen = { stack = "nemmo" }', "nearest: nemo"),
        ('set = { sp = 1 }\nwhen = { tp = ">4, <=2" }', "its bounds contradict each other"),
        ('set = { sp = 1 }\nwhen = { release = ">=26.06, <26" }', "its bounds contradict"),
        ('set = { sp = 1 }\nwhen = { graphed = "<0, >1" }', "its bounds contradict each other"),
        (
            'set = { sp = 1 }\nwhen = { chip = "H100*", generation = "tpu" }',
            "no chip of the catalog is both",
        ),
    ],
)
def test_a_users_fact_that_cannot_be_meant_is_refused(tmp_path: Any, text: str, says: str) -> None:
    path = _written(tmp_path, f"[[fact]]\n{text}\n{SAID}")
    with pytest.raises(InputError, match=re.escape(says)) as caught:
        described(path)
    assert f"{path}, fact 1: " in str(caught.value)


def test_a_question_checks_its_users_file(tmp_path: Any) -> None:
    path = _written(tmp_path, f"[[fact]]\nset = {{ graped = 1 }}\n{SAID}")
    columns = {"model": "gpt-2", "accelerator": "H100-80GB", "n_accel": 8.0, "global_batch": 8.0}
    with pytest.raises(InputError, match="nearest: graphed"):
        resolve(Question({**columns, "stack": path}))


def test_facts_of_a_users_file_may_not_contradict_each_other(tmp_path: Any) -> None:
    one = 'when = { chip = ["B200", "GB200"] }\n' + SAID
    other = 'when = { chip = ["GB200", "B200"] }\n' + SAID
    first = f"[[fact]]\nset = {{ graphed = 1 }}\n{one}"
    described(_written(tmp_path, f"{first}[[fact]]\nset = {{ graphed = 1 }}\n{other}", "same.toml"))
    with pytest.raises(InputError, match="facts 1 and 2: conditions are equal"):
        described(
            _written(tmp_path, f"{first}[[fact]]\nset = {{ graphed = 0 }}\n{other}", "not.toml")
        )


@pytest.mark.parametrize("name", ["torchtitan", "TorchTitan"])
def test_a_users_file_may_extend_a_shipped_one(tmp_path: Any, name: str) -> None:
    found = stack(_written(tmp_path, f'extends = ["{name}"]\n'))
    assert (found.id, found.lineage, found.emits) == ("mine", "fsdp", "torchtitan")
    assert found.facts == stack("torchtitan").facts


def test_what_a_users_file_extends_is_what_conditions_see(tmp_path: Any) -> None:
    """Facts of one family or release hold of it, too."""
    found = stack(_written(tmp_path, 'extends = ["Megatron Bridge/26.06"]\n'))
    assert (found.id, found.basis, found.release) == ("mine", "megatron-bridge", (26, 6))
    asked = {"accelerator": "GB200", "n_accel": 16.0, "seq_len": 4096.0, "global_batch": 64.0}
    asked |= {"model": "qwen3-30b-a3b", "precision": "mxfp8", "ep": 8.0}
    mine = resolve(Question({**asked, "stack": found.path}))
    theirs = resolve(Question({**asked, "stack": "megatron-bridge/26.06"}))
    assert mine.plan == theirs.plan and mine.assumptions == theirs.assumptions
    assert members("GB200", found.path)["lineage"] == "megatron"


def test_a_users_file_may_extend_one_beside_it(tmp_path: Any) -> None:
    _written(
        tmp_path, f'extends = ["nemo"]\n[[fact]]\nset = {{ graphed = 1 }}\n{SAID}', "ours.toml"
    )
    found = stack(_written(tmp_path, 'extends = ["ours.toml"]\n'))
    assert (found.basis, found.lineage, found.emits) == ("nemo", "megatron", "nemo")
    assert found.facts[-1].sets == {"graphed": 1.0}
    assert found.facts[:-1] == stack("nemo").facts


def test_a_users_file_may_not_extend_itself_or_what_there_is_not(tmp_path: Any) -> None:
    _written(tmp_path, 'extends = ["b.toml"]\n', "a.toml")
    path = _written(tmp_path, 'extends = ["a.toml"]\n', "b.toml")
    with pytest.raises(InputError, match="extends itself"):
        stack(path)
    with pytest.raises(InputError, match="extends 'nemmo', which is no stack; nearest: nemo"):
        stack(_written(tmp_path, 'extends = ["nemmo"]\n'))
    with pytest.raises(InputError, match="not readable"):
        stack(_written(tmp_path, 'extends = ["nowhere.toml"]\n', "c.toml"))


def test_the_empty_word_means_open() -> None:
    is_open, told = condition("recompute", "", "word"), condition("recompute", "!", "word")
    assert [is_open(value) for value in ("", None, "none", "full")] == [True, True, False, False]
    assert [told(value) for value in ("", None, "none")] == [False, False, True]
    either = condition("recompute", ["", "none"], "word")
    assert [either(value) for value in ("", "none", "full", "selective")] == [1, 1, 0, 0]


def test_facts_that_decide_come_in_the_order_of_the_files() -> None:
    def made(**values: float) -> Fact:
        entry = {"set": values, "source": "x", "date": "2026"}
        return fact(entry, "here")

    facts = (made(a=1.0, b=1.0), made(b=2.0), made(a=3.0))
    found = apply(facts, {}, frozenset())
    assert found.values == {"a": 3.0, "b": 2.0} and found.facts == facts[1:]


def test_a_fact_without_words_is_readable() -> None:
    entry = {
        "set": {"offload_inputs": {"rule": "share_of_layers", "layers": 15}, "adapters": []},
        "source": "x",
        "date": "2026",
    }
    text = "offload_inputs share of layers (layers 15), adapters none"
    assert fact(entry, "here").text == text
