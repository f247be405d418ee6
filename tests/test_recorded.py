"""What one process recorded and the next one reads: the same digits however it is kept, and files
that cannot be trusted are made anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dmodel
from dmodel import called, entries, recorded
from dmodel.cli import compiled
from dmodel.entries import Entry
from dmodel.operations import Unknown
from dmodel.recorded import Recorded
from dmodel.records import Plan
from dmodel.step import step_time
from dmodel.structures import told
from tests.points import quick

ROOT = Path(__file__).parents[1]


def _shares(x, *, power):
    part = x["a"] / (x["a"] + x["b"].sum())
    return {"share": part**power, "more": {"largest": jnp.max(x["b"]), "constant": 2.0}}


SHARES = Recorded(_shares)
RECORD = {"a": 3.0, "b": np.array([1.0, 2.0])}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty folder, nothing said or known yet."""
    monkeypatch.setenv("DMODEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(recorded, "_RECORDS", {})
    monkeypatch.setattr(entries, "_SAID", set())
    monkeypatch.setattr(entries, "_SPEAK", [entries._warn])
    monkeypatch.setattr(entries, "sources", lambda *packages: "sources")
    return tmp_path / "cache"


def files(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file()]


def anew():
    recorded._RECORDS.clear()
    return SHARES(RECORD, power=2)


def expect(found):
    assert found["share"] == 0.25 and found["more"]["largest"] == 2.0
    assert found["more"]["constant"] == 2.0


def test_the_second_time_nothing_is_traced(cache, monkeypatch):
    expect(anew())
    assert len(files(cache)) == 1
    monkeypatch.setattr(SHARES, "function", _never)
    monkeypatch.setattr(_never, "__qualname__", _shares.__qualname__)
    expect(anew())


def _never(x, *, power):
    raise AssertionError("traced")


def test_another_static_value_or_shape_is_another_record(cache):
    expect(anew())
    assert SHARES(RECORD, power=1)["share"] == 0.5
    assert SHARES({"a": 1.0, "b": np.ones(3)}, power=1)["share"] == 0.25
    assert len(files(cache)) == 3


def truncated(raw: bytes) -> bytes:
    return raw[: len(raw) // 2]


def flipped(raw: bytes) -> bytes:
    return raw[:-9] + bytes([raw[-9] ^ 0xFF]) + raw[-8:]


def of_another_version(raw: bytes) -> bytes:
    return raw.replace(entries.MAGIC, entries.MAGIC.replace(b"1", b"0"))


def empty(raw: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [truncated, flipped, of_another_version, empty])
def test_a_damaged_file_is_made_anew_with_a_word(cache, damage):
    expect(anew())
    (path,) = files(cache)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    with pytest.warns(RuntimeWarning, match="made anew"):
        expect(anew())
    assert path.read_bytes() == whole
    expect(anew())


def test_a_file_of_something_else_is_made_anew(cache):
    expect(anew())
    (path,) = files(cache)
    SHARES(RECORD, power=3)
    other = next(p for p in files(cache) if p != path)
    path.write_bytes(other.read_bytes())
    with pytest.warns(RuntimeWarning, match="something else"):
        expect(anew())


def test_words_that_are_no_record_are_made_anew(cache):
    expect(anew())
    (path,) = files(cache)
    key = path.name.removesuffix(entries.ENDING)
    body = {"inputs": 2, "constants": [], "outputs": [], "names": []}
    for steps in ([["system", [0], [2], []]], [["add"]], 7):
        text = json.dumps({**body, "steps": steps})
        entries.write(path.parent, key, Entry({}, text.encode()))
        entries._SAID.clear()
        with pytest.warns(RuntimeWarning, match="made anew"):
            expect(anew())


def test_without_a_folder_the_answer_is_the_same_with_one_word(monkeypatch, cache, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DMODEL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(RuntimeWarning, match="nothing is kept"):
        expect(anew())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expect(anew())


def test_a_folder_that_others_can_write_is_refused(cache):
    cache.mkdir(mode=0o700)
    cache.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="others may write"):
        expect(anew())
    assert not files(cache)


def test_only_the_owner_reads_what_is_kept(cache):
    anew()
    for path in (cache, *cache.rglob("*")):
        assert not path.stat().st_mode & 0o077, path


def test_what_was_used_longest_ago_goes_first(cache, monkeypatch):
    monkeypatch.setattr(entries, "MOST_FILES", 3)
    place = entries.folder("records")
    assert place is not None
    for i in range(5):
        entries.write(place, str(i), Entry({}, b"x"))
        os.utime(place / f"{i}{entries.ENDING}", (i, i))
    half = place / "half"
    half.write_text("")
    os.utime(half, (1, 1))
    entries.write(place, "5", Entry({}, b"x"))
    assert sorted(p.name for p in files(place)) == [f"{i}{entries.ENDING}" for i in (3, 4, 5)]


def test_of_compiled_code_what_was_used_longest_ago_goes_at_the_end(tmp_path, monkeypatch):
    """By number and by bytes; other files, and the last one used whatever its size, stay."""
    monkeypatch.setattr(compiled, "MOST_FILES", 3)
    monkeypatch.setattr(compiled, "MOST_BYTES", 25)
    for i in range(6):
        (tmp_path / f"{i}-cache").write_bytes(bytes(10))
        os.utime(tmp_path / f"{i}-cache", (i, i))
    (tmp_path / "0-cache").touch()
    (tmp_path / "note").write_text("of somebody else")
    compiled.tidy(tmp_path)
    assert {p.name for p in files(tmp_path)} == {"0-cache", "5-cache", "note"}
    (tmp_path / "whole-cache").write_bytes(bytes(100))
    compiled.tidy(tmp_path)
    assert {p.name for p in files(tmp_path)} == {"whole-cache", "note"}


def test_a_command_bounds_the_folder_that_it_fills(cache, monkeypatch):
    """Once at its end; not one that JAX had before."""
    registered = []
    monkeypatch.setattr(compiled.atexit, "register", lambda *words: registered.append(words))
    names = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"
    before = {name: getattr(jax.config, name) for name in names}
    try:
        compiled.keep_compiled_code()
        compiled.keep_compiled_code()
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
    assert registered == [(compiled.tidy, compiled.cache_folder())]


def test_sources_that_changed_while_a_process_ran_are_not_told(monkeypatch):
    monkeypatch.setattr(entries, "BORN", 0.0)
    assert entries.sources.__wrapped__("dmodel") == ""
    monkeypatch.setattr(entries, "BORN", float("inf"))
    assert len(entries.sources.__wrapped__("dmodel")) == 64


def test_what_has_no_counterpart_is_compiled_with_a_word(cache):
    function = Recorded(_sorted)
    with pytest.warns(RuntimeWarning, match="no numpy for sort"):
        found = function(np.array([2.0, 1.0]))
    assert found["x"].tolist() == [1.0, 2.0]
    with pytest.raises(Unknown):
        recorded.recorded(_sorted, np.array([2.0, 1.0]))


def _sorted(x):
    return {"x": jnp.sort(x)}


def test_what_the_first_records_decide_is_computed_once(cache):
    function = Recorded(_both)
    of = function.varied(np.array([1.0, 4.0]), like=np.zeros(2))
    assert of(np.array([1.0, 2.0]))["sum"].tolist() == [2.0, 4.0]
    assert of(np.array([5.0, 6.0]))["sum"].tolist() == [6.0, 8.0]
    assert of(np.array([5.0, 6.0]))["root"].tolist() == [1.0, 2.0]


def test_one_record_answers_for_any_number_of_rows(cache):
    """Tables of rows, constants of them and the rows themselves: the last axis."""
    function = Recorded(_by_row, any_rows=True)
    for rows in (1, 3, 5):
        x, y = np.arange(2.0 * rows).reshape(2, rows), np.arange(rows) + 1.0
        expected = jax.tree.map(np.asarray, _by_row(x, y))
        found = function(x, y)
        again = function.varied(x, like=y)(y)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-14)
            np.testing.assert_allclose(again[name], value, rtol=1e-14)
    assert len(files(cache)) == 1


def _by_row(x, y):
    table = jnp.concatenate([x, jnp.ones((1, *y.shape)), jnp.full((2, *y.shape), 3.0)])
    padded = jnp.pad(table[1:], ((1, 2), (0, 0)))
    found, pull = jax.vjp(lambda y: (table * y[None]).sum(0) ** 2, y)
    return {"padded": padded, "found": found, "slope": pull(jnp.ones_like(found))[0]}


@pytest.mark.parametrize("name", ["_flattened", "_numbered"])
def test_what_mixes_rows_is_compiled_with_a_word(cache, name):
    """Sizes that are a multiple of the rows, and constants that tell one row from another."""
    function, x = Recorded(globals()[name], any_rows=True), np.arange(6.0).reshape(2, 3)
    with pytest.warns(RuntimeWarning, match="no numpy for a"):
        found = function(x)
    np.testing.assert_array_equal(found["x"], globals()[name](x)["x"])


def test_leaves_of_unlike_rows_are_refused(cache):
    function = Recorded(_by_row, any_rows=True)
    for y in (np.ones(2), np.float64(1.0)):
        with pytest.raises(ValueError, match="as many rows"):
            function(np.ones((2, 3)), y)


def _flattened(x):
    return {"x": jnp.reshape(x, -1)}


def _numbered(x):
    return {"x": x + np.arange(float(x.shape[-1]))[None]}


def _both(x, y):
    return {"sum": jnp.sqrt(x) + y, "root": jnp.sqrt(x)}


def test_structures_are_told_apart():
    plans = [Plan.of(dp=1.0, global_batch=1.0), Plan.of(dp=1.0, global_batch=1.0, schedule="gpipe")]
    trees = [*plans, (1.0, None), (None, 1.0), [1.0], {"a": 1.0}, {"b": 1.0}]
    assert len({told(jax.tree.structure(tree)) for tree in trees}) == len(trees)
    with pytest.raises(TypeError):
        told(jax.tree.structure({object: 1.0}))


JOB = """
import sys, jax, dmodel
before = dict(jax.config.values)
job, site = dmodel.Job("llama-3-8b", 4096, 16), dmodel.cluster("H100-DGX", 8)
p = dmodel.predict(job, site, stack="nemo/25.09")
print(sorted(p.document.items()))
print([float(x) for x in jax.tree.leaves(dmodel.step_time(p.case))])
slope = jax.grad(lambda c: dmodel.step_time(p.case.replace(cluster=c)).total)(p.case.cluster)
print([x.tolist() for x in jax.tree.leaves(slope)])
changed = {k for k, v in jax.config.values.items() if v != before[k]}
assert changed <= {"jax_enable_x64"}, changed
"""


def begun(folder: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", JOB],
        cwd=ROOT,
        env=os.environ | {"DMODEL_CACHE": folder},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen) -> str:
    out, problems = process.communicate(timeout=300)
    assert process.returncode == 0, problems
    assert not problems, problems
    return out


def test_two_processes_at_once_a_later_one_and_one_without_a_folder_have_the_same_digits(tmp_path):
    first = [begun(str(tmp_path / "cache")) for _ in range(2)]
    answers = {ended(process) for process in first}
    kept = {p.name: p.read_bytes() for p in files(tmp_path)}
    assert kept and all(name.endswith(entries.ENDING) for name in kept)
    answers.add(ended(begun(str(tmp_path / "cache"))))
    assert {p.name: p.read_bytes() for p in files(tmp_path)} == kept
    (tmp_path / "file").write_text("")
    answers.add(ended(begun(str(tmp_path / "file" / "none"))))
    assert len(answers) == 1


@pytest.fixture(scope="module")
def case():
    job, site = dmodel.Job("mixtral-8x7b", 4096, 64), dmodel.cluster("H100-DGX", 16)
    return dmodel.predict(job, site, dmodel.Layout(tp=2, pp=2), stack="nemo/25.09").case


def test_a_step_of_plain_numbers_is_that_of_the_plain_function(case):
    records = (case.cluster, case.model, case.plan, case.coefficients)
    close(dmodel.step_time(case), jax.jit(step_time)(*records))


def close(found, expected):
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-15)


def total(case):
    return dmodel.step_time(case).total


def plain_total(case):
    return step_time(case.cluster, case.model, case.plan, case.coefficients).total


def test_gradients_are_those_of_the_plain_function(case):
    expected = quick(jax.grad(plain_total))(case)
    close(jax.grad(total)(jax.tree.map(jnp.asarray, case)), expected)
    close(jax.jit(jax.grad(total))(jax.tree.map(jnp.asarray, case)), expected)


def test_forward_mode_works_too(case):
    one = jax.tree.map(jnp.zeros_like, jax.tree.map(jnp.asarray, case.cluster))
    along = one.replace(chip=one.chip.replace(hbm_bytes_per_s=1e9))

    def of(cluster):
        return total(case.replace(cluster=cluster))

    cluster = jax.tree.map(jnp.asarray, case.cluster)
    _, slope = jax.jvp(of, (cluster,), (along,))
    _, expected = jax.jit(lambda c, t: jax.jvp(of, (c,), (t,)))(cluster, along)
    np.testing.assert_allclose(slope, expected, rtol=1e-9)


def test_a_setting_of_jax_that_numpy_does_not_know_leaves_the_step_to_jax(case):
    leaves = jax.tree.leaves(case)
    assert called.at_hand(leaves)
    with jax.debug_nans(True):
        assert not called.at_hand(leaves)
    assert not called.at_hand([np.float32(1.0)])


def test_a_model_of_plain_numbers_is_checked(case):
    with pytest.raises(dmodel.InputError, match="n_layers"):
        dmodel.step_time(case.replace(model=case.model.replace(n_layers=0.5)))
