"""What is meant where no precision is said: 16 bits of the kind that the chip has."""

import pytest

from dmodel.asked import ask
from dmodel.catalog import names
from dmodel.catalog.chips import precisions, usual_precision
from dmodel.catalog.systems import default_system
from dmodel.errors import InputError
from dmodel.question import Question
from dmodel.resolve import resolve
from dmodel.settings import changed
from tests.rows import told
from tests.test_cli import document, run


def resolved(accelerator: str, **said):
    words = {"model": "gpt-2", "n_accel": 1, "global_batch": 8, "accelerator": accelerator}
    return resolve(changed(Question({}), words | said))


@pytest.mark.parametrize("name", names("chips"))
def test_a_question_without_precision_is_answered_on_every_chip(name):
    assert usual_precision(name) in precisions(name)
    try:
        default_system(name)
    except InputError:
        pytest.skip("no default system")
    found = resolved(name)
    assert float(found.plan.precision.operand_bytes) == 2.0
    assert f"precision blank: {usual_precision(name)}" in told(found)


@pytest.mark.parametrize(("name", "peak"), [("T4", 65e12), ("V100-32GB", 125e12)])
def test_chips_without_bf16_train_in_fp16_and_say_why(name, peak):
    found = resolved(name)
    assert float(found.cluster.chip.flops_per_s) == peak
    assert f"precision blank: fp16, as {name} has no bf16" in told(found)
    said = resolved(name, precision="fp16")
    assert "precision blank" not in told(said)
    assert found.cluster.chip == said.cluster.chip and found.plan == said.plan
    with pytest.raises(InputError, match="has no 'bf16'"):
        resolved(name, precision="bf16")
    assert "precision blank: bf16" in told(resolved("A100-80GB"))


def test_facts_of_bf16_do_not_hold_of_fp16():
    """Hugging Face's models are bf16 throughout only where that is what the chip has."""
    of = {"model": "llama-2-7b", "stack": "huggingface"}
    volta, ampere = (resolved(a, **of) for a in ("V100-32GB", "A100-80GB"))
    held = [float(x.plan.precision.optimizer_bytes) for x in (volta, ampere)]
    assert held == [12.0, 4.0]


def test_a_chip_of_one_s_own_is_asked_for_what_it_has(tmp_path):
    path = tmp_path / "chip.toml"
    path.write_text(
        'name = "half-only"\nlike = "V100-32GB"\n[peak]\nfp16 = "100 TFLOP/s"\n', encoding="utf-8"
    )
    question = changed(
        Question({}),
        {"model": "gpt-2", "n_accel": 1, "global_batch": 8, "accelerator": str(path)},
    )
    found = ask(question._replace(system="V100-DGX"), "prior")
    assert found.precision == "fp16"
    assert float(found.cluster.chip.flops_per_s) == 1e14


@pytest.mark.parametrize("system", ["T4-PCIe", "V100-DGX"])
def test_the_shell_answers_without_precision(system):
    asked = f"predict --system {system} --devices 1 --model gpt-2 --global-batch 8 --profile prior"
    found = document(asked)
    assert found["precision"] == "fp16"
    assert any(text.startswith("precision blank: fp16") for text in found["assumptions"])
    assert found["step_time_s"] == document(f"{asked} --precision fp16")["step_time_s"]
    assert "has no 'bf16'" in run(f"{asked} --precision bf16", code=2).stderr
