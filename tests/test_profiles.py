"""Profiles: what is written is read, what is damaged is refused with a reason, the nearest one is
found."""

import json
from pathlib import Path

import numpy as np
import pytest

from calibration.extremes import MOST, extremes
from dmodel.coefficients import NAMES, SPECS, default, from_unconstrained, to_unconstrained
from dmodel.errors import InputError
from dmodel.profiles import (
    GROUPINGS,
    Profile,
    default_profile,
    family,
    load,
    members,
    names,
    nearest,
    save,
    shipped,
    store,
)
from dmodel.profiles.reading import from_json
from dmodel.profiles.record import prior_widths
from dmodel.profiles.writing import FORMAT, VERSION


def vector(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=len(NAMES))


KNOWN = members("A100-80GB", "fsdp") | {"variant": "fsdp/pure"}
"""One member of each grouping."""


@pytest.fixture
def profile() -> Profile:
    return Profile(
        name="test",
        description="made up",
        accelerators=("A100-80GB",),
        stacks=("megatron-lm", "fsdp"),
        center=default_profile().center + 0.1 * vector(0),
        offsets={
            g: {KNOWN[g]: 0.1 * vector(10 + i)} if KNOWN[g] else {} for i, g in enumerate(GROUPINGS)
        },
        widths={g: np.abs(vector(20 + i)) for i, g in enumerate(GROUPINGS)},
        standard_errors=np.abs(vector(3)),
        stack_covariances={"fsdp": np.diag(vector(7) ** 2)},
        covariance=np.diag(vector(3) ** 2),
        data=({"source": "somewhere", "rows": 12},),
        fitted_rows=("a", "b"),
        noise={"fsdp": 0.04},
        versions={"dmodel": "0"},
    )


@pytest.fixture
def document(profile, tmp_path) -> dict:
    save(profile, tmp_path / "p.json")
    return json.loads((tmp_path / "p.json").read_text())


def test_written_and_read_is_the_same(profile, tmp_path):
    save(profile, tmp_path / "p.json")
    found = load(tmp_path / "p.json")
    for name in (
        "name",
        "description",
        "accelerators",
        "stacks",
        "data",
        "fitted_rows",
        "noise",
        "versions",
    ):
        assert getattr(found, name) == getattr(profile, name), name
    for name in ("center", "standard_errors", "covariance"):
        np.testing.assert_allclose(
            getattr(found, name), getattr(profile, name), atol=1e-9, err_msg=name
        )
    assert tuple(found.widths) == tuple(found.offsets) == GROUPINGS
    for g in GROUPINGS:
        np.testing.assert_allclose(found.widths[g], profile.widths[g], atol=1e-9, err_msg=g)
    np.testing.assert_allclose(
        found.stack_covariances["fsdp"], profile.stack_covariances["fsdp"], rtol=5e-5
    )
    for chip, stack in (
        (None, None),
        ("A100-80GB", None),
        ("A100-80GB", "fsdp/pure"),
        ("unknown", "fsdp"),
    ):
        np.testing.assert_allclose(
            found.unconstrained(chip, stack), profile.unconstrained(chip, stack), atol=1e-9
        )


def test_once_rounded_for_the_disk_no_byte_changes(profile, tmp_path):
    files = [tmp_path / f"{i}.json" for i in range(3)]
    save(profile, files[0])
    for before, after in zip(files, files[1:], strict=False):
        save(load(before), after)
    assert files[1].read_bytes() == files[2].read_bytes()


def test_a_file_from_before_a_grouping_is_read_without_it(document, profile):
    """It predicts what it did, and a fit from it moves what it did; a grouping that was always
    there may not be missing."""
    del document["offsets"]["port"], document["widths"]["port"]
    found = from_json(document)
    assert (
        found.offsets["port"] == {}
        and not found.widths["port"].any()
        and tuple(found.widths) == GROUPINGS
    )
    gap = profile.unconstrained("A100-80GB", "fsdp") - found.unconstrained("A100-80GB", "fsdp")
    np.testing.assert_allclose(gap, profile.offsets["port"][KNOWN["port"]], atol=1e-9)
    del document["offsets"]["pair"]
    with pytest.raises(InputError, match="pair"):
        from_json(document)


HARDWARE, SOFTWARE = ("generation", "accelerator"), ("lineage", "stack")


@pytest.mark.parametrize(
    ("chip", "stack", "groupings"),
    [
        ("A100-80GB", "fsdp/pure", GROUPINGS),
        ("A100-80GB", "fsdp", (*HARDWARE, *SOFTWARE, "port", "pair")),
        ("A100-80GB", "fsdp/other", (*HARDWARE, *SOFTWARE, "port", "pair")),
        ("A100-40GB", "fsdp", ("generation", *SOFTWARE, "port")),
        ("H100-80GB", "fsdp", SOFTWARE),
        ("A100-80GB", "torchtitan", (*HARDWARE, "lineage")),
        ("A100-80GB", None, HARDWARE),
        (None, "fsdp/pure", (*SOFTWARE, "variant")),
        ("H100-80GB", "nemo", ()),
        (None, None, ()),
    ],
)
def test_a_row_has_the_offsets_of_the_groups_that_are_known(profile, chip, stack, groupings):
    """A variant starts from its stack, a stack from its code base, a chip from its generation, a
    stack on a new chip from its port."""
    expected = profile.center + sum(profile.offsets[g][KNOWN[g]] for g in groupings)
    np.testing.assert_allclose(profile.unconstrained(chip, stack), expected, rtol=1e-13)


@pytest.mark.parametrize(
    ("chip", "stack", "expected"),
    [
        (
            "H100-80GB",
            "llm-foundry/pure",
            [
                "hopper",
                "H100-80GB",
                "fsdp",
                "llm-foundry",
                "llm-foundry/pure",
                "hopper llm-foundry",
                "H100-80GB llm-foundry",
            ],
        ),  # fmt: skip
        (
            "MI300X",
            "nemo-launcher",
            [
                "cdna",
                "MI300X",
                "megatron",
                "nemo-launcher",
                "",
                "cdna nemo-launcher",
                "MI300X nemo-launcher",
            ],
        ),
        (
            "TPU-v5e",
            "Own-Code",
            ["tpu", "TPU-v5e", "Own-Code", "Own-Code", "", "tpu Own-Code", "TPU-v5e Own-Code"],
        ),
        ("GB200", None, ["blackwell", "GB200", "", "", "", "", ""]),
        ("Z80", "", ["", "Z80", "", "", "", "", ""]),
        ("Z80", "nemo", ["", "Z80", "megatron", "nemo", "", "Z80 nemo", "Z80 nemo"]),
        (
            None,
            "megatron-bridge/26.04/x",
            ["", "", "megatron", "megatron-bridge", "megatron-bridge/26.04/x", "", ""],
        ),
        (None, None, [""] * 7),
    ],
)
def test_members(chip, stack, expected):
    found = members(chip, stack)
    assert list(found) == list(GROUPINGS) and list(found.values()) == expected
    assert found["stack"] == family(stack or "")


@pytest.mark.parametrize(
    ("chip", "generation"),
    [
        ("L40S", "ada"),
        ("RTX-PRO-6000", "blackwell"),
        ("A100-40GB", "ampere"),
        ("GB200", "blackwell"),
        ("GH200", "hopper"),
        ("H101", ""),
        ("V100-32GB", "volta"),
    ],
)
def test_generations(chip, generation):
    assert members(chip, None)["generation"] == generation


def test_the_prior_is_the_default_coefficients():
    found = default_profile().coefficients
    for name, spec in SPECS.items():
        assert float(getattr(found, name)) == pytest.approx(spec.default, rel=1e-12)
    np.testing.assert_array_equal(prior_widths(), [s.width for s in SPECS.values()])
    np.testing.assert_allclose(to_unconstrained(default()), default_profile().center, rtol=1e-12)


def test_unconstrained_round_trip_respects_bounds():
    wild = from_unconstrained(3.0 * vector(5))
    for name, spec in SPECS.items():
        value = float(getattr(wild, name))
        assert 0.0 < value and (value < 1.0 or spec.bound == "positive"), name
    np.testing.assert_allclose(to_unconstrained(wild), 3.0 * vector(5), rtol=1e-9, atol=1e-9)


def test_description_tells_what_the_data_said(profile):
    rows = {row["name"]: row for row in profile.describe()}
    assert list(rows) == list(NAMES)
    for i, name in enumerate(NAMES):
        assert rows[name]["determined"] == (profile.standard_errors[i] < 0.5 * SPECS[name].width)
        assert rows[name]["moved"] == pytest.approx(profile.center[i] - default_profile().center[i])
        assert rows[name]["unit"] == SPECS[name].unit


# --- damaged files


def drop(key):
    return lambda d: {k: v for k, v in d.items() if k != key}


def inside(key, name, value):
    return lambda d: d | {key: d[key] | {name: value}}


def width(name, value):
    return lambda d: d | {"widths": d["widths"] | {"stack": d["widths"]["stack"] | {name: value}}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d | {"format": "other"}, [FORMAT, "not a dmodel profile", "dmodel fit"]),
        (lambda d: [d], ["not a dmodel profile"]),
        (
            lambda d: (
                d
                | {"version": 1, "offsets": {"accelerator": {}, "stack": {}}, "widths": d["center"]}
            ),
            ["version 1", f"reads version {VERSION}", "fit the profile again"],
        ),
        (
            lambda d: d | {"version": VERSION + 1},
            [f"version {VERSION + 1}", f"reads version {VERSION}", "fit the profile again"],
        ),
        (drop("version"), ["version None"]),
        (inside("center", "matmul_eficiency", 1.0), ["matmul_eficiency", "unknown", "center"]),
        (
            lambda d: d | {"center": {k: v for k, v in d["center"].items() if k != "bubble"}},
            ["missing", "bubble"],
        ),
        (inside("center", "bubble", float("nan")), ["center", "not finite"]),
        (width("bubble", float("inf")), ["widths", "not finite"]),
        (
            inside("widths", "generations", {}),
            ["widths", "of the wrong kind", "generation, accelerator"],
        ),
        (
            lambda d: d | {"widths": {"stack": d["widths"]["stack"]}},
            ["widths", "of the wrong kind"],
        ),
        (lambda d: d | {"widths": d["center"]}, ["widths", "of the wrong kind"]),
        (inside("standard_errors", "bubble", "small"), ["standard_errors", "not a number"]),
        (inside("standard_errors", "bubble", None), ["standard_errors", "not a number"]),
        (inside("offsets", "stack", {"fsdp": {"bubble": 1.0}}), ["offsets", "missing"]),
        (lambda d: d | {"offsets": drop("variant")(d["offsets"])}, ["variant", "missing"]),
        (lambda d: d | {"offsets": None}, ["missing or of the wrong kind"]),
        (lambda d: d | {"covariance": [[1.0]]}, ["missing or of the wrong kind"]),
        (drop("fitted_rows"), ["fitted_rows", "missing"]),
        (lambda d: d | {"stacks": 3}, ["missing or of the wrong kind"]),
        (lambda d: d | {"noise": 3}, ["missing or of the wrong kind"]),
        (lambda d: d | {"noise": {"fsdp": float("nan")}}, ["noise", "positive number"]),
        (lambda d: d | {"data": "abc"}, ["data", "wrong kind"]),
        (lambda d: d | {"fitted_rows": [1]}, ["fitted_rows", "list of texts"]),
        (lambda d: d | {"accelerators": "H100-80GB"}, ["accelerators", "list of texts"]),
        (
            lambda d: d | {"covariance": [[float("nan")] * len(NAMES)] * len(NAMES)},
            ["covariance", "not finite"],
        ),
        (inside("center", "bubble", 1e300), ["center", "outside"]),
        (width("bubble", -1.0), ["widths", "outside"]),
        (inside("standard_errors", "bubble", -1.0), ["standard_errors", "outside"]),
    ],
)
def test_damaged_documents_are_refused(document, tmp_path, change, words):
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(change(document)))
    with pytest.raises(InputError) as error:
        load(path)
    for word in [*words, str(path)]:
        assert word in str(error.value)


def test_endless_nesting_is_no_traceback(tmp_path):
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    with pytest.raises(InputError, match="not a complete JSON"):
        load(path)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_files_cut_off_are_refused(document, tmp_path, share):
    text = json.dumps(document)
    path = tmp_path / "cut.json"
    path.write_text(text[: int(share * len(text))])
    with pytest.raises(InputError, match="cut off"):
        load(path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(InputError, match="cannot be read as text"):
        load(tmp_path / "binary.json")


def test_unknown_names_answer_with_near_ones():
    with pytest.raises(InputError, match="no profile named 'generc'.*did you mean generic"):
        load("generc")
    with pytest.raises(InputError, match="no such file. Shipped: "):
        load("/no/such/profile.json")


def test_unwritable_paths_are_refused(profile, tmp_path):
    with pytest.raises(InputError, match="cannot write the profile"):
        save(profile, tmp_path / "no" / "such" / "folder.json")


# --- shipped ones


@pytest.mark.parametrize("name", names())
def test_shipped_profiles_load_and_are_sane(name):
    found = load(name)
    assert found.name == name
    for chip in (None, *found.accelerators):
        for stack in (None, *found.stacks):
            c = found.coefficients_for(chip, stack)
            assert all(np.isfinite(float(getattr(c, k))) for k in NAMES)
            assert 0.05 < float(c.matmul_efficiency) < 1.0
    assert (found.standard_errors > 0.0).all()
    if found.widths:
        # a coefficient that nothing could move would be no coefficient
        assert (sum(found.widths.values()) > 0.0).all() and all(
            (w >= 0.0).all() for w in found.widths.values()
        )
    assert name == "prior" or (found.data and found.fitted_rows and found.accelerators)


@pytest.fixture
def shelf(monkeypatch, tmp_path):
    """Three shipped profiles: one of a chip and a stack, one of the same chip and another stack,
    the generic one, which knows more."""
    contents = {
        "a": (("A100-80GB",), ("fsdp/x",)),
        "b": (("A100-80GB", "A100-40GB"), ("megatron-lm",)),
        "generic": (("A100-80GB", "A100-40GB", "TPU-v5p"), ("fsdp/x", "megatron-lm", "maxtext")),
    }
    for name, (chips, stacks) in contents.items():
        save(
            Profile(name=name, description="", accelerators=chips, stacks=stacks),
            tmp_path / f"{name}.npz",
        )
    monkeypatch.setattr(
        shipped, "files", lambda: {name: tmp_path / f"{name}.npz" for name in contents}
    )
    store._load_shipped.cache_clear()
    shipped.known.cache_clear()
    shipped._words.cache_clear()
    yield
    store._load_shipped.cache_clear()
    shipped.known.cache_clear()
    shipped._words.cache_clear()


@pytest.mark.parametrize(
    ("chip", "stack", "name", "words"),
    [
        ("A100-80GB", "fsdp/x", "a", "fitted on A100-80GB with fsdp/x"),
        ("A100-40GB", "megatron-lm", "b", "fitted on A100-40GB with megatron-lm"),
        ("A100-80GB", "FSDP-new", "a", "family of FSDP-new"),
        ("A100-80GB", "megatron/core", "b", "family of megatron/core"),
        ("A100-40GB", "fsdp/x", "generic", "generic knows A100-40GB and fsdp/x"),
        ("A100-80GB", "", "generic", "generic knows A100-80GB"),
        ("TPU-v5p", "other", "generic", "generic knows TPU-v5p"),
        ("Z80", "other", "generic", "no shipped profile knows Z80 or other"),
    ],
)
def test_nearest_takes_both_then_the_family_then_the_generic_one(shelf, chip, stack, name, words):
    found, why = nearest(chip, stack)
    assert found.name == name and words in why


def test_without_shipped_profiles_the_prior_is_nearest(monkeypatch):
    monkeypatch.setattr(shipped, "files", dict)
    found, why = nearest("A100-80GB", "fsdp")
    assert found.name == "prior" and "no profile is shipped" in why


@pytest.mark.parametrize("name", ["generic", "held-out"])
def test_what_lies_far_from_its_default_is_explained(name):
    """Each such coefficient has a line in the notes; no share is at its upper bound."""
    notes = Path(__file__).parents[1] / "docs" / "notes"
    explained = (notes / "coefficients.md").read_text(encoding="utf-8")
    found = extremes(load(name))
    assert {e.name for e in found if f"| `{e.name}` |" not in explained} == set()
    assert not [e for e in found if SPECS[e.name].bound == "share" and e.value > MOST]
    center, pairs = default_profile().center + 12.0, {"A100-80GB own": np.eye(len(NAMES))}
    far = Profile(name="far", description="", center=center, pair_covariances=pairs)
    assert {e.name for e in extremes(far)} == set(NAMES)
