"""The enumerated space of layouts is the one that plain loops over the study's rules give; levels
and how degrees split on them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dmodel.errors import InputError
from dmodel.theory import laws
from dmodel.theory.space import Candidates, Shape, candidates, divisors, level_sizes, splits


def shape_of(width: int, sparse: bool) -> Shape:
    run = laws.run(float(width), sparse=sparse)
    return Shape(
        *(int(x) for x in (run.d_model, run.d_ff, run.layers, run.experts, run.batch_tokens))
    )


def plain_divisors(n: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def by_loops(shape: Shape, n_gpus: int) -> set[tuple]:
    """The rules of the search, one after the other."""
    found, experts = set(), math.gcd(n_gpus, shape.experts)
    n = n_gpus // experts
    for tp, dp in itertools.product(plain_divisors(n), repeat=2):
        if (
            (n // tp) % dp
            or shape.d_model * shape.d_ff % tp
            or shape.batch_tokens % dp
            or shape.layers % (n // tp // dp)
        ):
            continue
        pp = n // tp // dp
        root = math.isqrt(tp)
        cuts = [
            f
            for f in plain_divisors(tp)
            if root <= f <= 4 * root and shape.d_ff % f == 0 and shape.d_model % (tp // f) == 0
        ]
        tokens = shape.batch_tokens // (shape.experts * dp)
        counts = plain_divisors(tokens) if tokens else []
        for f in cuts:
            v = shape.layers // pp if pp > 1 else 1
            found |= {
                (dp, tp // f, f, pp, experts, m, v, 0) for m in [m for m in counts if m >= pp][:4]
            }
            found |= {
                (dp, tp // f, f, pp, experts, m, 1, 1)
                for m in [m for m in counts if m >= 2 * pp][:1]
            }
    return found


def as_set(space: Candidates) -> set[tuple]:
    return set(zip(*(c.astype(int).tolist() for c in space), strict=True))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("width", [1024, 3584, 13312, 65536])
def test_enumeration_is_that_of_plain_loops(width, sparse):
    shape = shape_of(width, sparse)
    for n in (1, 2, 3, 6, 7, 12, 48, 120, 1000, 2**16, shape.experts * 2**12):
        found = candidates(shape, n)
        assert as_set(found) == by_loops(shape, n), n
        assert len(found) == len(as_set(found))


def test_degrees_multiply_to_the_cluster():
    space = candidates(shape_of(131072, True), 80 * 2**30)
    product = space.dp * space.tp_model * space.tp_ff * space.pp * space.ep
    assert len(space) > 1000
    assert set(np.unique(product)) == {80.0 * 2**30}


@pytest.mark.parametrize("n_gpus", [13, 11 * 2**10, 2**61, 2**80, 2**40 * (2**31 - 1)])
def test_clusters_without_a_layout_are_empty(n_gpus):
    assert len(candidates(shape_of(12288, False), n_gpus)) == 0


def test_divisors():
    for n in (1, 2, 97, 360, 2**20, 3 * 2**30, 97 * 101):
        assert divisors(n).tolist() == plain_divisors(n)


@pytest.mark.parametrize(
    ("bounded", "n_gpus", "expected"),
    [
        ((8,), 4, (4, 1)),
        ((8,), 5, (5, 1)),
        ((8,), 8, (8, 1)),
        ((8,), 2**20, (8, 2**17)),
        ((8, 32), 48, (8, 6, 1)),
        ((8, 32), 1024, (8, 32, 4)),
        ((), 12, (12,)),
    ],
)
def test_levels_shrink_with_the_cluster(bounded, n_gpus, expected):
    assert level_sizes(bounded, n_gpus) == expected


@pytest.mark.parametrize(("bounded", "n_gpus"), [((8,), 12), ((8, 32), 320), ((256,), 384)])
def test_levels_that_are_not_filled_evenly_are_refused(bounded, n_gpus):
    with pytest.raises(InputError, match="expected a multiple of"):
        level_sizes(bounded, n_gpus)


@pytest.mark.parametrize(("size", "parts"), [(1, 5), (8, 4), (8, 5), (32, 4), (12, 3), (7, 2)])
def test_splits_are_all_ordered_products(size, parts):
    found = splits(size, parts)
    plain = {
        w for w in itertools.product(plain_divisors(size), repeat=parts) if math.prod(w) == size
    }
    assert found.shape == (parts, len(plain))
    assert set(map(tuple, found.T.astype(int).tolist())) == plain
