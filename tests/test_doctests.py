"""The examples in docstrings say what they print."""

import doctest
import importlib
import pkgutil

import pytest

import calibration
import dmodel

MODULES = [
    m.name
    for package in (dmodel, calibration)
    for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
]
NEEDS_TORCH = tuple(
    f"calibration.torch_step.{name}"
    for name in ("channels", "decoder", "duty", "measure", "products", "work")
)
"""Modules that measure in PyTorch, which is not among the dependencies."""
FINDER = doctest.DocTestFinder(exclude_empty=True)


def examples(module: str) -> list[doctest.DocTest]:
    return [test for test in FINDER.find(importlib.import_module(module)) if test.examples]


@pytest.mark.parametrize(
    "module",
    [name for name in MODULES if not name.endswith("__main__") and name not in NEEDS_TORCH],
)
def test_examples_print_what_they_say(module):
    for test in examples(module):
        said: list[str] = []
        result = doctest.DocTestRunner().run(test, out=said.append)
        assert result.failed == 0, "".join(said)


@pytest.mark.parametrize(
    ("module", "function"),
    [
        ("dmodel.step", "step_time"),
        ("dmodel.step", "memory_use"),
        ("dmodel.cost.collectives", "gather_time"),
        ("dmodel.cost.compute", "matmul_time"),
        ("dmodel.catalog.chips", "chip"),
        ("dmodel.catalog.systems", "system"),
        ("dmodel.catalog.models", "transformer"),
        ("dmodel.profiles.store", "load"),
    ],
)
def test_the_main_functions_have_one(module, function):
    assert f"{module}.{function}" in {test.name for test in examples(module)}
