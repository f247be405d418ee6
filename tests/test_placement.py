"""Where groups sit: exact where sizes divide, whatever the order; continuous in between."""

from itertools import permutations

import jax
import numpy as np
import pytest

from dmodel.placement import place
from dmodel.records import PLACEMENT, Plan
from tests import reference
from tests.points import PLANS, batch, quick

SIZES = {
    "DGX": [8.0, np.inf],
    "NVL72": [72.0, np.inf],
    "superpod": [8.0, 32.0, np.inf],
    "one level": [np.inf],
}
NAMES = (
    "tp",
    "cp",
    "ep",
    "etp",
    "pp",
    "shard",
    "replica",
    "data",
    "expert_shard",
    "expert_data",
    "all",
)

place_all = quick(place)


def plan(**degrees: float) -> Plan:
    return Plan.of(**{"dp": 1.0, "global_batch": 64.0, "shard": degrees.get("dp", 1.0), **degrees})


def random_divisible(rng: np.random.Generator, n: int) -> list[Plan]:
    """Degrees whose products divide every domain or are multiples of it: powers of two, on nodes of
    powers of two."""
    found = []
    for _ in range(n):
        tp, cp, pp, dp, inner = 2.0 ** rng.integers(0, [4, 4, 4, 6, 6])
        etp = 2.0 ** rng.integers(0, np.log2(tp) + 1)
        ep = 2.0 ** rng.integers(0, np.log2(tp * cp * dp / etp) + 1)
        found.append(plan(tp=tp, cp=cp, pp=pp, ep=ep, etp=etp, dp=dp, shard=min(dp, inner)))
    return found


@pytest.mark.parametrize(
    "order", [PLACEMENT, ("pp", "dp", "ep", "cp", "tp"), ("dp", "tp", "pp", "ep", "cp")]
)
@pytest.mark.parametrize(
    "sizes", [[8.0, np.inf], [8.0, 32.0, np.inf], [np.inf], [4.0, 16.0, 16.0, np.inf]]
)
def test_factors_are_those_of_a_list_of_devices(sizes, order):
    plans = [
        p.having(placement=order) for p in random_divisible(np.random.default_rng(len(sizes)), 40)
    ]
    found = place_all(batch(plans), np.repeat(np.array(sizes)[:, None], len(plans), 1))
    for i, p in enumerate(plans):
        expected = reference.groups(p, sizes)
        for name in NAMES:
            np.testing.assert_allclose(
                getattr(found, name)[:, i], expected[name], rtol=1e-12, err_msg=f"{name} of {p}"
            )


@pytest.mark.parametrize(
    ("sizes", "degrees", "expected"),
    [
        ("DGX", {"tp": 8.0, "dp": 16.0}, {"tp": [8, 1], "data": [1, 16], "pp": [1, 1]}),
        ("DGX", {"tp": 2.0, "dp": 16.0, "pp": 4.0}, {"tp": [2, 1], "data": [4, 4], "pp": [1, 4]}),
        ("DGX", {"tp": 16.0, "dp": 2.0}, {"tp": [8, 2], "data": [1, 2]}),
        ("NVL72", {"tp": 8.0, "dp": 18.0}, {"tp": [8, 1], "data": [9, 2]}),
        (
            "NVL72",
            {"tp": 8.0, "ep": 9.0, "dp": 36.0, "shard": 9.0},
            {"ep": [9, 1], "shard": [9, 1], "replica": [1, 4], "data": [9, 4]},
        ),
        (
            "NVL72",
            {"tp": 8.0, "etp": 8.0, "ep": 18.0, "dp": 36.0},
            {"ep": [9, 2], "etp": [8, 1], "expert_data": [1, 2]},
        ),
        (
            "DGX",
            {"tp": 2.0, "ep": 64.0, "dp": 64.0},
            {"ep": [8, 8], "expert_data": [1, 2], "etp": [1, 1]},
        ),
        ("DGX", {"tp": 4.0, "ep": 2.0, "dp": 4.0}, {"ep": [2, 1], "expert_data": [4, 2]}),
        (
            "superpod",
            {"tp": 8.0, "pp": 4.0, "dp": 64.0},
            {"tp": [8, 1, 1], "data": [1, 32, 2], "pp": [1, 1, 4]},
        ),
        ("superpod", {"dp": 512.0, "shard": 256.0}, {"shard": [8, 32, 1], "replica": [1, 1, 2]}),
        ("one level", {"tp": 8.0, "dp": 6.0, "cp": 3.0}, {"tp": [8], "cp": [3], "data": [18]}),
    ],
)
def test_known_layouts(sizes, degrees, expected):
    found = place_all(plan(**degrees), np.array(SIZES[sizes]))
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("order", list(permutations(PLACEMENT))[::17])
def test_factors_multiply_to_the_group(order):
    """Also where nothing divides anything."""
    plans = [p.having(placement=order) for p in PLANS]
    found = place_all(batch(plans), np.repeat(np.array([7.3, 5.1, np.inf])[:, None], len(plans), 1))
    total = jax.tree.map(lambda x: np.asarray(x).prod(0), found)
    for i, p in enumerate(plans):
        same = p.layout.tp * p.layout.cp * p.layout.dp / (p.layout.ep * p.layout.etp)
        expected = {
            "tp": p.layout.tp,
            "cp": p.layout.cp,
            "ep": p.layout.ep,
            "etp": min(p.layout.etp, p.layout.tp),
            "pp": p.layout.pp,
            "shard": p.layout.cp * p.layout.shard,
            "data": p.layout.cp * p.layout.dp,
            "replica": p.layout.dp / p.layout.shard,
            "expert_data": same,
            "all": p.devices,
        }
        for name, value in expected.items():
            np.testing.assert_allclose(getattr(total, name)[i], value, rtol=1e-12)
    for name in NAMES:
        assert (np.asarray(getattr(found, name)) >= 1.0 - 1e-12).all(), name


def test_shard_is_cut_to_the_data_parallel_ranks():
    """A shard wider than dp counts as dp; one narrower than ep leaves each rank its experts."""
    wide, narrow = (
        place_all(plan(dp=16.0, ep=4.0, shard=shard), np.array([8.0, np.inf]))
        for shard in (64.0, 2.0)
    )
    assert np.prod(wide.shard) == pytest.approx(16.0) and np.prod(wide.replica) == pytest.approx(
        1.0
    )
    assert np.prod(narrow.shard) == pytest.approx(2.0) and np.prod(narrow.replica) == pytest.approx(
        8.0
    )
    assert np.prod(wide.expert_shard) == np.prod(narrow.expert_data) == pytest.approx(4.0)
    assert np.prod(narrow.expert_shard) == pytest.approx(1.0)


def test_continuous_in_every_degree():
    """Degrees from 1 to 40 in small steps: no factor jumps, and none falls while its own degree
    grows."""
    tp = np.linspace(1.0, 40.0, 4000)
    ones = np.ones_like(tp)
    moving = batch([plan(tp=1.0, dp=6.0, pp=3.0, cp=2.0)]).having(tp=tp)
    moving = jax.tree.map(lambda x: x * ones, moving)
    found = place_all(moving, np.array([8.0, 4.0, np.inf])[:, None] * ones)
    for name in NAMES:
        factors = getattr(found, name)
        assert np.abs(np.diff(np.log(factors), axis=-1)).max() < 1.01 * np.diff(np.log(tp)).max()
    assert (np.diff(found.tp, axis=-1) > -1e-12).all()
