"""Every study that `dmodel experiment` lists runs with `--quick`, and leaves a figure and a table;
those that need more say so."""

import pytest

from dmodel.cli.experiment import studies, studies_folder
from dmodel.errors import InputError
from experiments import scaling_plans, study
from tests.studies import quick_study

LISTED = studies(studies_folder())
READY = [name for name, about in LISTED.items() if not about.needs]


def test_each_has_a_line_of_its_own():
    assert len(READY) == len(LISTED) - 5 > 40
    for name, listed in LISTED.items():
        assert listed.about[-1] in ".?)" and len(name) + len(listed.about) < 100, name
    assert len({listed.about for listed in LISTED.values()}) == len(LISTED)


@pytest.mark.slow
@pytest.mark.parametrize("name", READY)
def test_a_quick_run_leaves_a_figure_and_a_table(name, tmp_path):
    document = quick_study(name, tmp_path)
    assert document if name == "bench" else document["study"] == name and document["rows"]


@pytest.mark.parametrize(
    ("name", "says"), [("slow_rows", "--traces FILE"), ("uncertainty_nuts", "dmodel-jax[sampling]")]
)
def test_those_that_need_more_say_so_in_a_line(name, says, tmp_path, monkeypatch, capsys):
    assert says in LISTED[name].needs
    monkeypatch.setattr(f"experiments.{name}.find_spec", lambda _: None, raising=False)
    with pytest.raises(InputError, match=".*".join(says.split()).replace("[", r"\[")):
        quick_study(name, tmp_path)


def test_only_takes_names_that_contain_a_text():
    names = ("few-shot a", "few-shot b", "scale a")
    assert study.containing(names, None, "protocol") == list(names)
    assert study.containing(names, ["shot b", "scale"], "protocol") == ["few-shot b", "scale a"]
    with pytest.raises(InputError, match="no protocol contains 'z'; there are: few-shot a; few"):
        study.containing(names, ["scale", "z"], "protocol")


def test_cells_stand_in_columns(capsys):
    study.print_cells([["", "n"], ["long", "1"], ["x", "10"]], right=(1,))
    assert capsys.readouterr().out == "       n\nlong   1\nx     10\n"


def test_micro_batches_fill_whole_rounds():
    assert scaling_plans.micro_batches(12.0, 1) == [1.0, 2.0, 4.0]
    assert scaling_plans.micro_batches(12.0, 4) == [1.0]
