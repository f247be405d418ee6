"""The page's interpreter makes of a question what Python makes of it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.explored import Answer, at_random, by_page, by_python, of_rows
from tests.javascript import needs_node

QUICK, MANY = 75, 10_000


def agree(found: Answer, want: Answer) -> str:
    """How two answers differ; "" where they do not."""
    if bool(found.error) != bool(want.error):
        return f"errors: {found.error!r} and {want.error!r}"
    if found.structure != want.structure:
        return f"structures: {found.structure} and {want.structure}"
    wrong = ~np.isclose(found.inputs, want.inputs, rtol=1e-12, atol=1e-12)
    if wrong.any():
        places = np.flatnonzero(wrong)[:8]
        return f"numbers {[(i, found.inputs[i], want.inputs[i]) for i in places.tolist()]}"
    return "" if found.facts == want.facts else f"facts: {found.facts} and {want.facts}"


def check(questions, folder, answered: float) -> None:
    want = [by_python(question) for question in questions]
    found = by_page(questions, [each.structure for each in want], folder)
    wrong = [
        (text, question.columns, question.settings)
        for question, a, b in zip(questions, found, want, strict=True)
        if (text := agree(a, b))
    ]
    assert not wrong, f"{len(wrong)} of {len(questions)}: {wrong[:3]}"
    assert np.mean([not each.error for each in want]) > answered


@needs_node
def test_published_rows_have_the_same_records(tmp_path):
    rows = of_rows()
    check(random.Random(1).sample(rows, QUICK), tmp_path, 0.95)


@needs_node
def test_random_questions_have_the_same_records(tmp_path):
    rng, rows = random.Random(2), of_rows()
    check([at_random(rng, rows) for _ in range(QUICK)], tmp_path, 0.2)


@needs_node
@pytest.mark.slow
def test_all_published_rows_have_the_same_records(tmp_path):
    check(of_rows(), tmp_path, 0.95)


@needs_node
@pytest.mark.slow
def test_many_random_questions_have_the_same_records(tmp_path):
    rng, rows = random.Random(3), of_rows()
    check([at_random(rng, rows) for _ in range(MANY)], tmp_path, 0.2)
