"""Machines of a user's own: files of chips and systems, single numbers with units, what is refused
and what is doubted."""

import json
import math
import os
from pathlib import Path

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import dmodel as dm
from dmodel import catalog
from dmodel.catalog import limits, listed, loader, toml_text
from dmodel.catalog.chips import known_as
from dmodel.catalog.quantities import QUANTITIES, unit_of
from dmodel.cli import app
from dmodel.units import UNITS, quantity, written

ROOT = Path(__file__).parents[1]
JOB = dm.Job("llama-3.2-1b", 2048, 32)
ASKED = ["--devices", "16", "--model", "llama-3.2-1b", "--seq-len", "2048", "--global-batch", "32"]
SYSTEM = """
about = "Ours"
chip = "H100-80GB"
[[level]]
name = "NVLink"
size = 8
bandwidth = "450 GB/s"
latency = "0.85 us"
in_network_reduction = true
[[level]]
bandwidth = "400 Gb/s"
latency = "5 us"
"""
CHIP = """
memory = "96 GB"
bandwidth = "4 TB/s"
[peak]
bf16 = "800 TFLOP/s"
"""
LIKE = 'like = "H100-80GB"\n'


@pytest.fixture(autouse=True)
def forgets(tmp_path, monkeypatch):
    """The catalog as it was, and a folder to work in."""
    monkeypatch.chdir(tmp_path)
    kinds = {kind: dict(loader.table(kind)) for kind in ("chips", "systems")}
    yield
    for kind, entries in kinds.items():
        loader.table(kind).clear()
        loader.table(kind).update(entries)
    loader._ADDED.clear()
    loader._spellings.cache_clear()


def shell(*words):
    """What the shell answers: exit code, document, messages."""
    done = CliRunner().invoke(app, [*map(str, words)])
    return done.exit_code, done.stdout, done.stderr


def answered(*words):
    code, out, err = shell(*words, *ASKED, "--json")
    assert code == 0, err
    return json.loads(out)


def same(one, other):
    """Whether two records are equal to the last digit."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", catalog.names("systems"))
def test_a_printed_system_reads_as_the_same_numbers(name):
    Path("mine.toml").write_text(toml_text.of_system(name))
    precision = catalog.precisions(loader.table("systems")[name]["chip"])[0]
    assert same(catalog.system("mine.toml", precision), catalog.system(name, precision))
    assert loader.table("systems")["mine.toml"]["notes"] == []


@pytest.mark.parametrize("name", catalog.names("chips"))
def test_a_printed_chip_reads_as_the_same_numbers(name):
    Path("mine.toml").write_text(toml_text.of_chip(name))
    assert catalog.precisions("mine.toml") == catalog.precisions(name)
    for precision in catalog.precisions(name):
        assert same(catalog.chip("mine.toml", precision), catalog.chip(name, precision))
    assert known_as("mine.toml") == name
    assert loader.table("chips")["mine.toml"]["notes"] == []


@pytest.mark.parametrize("name", ["H100-DGX", "Trn2-UltraServer", "H100-SuperPOD-Rail"])
def test_a_printed_system_predicts_the_same_in_the_shell(name):
    code, text, _ = shell("catalog", "systems", name, "--toml")
    assert code == 0
    Path("mine.toml").write_text(text)
    one, other = answered("predict", "--system", name), answered("predict", "--system", "mine.toml")
    assert other.pop("system") == "mine.toml" and one.pop("system") == name
    assert one == other


def test_a_printed_chip_predicts_the_same_in_the_shell():
    Path("mine.toml").write_text(shell("catalog", "chips", "h200", "--toml")[1])
    alone, own = answered("predict", "--chip", "H200"), answered("predict", "--chip", "mine.toml")
    assert own.pop("accelerator") == "mine.toml" and alone.pop("accelerator") == "H200-141GB"
    assert own == alone


@pytest.mark.parametrize("name", ['name = "Our X"', 'like = "H200"'])
def test_a_file_of_ones_own_is_printed_with_its_chip(name):
    chip = f"[chip]\n{name}{CHIP}".replace("[peak]", "[chip.peak]")
    Path("mine.toml").write_text(SYSTEM.replace('chip = "H100-80GB"', chip))
    code, text, err = shell("catalog", "systems", "mine.toml", "--toml")
    assert code == 0, err
    Path("again.toml").write_text(text)
    assert same(catalog.system("again.toml"), catalog.system("mine.toml"))
    chips = [loader.table("systems")[name]["chip"] for name in ("mine.toml", "again.toml")]
    own = [known_as(chip) for chip in chips]
    assert own == (["Our X"] * 2 if "Our X" in chips else ["H200-141GB"] * 2)


def test_lines_of_a_printed_file_are_never_folded(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert shell("catalog", "systems", "H100-DGX", "--toml")[1] == toml_text.of_system("H100-DGX")


@pytest.mark.parametrize(
    "words", [["models", "llama-3-8b"], ["chips"], ["chips", "H100", "--json"]]
)
def test_only_one_chip_or_system_is_printed_as_a_file(words):
    code, out, err = shell("catalog", *words, "--toml")
    assert (code, out) == (2, "") and "--toml" in err


def test_a_system_of_ones_own_answers_in_shell_and_python():
    Path("mine.toml").write_text(SYSTEM)
    known, own = (
        answered("predict", "--system", "H100-DGX"),
        answered("predict", "--system", "mine.toml"),
    )
    assert own["step_time_s"] == known["step_time_s"]
    found = dm.predict(JOB, dm.cluster("./mine.toml", devices=16), precision="bf16")
    assert found.step_time_s == own["step_time_s"]
    said = dm.predict(
        JOB, dm.cluster("H200-HGX", 16), precision="bf16", overrides={"system": "mine.toml"}
    )
    assert said.step_time_s == own["step_time_s"]


def test_a_system_of_ones_own_can_be_designed_for():
    Path("mine.toml").write_text(SYSTEM.replace("400 Gb/s", "10 Gb/s"))
    words = ["--system", "mine.toml", "--brief"]
    found = answered("design", *words)
    assert found["system"] == "mine.toml" and found["exact"]
    known = answered("design", "--system", "H100-DGX", "--brief")
    assert found["exact"][0]["step_time_s"] > known["exact"][0]["step_time_s"]


def test_a_chip_of_ones_own_stands_in_a_system():
    Path("chip.toml").write_text(LIKE + 'bandwidth = "5 TB/s"\n')
    found = answered("predict", "--system", "H100-DGX", "--chip", "chip.toml")
    assert found["accelerator"] == "chip.toml"
    assert "H100-DGX with chip.toml in place of H100-80GB" in found["assumptions"]
    assert found["step_time_s"] < answered("predict", "--system", "H100-DGX")["step_time_s"]


def test_a_chip_in_a_systems_file_needs_no_name():
    chip = f"[chip]{CHIP}".replace("[peak]", "[chip.peak]")
    Path("mine.toml").write_text(SYSTEM.replace('chip = "H100-80GB"', chip))
    found = answered("predict", "--system", "mine.toml")
    assert found["accelerator"] == "mine.toml, chip"
    assert found["step_time_s"] > answered("predict", "--system", "H100-DGX")["step_time_s"]


def test_what_a_chip_leaves_out_is_said():
    Path("mine.toml").write_text(
        SYSTEM.replace('chip = "H100-80GB"', f'[chip]\nname="X"{CHIP}').replace(
            "[peak]", "[chip.peak]"
        )
    )
    code, out, err = shell("predict", "--system", "mine.toml", *ASKED, "--json")
    assert code == 0, err
    text = next(t for t in json.loads(out)["assumptions"] if t.startswith("X: "))
    assert "exponentials, kernel_latency" in text and "whose peak is nearest" in text
    assert text in err


def test_coefficients_are_those_of_the_chip_that_it_is_like():
    Path("like.toml").write_text(LIKE + CHIP)
    Path("new.toml").write_text(CHIP)
    job = dict(stack="megatron-lm-llama", precision="bf16")
    like = dm.predict(
        JOB, dm.cluster("H100-DGX", 16), overrides={"accelerator": "like.toml"}, **job
    )
    new = dm.predict(JOB, dm.cluster("H100-DGX", 16), overrides={"accelerator": "new.toml"}, **job)
    assert like.asked.profile.name == "h100-megatron" and new.asked.profile.name == "generic"
    assert float(like.asked.cluster.chip.flops_per_s) == 8e14

    def width(found):
        return math.log(found.document["step_time_s_high"] / found.document["step_time_s_low"])

    assert width(new) > width(like)


def test_a_file_that_has_changed_is_read_again():
    path = Path("mine.toml")
    path.write_text(SYSTEM)
    before = dm.predict(JOB, dm.cluster("mine.toml", 16)).step_time_s
    path.write_text(SYSTEM.replace("400 Gb/s", "4 Gb/s"))
    os.utime(path, ns=(1, 1))
    assert dm.predict(JOB, dm.cluster("mine.toml", 16)).step_time_s > before


def test_a_chip_file_may_lie_beside_the_systems():
    Path("sub").mkdir()
    Path("sub/chip.toml").write_text(LIKE)
    Path("sub/mine.toml").write_text(SYSTEM.replace("H100-80GB", "chip.toml"))
    assert same(catalog.system("sub/mine.toml"), catalog.system("H100-DGX"))


def test_rows_of_traces_name_files_and_numbers():
    Path("mine.toml").write_text(SYSTEM.replace("400 Gb/s", "8 Gb/s"))
    Path("chip.toml").write_text(LIKE + 'memory = "141 GB"')
    header = "model,accelerator,n_accel,global_batch,seq_len,tp,micro_batch,precision,set"
    said = [
        "H100,{},",
        "H100,{},system=mine.toml",
        "H100,{},bandwidth.inter=1GB/s",
        "chip.toml,{},",
    ]
    said += ["H100,{},memory=141GB", "nowhere.toml,{},", "H100,{},memory=141"]
    rows = [f"llama-3-8b,{text.format('64,64,4096,2,1,bf16')}" for text in said]
    Path("rows.csv").write_text("\n".join([header, *rows]) + "\n")
    code, out, err = shell("predict", "rows.csv", "--json")
    assert code == 0, err
    document = json.loads(out)
    known, slow, set_slow, own, roomy = document["rows"]
    assert slow["predicted_step_time_s"] > 2.0 * known["predicted_step_time_s"]
    assert set_slow["predicted_step_time_s"] == pytest.approx(slow["predicted_step_time_s"], 1e-9)
    assert own["headroom_bytes"] == roomy["headroom_bytes"] > known["headroom_bytes"]
    assert own["accelerator"] == "H100-80GB"
    reasons = [aside["reason"] for aside in document["set_aside"]]
    assert "nowhere.toml" in reasons[0] and "141 GB" in reasons[1]


LEVEL = 'chip = "H100"\n[[level]]\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("chip = ", ["not readable as TOML"]),
        ('level = [{bandwidth = "1 GB/s", latency = "1 us"}]', ["chip", "[chip]"]),
        ('chip = "H101"\n[[level]]', ["mine.toml, chip", "H100-80GB"]),
        ('chip = "H100"', ["level", "innermost first"]),
        (LEVEL + 'bandwidth = "1 GB/s"', ["level 1, latency", "missing"]),
        (LEVEL + 'bandwith = "1 GB/s"', ["level 1", "bandwith", "bandwidth"]),
        (LEVEL + 'bandwidth = "0 GB/s"\nlatency = "1 us"', ["level 1, bandwidth", "0 byte/s"]),
        (LEVEL + 'bandwidth = 450\nlatency = "1 us"', ["450 byte/s", "450 GB/s"]),
        (LEVEL + 'bandwidth = "2 PB/s"\nlatency = "1 us"', ["10 TB/s", "2e+15 byte/s"]),
        (LEVEL + 'bandwidth = "1 GB"\nlatency = "1 us"', ["bandwidth", "unit 'GB'", "GB/s"]),
        (LEVEL + 'bandwidth = "1 GB/s"\nlatency = -1', ["latency", "-1"]),
        (LEVEL + 'bandwidth = "1 GB/s"\nlatency = 5', ["latency", "5 us"]),
        (LEVEL + 'bandwidth = "1 GB/s"\nlatency = "1 us"\nsize = 0', ["size", "whole number"]),
        (LEVEL + 'bandwidth = "1 GB/s"\nlatency = "1 us"\nsize = true', ["size", "True"]),
        (LEVEL * 1 + 'bandwidth = "1 GB/s"\nlatency = "1 us"\n[[level]]', ["size", "last level"]),
        (LEVEL + 'bandwidth = "1 GB/s"\nlatency = "1 us"\nin_network_reduction = 2', ["true or"]),
        ('memory = "80 GB"', ["memory", "--chip"]),
    ],
)
def test_what_is_no_system_is_refused_with_its_place(text, words):
    Path("mine.toml").write_text(text)
    code, out, err = shell("predict", "--system", "mine.toml", *ASKED, "--json")
    assert (code, out) == (2, "")
    assert all(word in err for word in ["mine.toml", *words]), err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('memory = "80 GB"', ["peak, bandwidth", "missing", "like"]),
        (LIKE + "memory = 80", ["memory", "80 byte", "80 GB"]),
        (LIKE + 'memory = "80 TB"', ["memory", "10 TB"]),
        (LIKE + 'bandwidth = "3 PB/s"', ["bandwidth", "200 TB/s"]),
        (LIKE + "peak = 3", ["peak", "by precision"]),
        (LIKE + 'peak = {bf17 = "1 TFLOP/s"}', ["bf17", "bf16"]),
        (LIKE + 'peak = {bf16 = "-1 TFLOP/s"}', ["peak, bf16", "-1"]),
        (LIKE + 'peak = {bf16 = "989 PFLOP/s"}', ["peak, bf16", "9.89e+17"]),
        ('like = "H101"', ["like", "H100-80GB"]),
        (LIKE + "price = true", ["price", "True"]),
        (LIKE + 'name = "H100"', ["name of the catalog"]),
        (LIKE + "memory = nan", ["memory", "nan"]),
        (LIKE + "memory = inf", ["memory", "inf"]),
        (LIKE + f"memory = 1{'0' * 400}", ["memory"]),
        (LIKE + 'memory = "1e400 GB"', ["memory", "1e400 GB"]),
        (LIKE + 'memory = "80 GB"\ndate = "soon"', ["date", "soon"]),
        ("[[level]]", ["level", "--system"]),
    ],
)
def test_what_is_no_chip_is_refused_with_its_place(text, words):
    Path("mine.toml").write_text(text)
    code, out, err = shell("predict", "--chip", "mine.toml", "--system", "H100-DGX", *ASKED)
    assert (code, out) == (2, "")
    assert all(word in err for word in ["mine.toml", *words]), err


def test_a_file_that_is_not_there_is_named():
    code, _, err = shell("predict", "--system", "nowhere.toml", *ASKED)
    assert code == 2 and "nowhere.toml" in err and "No such file" in err


@pytest.mark.parametrize(
    ("chip", "words"),
    [
        ('peak = {bf16 = "1979 TFLOP/s"}', ["twice the dense", "989.4 TFLOP/s", "sparsity"]),
        ('memory = "8 TB"', ["2.4 s to read"]),
        ('bandwidth = "0.3 TB/s"', ["FLOP per byte"]),
    ],
)
def test_what_is_doubtful_of_a_chip_is_said_with_arithmetic(chip, words):
    Path("mine.toml").write_text(LIKE + chip)
    code, out, err = shell(
        "predict", "--system", "H100-DGX", "--chip", "mine.toml", *ASKED, "--json"
    )
    assert code == 0 and all(word in err for word in ["doubtful", *words]), err
    assert any("doubtful" in text for text in json.loads(out)["assumptions"])


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("400 Gb/s", "600 GB/s", "innermost first"),
        ("400 Gb/s", "400 GB/s", "3.2 Tb/s"),
        ("450 GB/s", "4.5 TB/s", "faster than the memory"),
    ],
)
def test_what_is_doubtful_of_a_network_is_said_with_arithmetic(old, new, word):
    Path("mine.toml").write_text(SYSTEM.replace(old, new))
    code, _, err = shell("predict", "--system", "mine.toml", *ASKED)
    assert code == 0 and word in err


@pytest.mark.parametrize(
    ("said", "part", "leaf", "value"),
    [
        ("bandwidth.inter=25GB/s", "network", "bytes_per_s", [450e9, 25e9]),
        ("bandwidth.intra=1.6Tb/s", "network", "bytes_per_s", [200e9, 50e9]),
        ("latency.intra=2us", "network", "latency_s", [2e-6, 5e-6]),
        ("latency.inter=10 us", "network", "latency_s", [8.5e-7, 1e-5]),
        ("memory=141GB", "chip", "hbm_bytes", 141e9),
        ("bandwidth.memory=4.8TB/s", "chip", "hbm_bytes_per_s", 4.8e12),
        ("peak=800TFLOP/s", "chip", "flops_per_s", 8e14),
        ("exponentials=4e12", "chip", "exponentials_per_s", 4e12),
        ("latency.kernel=3us", "chip", "kernel_latency_s", 3e-6),
        ("power.idle=50W", "chip", "idle_watts", 50.0),
        ("power.peak=0.5kW", "chip", "peak_watts", 500.0),
        ("price=3.6 $/h", "chip", "price_per_s", 1e-3),
    ],
)
def test_single_numbers_are_set_with_units(said, part, leaf, value):
    name, text = said.split("=")
    found = dm.predict(JOB, dm.cluster("H100-DGX", 16), precision="bf16", overrides={name: text})
    assert np.asarray(getattr(getattr(found.asked.cluster, part), leaf)).tolist() == value
    assert name in QUANTITIES
    document = answered("predict", "--system", "H100-DGX", "--set", said)
    assert document["step_time_s"] == found.step_time_s


def test_a_set_peak_is_that_of_the_plans_products():
    known = dm.predict(JOB, dm.cluster("H100-DGX", 16), precision="fp8").asked.cluster.chip
    for precision, attention in (("bf16", 8e14), ("fp8", float(known.attention_flops_per_s))):
        found = dm.predict(
            JOB, dm.cluster("H100-DGX", 16), precision=precision, overrides={"peak": 8e14}
        )
        chip = found.asked.cluster.chip
        assert (float(chip.flops_per_s), float(chip.attention_flops_per_s)) == (8e14, attention)


def test_a_search_takes_single_numbers_too():
    words = ["design", "--system", "H100-DGX", "--brief"]
    slow = answered(*words, "--set", "bandwidth.inter=1GB/s")
    assert slow["exact"][0]["step_time_s"] > answered(*words)["exact"][0]["step_time_s"]


@pytest.mark.parametrize(
    ("system", "said", "words"),
    [
        ("H100-DGX", "memory=80", ["memory", "80 byte", "80 GB"]),
        ("H100-DGX", "bandwidth.inter=0", ["bandwidth.inter", "0 byte/s"]),
        ("H100-DGX", "bandwidth.inter=3us", ["unit 'us'", "GB/s"]),
        ("H100-DGX", "bandwidth.inner=3GB/s", ["bandwidth.inner", "bandwidth.inter"]),
        ("H100-SuperPOD-Rail", "latency.inter=3us", ["4 levels", "--toml"]),
    ],
)
def test_single_numbers_that_cannot_be_are_refused(system, said, words):
    code, out, err = shell("predict", "--system", system, "--set", said, *ASKED)
    assert (code, out) == (2, "") and all(word in err for word in words), err


def test_facts_of_stacks_cannot_set_numbers_of_machines():
    Path("ours.toml").write_text(
        'extends = ["megatron"]\n[[fact]]\nset = {memory = 1.0}\nsource = "x"\ndate = "2026-01"\n'
        'says = "x"\n'
    )
    code, _, err = shell("predict", "--system", "H100-DGX", "--stack", "ours.toml", *ASKED)
    assert code == 2 and "memory" in err


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("25 GB/s", "byte/s", 25e9),
        ("25GBps", "byte/s", 25e9),
        ("400 Gb/s", "byte/s", 50e9),
        ("400Gbit/s", "byte/s", 50e9),
        ("80 GiB", "byte", 80 * 2.0**30),
        ("1,979 TFLOPS", "FLOP/s", 1.979e15),
        ("0.85 us", "s", 8.5e-7),
        ("850 ns", "s", 8.5e-7),
        ("1e-6", "s", 1e-6),
    ],
)
def test_quantities_as_people_write_them(text, unit, value):
    assert quantity(text, unit) == value


@pytest.mark.parametrize("text", ["", "GB", "3 furlongs", "1.2.3 s", "nan s", "1e", "3 GB/s GB"])
def test_what_is_no_quantity_is_refused(text):
    with pytest.raises(ValueError, match="expected a number"):
        quantity(text, "s")


def test_written_numbers_are_read_as_they_were():
    draw = np.random.default_rng(0)
    for unit in ("byte", "byte/s", "FLOP/s", "1/s", "s", "W", "dollar/hour"):
        assert unit in UNITS
        for value in np.exp(draw.uniform(-20.0, 40.0, 200)):
            assert quantity(written(float(value), unit), unit) == value


def test_limits_hold_for_every_machine_of_the_catalog():
    for name in catalog.names("chips"):
        Path("mine.toml").write_text(toml_text.of_chip(name))
        catalog.chip("mine.toml", catalog.precisions(name)[0])
    assert all(limit.low < limit.high for limit in limits.LIMITS.values())
    assert all(unit_of(name) in UNITS for name in QUANTITIES)


def test_an_answer_says_that_figures_are_only_announced():
    texts = answered("predict", "--system", "Rubin-NVL72")["assumptions"]
    assert "Rubin: figures as announced, 2026-01" in texts


def test_no_two_machines_share_a_spelling():
    for kind in ("chips", "systems"):
        spelled = [s for n, e in loader.table(kind).items() for s in (n, *e["aliases"])]
        folded = [loader.fold(s) for s in spelled]
        own = {
            (loader.fold(s), n) for n, e in loader.table(kind).items() for s in (n, *e["aliases"])
        }
        assert len({f for f, _ in own}) == len(own) and set(folded) == {f for f, _ in own}


def test_the_documentation_lists_all_chips_and_systems():
    text = (ROOT / "docs" / "machines.md").read_text(encoding="utf-8")
    assert listed.chips() in text and listed.systems() in text


def test_files_of_the_documentation_are_read():
    text = (ROOT / "docs" / "machines.md").read_text(encoding="utf-8")
    system, chip = (part.split("```")[0] for part in text.split("```toml\n")[1:])
    Path("mine.toml").write_text(system)
    Path("chip.toml").write_text(chip)
    assert same(catalog.system("mine.toml"), catalog.system("H100-DGX"))
    assert float(catalog.chip("chip.toml").hbm_bytes) == 96e9


@pytest.mark.parametrize("name", catalog.names("chips"))
def test_every_chip_predicts_a_sane_time_with_an_interval(name):
    precisions = catalog.precisions(name)
    precision = "bf16" if "bf16" in precisions else precisions[0]
    found = dm.predict(JOB, dm.cluster(name, 8), precision=precision).document
    assert 0.02 < found["mfu"]["6N"] < 0.9
    assert 1.1 < found["step_time_s_high"] / found["step_time_s_low"] < 30.0
    assert found["joules_per_token"] > 0.0 and found["dollars_per_million_tokens"] > 0.0
