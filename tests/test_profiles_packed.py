"""Packed profiles: nothing is lost, little is stored, what is damaged is refused with a reason."""

import dataclasses
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from calibration.ship import VIEWS, rebase, write
from dmodel.coefficients import NAMES
from dmodel.errors import InputError
from dmodel.profiles import (
    EVIDENCE,
    Profile,
    container,
    covariances,
    integers,
    load,
    names,
    packing,
    save,
    shipped,
    store,
)
from dmodel.profiles.writing import to_json

SHIPPED = [name for name in names() if name != "prior"]
FROM_0_1 = Path(__file__).parent / "data" / "profile_0_1.json"
"""A file that dmodel 0.1.0 wrote, cut to one chip and stack."""


def told(profile: Profile) -> dict:
    """All that a file holds, but the center's repetition for people, which is not rounded."""
    return {k: v for k, v in to_json(profile).items() if k != "coefficients"}


def same(found: Profile, expected: Profile) -> bool:
    return told(found) == told(expected)


# --- whole numbers


@pytest.mark.parametrize("shape", [(0, 0), (3, 0), (0, 4), (1, 1), (7, 11), (40, 60)])
@pytest.mark.parametrize("size", [1.0, 1e3, 1e12])
def test_whole_numbers_come_back(shape, size):
    table = (size * np.random.default_rng(0).normal(size=shape)).astype(np.int64)
    np.testing.assert_array_equal(integers.unpack(integers.pack(table)), table)


def test_the_ends_of_their_range():
    most = 2**51 - 1
    table = np.array([[0, 1, -1, most, -most]])
    np.testing.assert_array_equal(integers.unpack(integers.pack(table)), table)
    with pytest.raises(ValueError, match="too large"):
        integers.pack(np.array([[2**51]]))


@pytest.mark.parametrize("digits", [1, 4, 6])
def test_places_among_decimals_follow_their_order_and_come_back(digits):
    draws = np.random.default_rng(1).uniform(-9.0, 9.0, 500)
    draws = draws * np.resize([*10.0 ** np.arange(-14, 4), 1e-30, 1e-300], 500)
    rounded = {float(f"{x:.{digits - 1}e}") for x in [*draws, 0.0, 1e-307, 0.1, 1.0, 9e4, -9e4]}
    values = np.array(sorted(rounded))
    places = integers.ranks(values, digits)
    assert (np.diff(places) > 0).all()
    np.testing.assert_array_equal(integers.ranked(places, digits), values)


def test_next_decimals_are_next_places():
    values = np.array([float(f"{m}e-7") for m in range(9_990, 10_000)] + [1e-3, 1.001e-3])
    np.testing.assert_array_equal(np.diff(integers.ranks(values, 4)), 1)


def test_more_decimals_than_a_profile_has_are_refused():
    np.testing.assert_array_equal(integers.steps([0.125, -3.0], 3), [125, -3000])
    with pytest.raises(ValueError, match="more than 3 decimals"):
        integers.steps([0.1234], 3)


@pytest.mark.parametrize("part", ["rows", "columns", "lengths", "bits"])
def test_parts_that_do_not_belong_together_are_refused(part):
    packed = integers.pack(np.arange(-50, 50).reshape(10, 10))
    whole = getattr(packed, part)
    for damage in (whole[: len(whole) // 2], whole.astype(float), whole[None]):
        with pytest.raises(ValueError):
            integers.unpack(packed._replace(**{part: damage}))
    with pytest.raises(ValueError, match="cannot be inflated"):
        integers.unpack(packed._replace(lengths=np.full(9, 255, np.uint8)))


# --- profiles


@pytest.mark.parametrize("name", SHIPPED)
def test_json_and_packed_files_hold_the_same(name, tmp_path):
    profile = load(name)
    for file in ("p.json", "p.npz"):
        save(profile, tmp_path / file)
        assert same(load(tmp_path / file), profile)
    save(load(tmp_path / "p.json"), tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "p.npz").read_bytes()
    assert 7 * (tmp_path / "p.npz").stat().st_size < (tmp_path / "p.json").stat().st_size


def test_a_file_is_read_by_what_it_holds(tmp_path):
    profile = load(FROM_0_1)
    save(profile, tmp_path / "p.npz")
    (tmp_path / "p.npz").rename(tmp_path / "p.json")
    assert same(load(tmp_path / "p.json"), profile)


def test_a_file_of_0_1_is_read_as_it_was():
    found, written = load(FROM_0_1), json.loads(FROM_0_1.read_text())
    values = [written["center"]] + [
        v for members in written["offsets"].values() for v in members.values()
    ]
    total = found.unconstrained("TPU-v5p", "maxtext-readme")
    expected = np.sum([[v[name] for name in NAMES] for v in values], 0)
    np.testing.assert_allclose(total, expected, rtol=1e-13)
    again = to_json(found)
    rounded = {"pair_covariances": 5e-3, "stack_covariances": 5e-5}
    for key in written.keys() - {"coefficients", *rounded}:
        assert again[key] == written[key], key
    for key, by in rounded.items():
        for name, triangle in written[key].items():
            np.testing.assert_allclose(again[key][name], triangle, rtol=by)


def test_a_packed_file_of_before_is_read_as_it_was(monkeypatch, tmp_path):
    """Files from when covariances had four and six digits and did not say so."""
    profile = load("generic")
    monkeypatch.setattr(covariances, "PAIR_DIGITS", 4)
    monkeypatch.setattr(covariances, "STACK_DIGITS", 6)
    told = covariances.pack
    monkeypatch.setattr(covariances, "pack", lambda *of: _without_digits(told(*of)))
    save(profile, tmp_path / "p.npz")
    monkeypatch.undo()
    assert same(load(tmp_path / "p.npz"), profile)


def _without_digits(packed):
    words, tables = packed
    return {name: value for name, value in words.items() if name != "digits"}, tables


def test_an_empty_profile_and_odd_fingerprints(tmp_path):
    odd = Profile(
        name="odd",
        description="µ",
        fitted_rows=("a", "zwölf", "a0"),
        seen={"x": np.zeros((0, 0)), "y": np.array([[1.5, 2.0]])},
        covariance=np.diag(np.arange(len(NAMES)) / 10.0) + 1e-10 * np.eye(len(NAMES), k=1),
    )
    for profile in (Profile(name="empty", description=""), odd):
        save(profile, tmp_path / "p.npz")
        assert same(load(tmp_path / "p.npz"), profile)


def test_numbers_that_cannot_be_packed_are_refused_by_name(tmp_path):
    def profile(size):
        matrix = {"x": size * np.eye(len(NAMES))}
        return Profile(name="odd", description="", stack_covariances=matrix)

    with pytest.raises(InputError, match=r"too small; a file named \.json takes"):
        save(profile(1e-310), tmp_path / "p.npz")
    save(profile(1e-310), tmp_path / "p.json")
    assert same(load(tmp_path / "p.json"), profile(1e-310))
    save(profile(1.23456e-300), tmp_path / "p.npz")
    assert same(load(tmp_path / "p.npz"), profile(1.23456e-300))


# --- shipped ones


def test_views_are_those_of_the_pooled_fit():
    pooled = load("generic")
    for view in VIEWS:
        found, expected = load(view.name), rebase(pooled, view)
        assert found.name == view.name and shipped.known(view.name).stacks == found.stacks
        assert shipped.known(view.name).accelerators == found.accelerators
        np.testing.assert_allclose(found.center, expected.center, atol=1e-9)
        for chip in found.accelerators:
            for stack in found.stacks:
                np.testing.assert_allclose(
                    found.unconstrained(chip, stack), pooled.unconstrained(chip, stack), atol=1e-9
                )


def test_what_ship_writes_is_what_was_fitted_as_json_has_it(tmp_path):
    """Views are rounded from the fit, not from the rounded profile that they are computed from."""
    on_disk = load("generic")
    noise = 4e-11 * np.random.default_rng(0).normal(size=len(NAMES))
    offsets = {g: {m: v + noise for m, v in o.items()} for g, o in on_disk.offsets.items()}
    exact = dataclasses.replace(on_disk, center=on_disk.center + noise, offsets=offsets)
    fits = [exact, *(rebase(exact, view) for view in VIEWS), load(EVIDENCE)]
    for path, fitted in zip(write(fits, tmp_path), fits, strict=True):
        save(fitted, tmp_path / "p.json")
        if path.stem in ("generic", EVIDENCE):
            assert same(load(path), load(tmp_path / "p.json"))
    base = load(tmp_path / "generic.npz")
    for view, fitted in zip(VIEWS, fits[1:], strict=False):
        path = tmp_path / f"{view.name}.npz"
        words = container.words_of("p", path.read_bytes())
        rounding = packing.table_of(container.arrays_of("p", path.read_bytes()), "rounding")
        save(fitted, tmp_path / "p.json")
        assert same(store.views.unpack(words, rounding, base), load(tmp_path / "p.json"))


def test_names_and_the_nearest_profile_read_no_arrays():
    program = (
        "import dmodel; from dmodel.profiles import container, names, shipped, store;"
        "container.arrays_of = None;"
        "[shipped.known(name) for name in names() if name != 'prior'];"
        "assert not store._load_shipped.cache_info().currsize"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


# --- damaged files


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> dict[str, bytes]:
    """Members of a small packed profile."""
    path = tmp_path_factory.mktemp("packed") / "p.npz"
    save(load(FROM_0_1), path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def archived(path: Path, parts: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return path


def words(**changes):
    def change(parts):
        told = json.loads(parts["words.json"]) | changes
        return parts | {"words.json": json.dumps(told).encode()}

    return change


def array(name, value, **how):
    def change(parts):
        stream = io.BytesIO()
        np.save(stream, value, **how)
        return parts | {f"{name}.npy": stream.getvalue()}

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (words(version=2), "packed profile version 2, this dmodel reads version 1"),
        (words(version=None), "packed profile version None"),
        (words(format="other"), "not a packed dmodel profile"),
        (lambda p: p | {"words.json": b"[]"}, "not a packed dmodel profile"),
        (lambda p: p | {"words.json": b"[" * 100_000}, "damaged or cut off"),
        (lambda p: p | {"words.json": b"{"}, "damaged or cut off"),
        (lambda p: {k: v for k, v in p.items() if k != "words.json"}, "damaged or cut off"),
        (lambda p: {k: v for k, v in p.items() if k != "pairs.bits.npy"}, "damaged or cut off"),
        (lambda p: p | {"pairs.bits.npy": p["pairs.bits.npy"][:-3]}, "damaged or cut off"),
        (lambda p: p | {"pairs.bits.npy": b"?"}, "damaged or cut off"),
        (array("vectors.bits", np.zeros(3)), "damaged or cut off"),
        (array("fitted_rows", np.array([{}], object), allow_pickle=True), "damaged or cut off"),
        (array("fitted_rows", np.zeros(3)), "damaged or cut off"),
        (array("seen.rows", np.zeros(2, np.uint8)), "damaged or cut off"),
        (words(beside="somebody"), "shipped profile 'somebody', which this dmodel does not have"),
        (words(beside="generic"), "damaged or cut off"),
        (words(view={"of": "generic"}), "damaged or cut off"),
        (words(covariances={}), "damaged or cut off"),
        (words(names=["a"] * len(NAMES)), "must hold exactly"),
        (words(offsets={}), "expected 9 vectors"),
        (words(document={"version": 9, "format": "dmodel-profile"}), "profile version 9"),
        (words(document={"version": 2, "format": "dmodel-profile"}), "missing"),
        (lambda p: p | {"large.npy": bytes(2**26 + 1)}, "more than any profile has"),
    ],
)
def test_damaged_archives_are_refused(parts, tmp_path, change, reason):
    with pytest.raises(InputError, match=reason) as error:
        load(archived(tmp_path / "p.npz", change(parts)))
    assert str(tmp_path / "p.npz") in str(error.value)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.99])
def test_archives_cut_off_are_refused(parts, tmp_path, share):
    content = archived(tmp_path / "p.npz", parts).read_bytes()
    (tmp_path / "p.npz").write_bytes(content[: int(share * len(content))])
    with pytest.raises(InputError, match="damaged or cut off"):
        load(tmp_path / "p.npz")


def test_bytes_turned_over_are_refused_or_change_nothing(parts, tmp_path):
    content = archived(tmp_path / "p.npz", parts).read_bytes()
    for at in np.random.default_rng(2).integers(2, len(content), 60).tolist():
        turned = bytearray(content)
        turned[at] ^= 0xFF
        (tmp_path / "p.npz").write_bytes(turned)
        try:
            assert same(load(tmp_path / "p.npz"), load(FROM_0_1))
        except InputError:
            pass
