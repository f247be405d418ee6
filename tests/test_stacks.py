"""Facts about software: the shipped files hold together, and names, ranges and releases are read
as they are meant."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from typing import Any

import pytest

from calibration.traces.published import PUBLISHED
from dmodel.catalog.chips import generations
from dmodel.catalog.facts import (
    COMPARE,
    CONDITIONS,
    Fact,
    Rule,
    _kind,
    apply,
    condition,
    release,
)
from dmodel.catalog.loader import table
from dmodel.catalog.stack import (
    AFTER,
    EVERY,
    consequences,
    files,
    known_family,
    names,
    stack,
)
from dmodel.layouts import RULES
from dmodel.resolve import FIRST
from dmodel.settings import ADAPTED, KNOWN, WORDS
from dmodel.types import InputError

RECOMPUTE = ("none", "selective", "full")

ALLOWED = {name: word.allowed for name, word in WORDS.items() if word.allowed}
ALLOWED |= {"adapters": ADAPTED, "recompute": RECOMPUTE, "system": tuple(table("systems"))}
"""Names of words, or lists of words, and those that there are."""

NAMES = {*KNOWN, *FIRST}
"""What facts may set."""

RUNS = {"zero", "cp", "schedules"}
LISTED = ("models", "chips")
FILES = sorted(files())


def _values(one: Fact) -> Iterator[tuple[str, Any]]:
    yield from one.sets.items()
    yield from one.means.items()


def _flat(wanted: Any) -> list[Any]:
    if isinstance(wanted, list):
        return [each for part in wanted for each in _flat(part)]
    return [wanted]


def _positive(wanted: Any) -> list[Any]:
    """Words of a condition without the "!" before them."""
    return [w.removeprefix("!") if isinstance(w, str) else w for w in _flat(wanted)]


def _asked(name: str, of: str) -> list[Any]:
    """Words that conditions of a file ask of one name."""
    asked = [one.when[name] for one in files()[of].facts if name in one.when]
    return [word for wanted in asked for word in _positive(wanted)]


def _is_among(word: str, known: list[str]) -> bool:
    if word.endswith("*"):
        return any(each.lower().startswith(word[:-1].lower()) for each in known)
    return word in known


@pytest.mark.parametrize("name", FILES)
def test_a_file_loads_with_all_that_it_extends(name: str) -> None:
    file = files()[name]
    assert file.about
    assert set(file.runs) <= RUNS
    if not name.startswith("_"):
        assert stack(name).known
        assert len(stack(name).facts) >= len(files()[EVERY].facts) + len(file.facts)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", LISTED)
def test_models_and_chips_of_conditions_are_in_the_catalog(name: str, kind: str) -> None:
    known = list(table(kind))
    asked = _asked(kind.removesuffix("s"), name)
    assert [word for word in asked if not _is_among(word, known)] == []


@pytest.mark.parametrize("name", FILES)
def test_conditions_ask_what_can_be_known(name: str) -> None:
    asked = {key for one in files()[name].facts for key in one.when}
    assert asked <= {*CONDITIONS, *NAMES}
    assert set(_asked("generation", name)) <= set(generations())
    assert set(_asked("tuning", name)) <= {"none", "lora", "sft"}
    assert [word for word in _asked("stack", name) if not _is_among(word, names())] == []


@pytest.mark.parametrize("name", FILES)
def test_facts_set_known_names_to_known_values(name: str) -> None:
    wrong = [(n, v) for one in files()[name].facts for n, v in _values(one) if not _is_known(n, v)]
    assert wrong == []


def _is_known(name: str, value: Any) -> bool:
    if isinstance(value, Rule):
        return name in NAMES and value.name in RULES
    if name in ALLOWED:
        return set(_flat(value)) <= set(ALLOWED[name])
    return name in NAMES and isinstance(value, float)


def _ranges(name: str) -> list[tuple[str, str]]:
    asked = [pair for one in files()[name].facts for pair in one.when.items()]
    flat = [(key, each) for key, wanted in asked for each in _positive(wanted)]
    return [(key, each) for key, each in flat if str(each).startswith(("<", ">"))]


def _around(wanted: str, kind: str) -> list[Any]:
    """Values at, just under and just over the bounds of a range."""
    edges = re.findall(r"[\w.]+", wanted)
    if kind != "release":
        return [float(edge) + step for edge in edges for step in (-0.5, 0.0, 0.5)]
    found = [at for edge in edges if (at := release(edge) or release(f"{edge}.0"))]
    return [near for at in found for near in ((*at[:-1], at[-1] - 1, 99), at, (*at, 1))]


@pytest.mark.parametrize("name", FILES)
def test_ranges_can_hold(name: str) -> None:
    never = [(key, wanted) for key, wanted in _ranges(name) if not _can_hold(key, wanted)]
    assert never == []


def _can_hold(key: str, wanted: str) -> bool:
    kind = CONDITIONS.get(key, _kind(wanted))
    test = condition(key, wanted, kind)
    return any(test(value) for value in _around(wanted, kind))


@pytest.mark.parametrize("name", FILES)
def test_equal_conditions_do_not_set_a_name_to_different_values(name: str) -> None:
    seen: dict[tuple[str, str], Any] = {}
    for one in files()[name].facts:
        when = repr(sorted((key, _flat(wanted)) for key, wanted in one.when.items()))
        for key, value in _values(one):
            assert seen.setdefault((when, key), value) == value, f"{name}: {key} when {when}"


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
    with PUBLISHED.open(encoding="utf-8") as lines:
        found = {row["stack"] or row["source"] for row in csv.DictReader(lines)}
    assert sorted(name for name in found if not stack(name).known) == []


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
    assert _made(name, **words).get(key) == value


def test_what_follows_is_no_fact_of_a_stack_itself() -> None:
    assert consequences() == files()[AFTER].facts != ()
    assert not any(one is other for one in consequences() for other in stack("torchtitan").facts)


def test_a_users_file_with_an_unknown_key_is_refused(tmp_path: Any) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('linage = "megatron"\n', encoding="utf-8")
    with pytest.raises(InputError, match="unknown key 'linage'; nearest: lineage"):
        stack(str(path))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("set = { sp = 1 }", "a source and a date"),
        ('set = { sp = 1 }\nsource = "x"\ndate = "soon"', "a source and a date"),
        ('source = "x"\ndate = "2026"', "must `set` something"),
        ('sets = { sp = 1 }\nsource = "x"\ndate = "2026"', "a fact has no 'sets'"),
        ('set = { sp = 1 }\nwhen = { tp = "> many" }\nsource = "x"\ndate = "2026"', "bounds"),
    ],
)
def test_a_users_fact_that_is_none_is_refused(tmp_path: Any, text: str, says: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"[[fact]]\n{text}\n", encoding="utf-8")
    with pytest.raises(InputError, match=says):
        stack(str(path))


def test_a_users_file_may_extend_a_shipped_one(tmp_path: Any) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('extends = ["torchtitan"]\n', encoding="utf-8")
    found = stack(str(path))
    assert (found.id, found.lineage, found.emits) == ("mine", "fsdp", "torchtitan")
    assert found.facts == stack("torchtitan").facts
