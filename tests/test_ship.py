"""Views of the pooled fit: what it knows predicts the same, what it does not know starts from the
view."""

import dataclasses
from itertools import product

import numpy as np
import pytest

from calibration.ship import VIEWS, View, main, rebase
from dmodel.coefficients import NAMES
from dmodel.profiles import GROUPINGS, Profile, default_profile, members

CHIPS = ("A100-80GB", "H100-80GB", "H200-141GB", "Z80")
STACKS = ("megatron-lm", "nemo/1", "nemo/2", "own", "llm-foundry", "llm-foundry/pure")
TOGETHER = [(c, s) for c, s in product(CHIPS, STACKS) if (c, s) != ("H200-141GB", "own")]
"""One chip and stack are each known, but not together; one chip is of no generation."""

VIEW = View("view", ("A100-80GB", "H100-80GB", "TPU-v9"), ("megatron-lm", "nemo"), "made up")


@pytest.fixture(scope="module")
def pooled() -> Profile:
    rng = np.random.default_rng(0)
    rows = [members(c, s) for c, s in TOGETHER]
    offsets = {
        g: {m: rng.normal(size=len(NAMES)) for m in sorted({row[g] for row in rows} - {""})}
        for g in GROUPINGS
    }
    covariances = {s: np.eye(len(NAMES)) for s in offsets["stack"]}
    center = rng.normal(size=len(NAMES))
    return Profile(
        name="pooled",
        description="",
        accelerators=CHIPS,
        stacks=STACKS,
        center=center,
        offsets=offsets,
        stack_covariances=covariances,
    )


@pytest.fixture(scope="module")
def view(pooled) -> Profile:
    return rebase(pooled, VIEW)


@pytest.mark.parametrize(("chip", "stack"), list(product(CHIPS, (*STACKS, "nemo/3", "nemo"))))
def test_what_the_fit_knows_predicts_the_same(pooled, view, chip, stack):
    np.testing.assert_allclose(
        view.unconstrained(chip, stack), pooled.unconstrained(chip, stack), atol=1e-12
    )


def test_the_center_is_the_mean_of_the_members(pooled, view):
    """Of each grouping but the variants, by hand."""
    o = pooled.offsets
    pairs = [f"{c} {s}" for c in VIEW.accelerators[:2] for s in VIEW.stacks]
    means = [
        0.5 * (o["generation"]["ampere"] + o["generation"]["hopper"]),
        0.5 * (o["accelerator"]["A100-80GB"] + o["accelerator"]["H100-80GB"]),
        o["lineage"]["megatron"],
        0.5 * (o["stack"]["megatron-lm"] + o["stack"]["nemo"]),
        np.mean(
            [o["port"][f"{g} {s}"] for g in ("ampere", "hopper") for s in ("megatron-lm", "nemo")],
            0,
        ),
        sum(o["pair"][p] for p in pairs) / len(pairs),
    ]
    np.testing.assert_allclose(
        view.unconstrained("new", "new"), pooled.center + sum(means), atol=1e-12
    )


def test_a_chip_of_a_known_generation_starts_from_it(pooled, view):
    gap = view.unconstrained("A100-40GB") - view.unconstrained("H800")
    np.testing.assert_allclose(
        gap,
        pooled.offsets["generation"]["ampere"] - pooled.offsets["generation"]["hopper"],
        atol=1e-12,
    )


def test_a_view_is_sure_of_its_own_stacks_only(view):
    assert view.accelerators == ("A100-80GB", "H100-80GB") and view.stacks == (
        "megatron-lm",
        "nemo/1",
        "nemo/2",
    )
    assert (
        set(view.stack_covariances) == {"megatron-lm", "nemo"}
        and view.name == "view"
        and "made up" in view.description
    )


@pytest.mark.parametrize("name", ["accelerators", "stacks"])
def test_a_view_of_nothing_known_is_refused(pooled, name):
    with pytest.raises(ValueError, match="knows none"):
        rebase(pooled, VIEW._replace(**{name: ("unheard-of",)}))
    with pytest.raises(ValueError, match="knows none"):
        rebase(dataclasses.replace(default_profile(), name="prior"), VIEWS[0])


def test_a_folder_that_is_not_there_is_named_before_anything_is_fitted(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([str(tmp_path / "missing")])
    assert stopped.value.code == 2
    assert f"{tmp_path / 'missing'} is no folder; make it first" in capsys.readouterr().err
