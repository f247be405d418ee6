"""Nothing that is typed is ignored: each option of the commands that answer questions changes the
answer where it applies, or is refused. An option without a case here fails."""

import json
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from dmodel.cli import app
from dmodel.cli.app import loaded

ONE = "--system A100-DGX --devices 16 --model llama-3-8b --seq-len 4096 --global-batch 64"
PRIOR = f"{ONE} --profile prior"
ODD = f"{PRIOR} --global-batch 4000000"
BASE = {
    "predict": PRIOR,
    "diagnose": f"{ONE} --measured 9s --neighbours 1",
    "solve": f"{PRIOR} --for chip.flops_per_s --such-that step_time=5s",
    "sensitivity": PRIOR,
    "design": f"{PRIOR} --brief",
    "catalog": "systems H100-DGX",
}
ECHO = (
    *("system", "accelerator", "devices", "model", "seq_len", "global_batch", "precision"),
    *("stack", "profile", "assumptions", "plan", "measurement"),
)
"""What repeats the question; the rest of a document is the answer."""


class Case(NamedTuple):
    """An option as it is typed, in a context where it applies (a whole question, or options after
    that of the command). says: of an option that is refused there. shown: what people see is
    compared, as JSON always has all. slow: takes long."""

    words: str
    context: str = ""
    says: str = ""
    shown: bool = False
    slow: bool = False


LISTED = "--vary precision=bf16,fp16"
DATES = "--tokens 1e12 --until 2027-06-01 --start 2026-06-01"
JOB = {
    "--system": Case("--system H100-DGX"),
    "--devices": Case("--devices 32"),
    "--model": Case("--model llama-2-7b"),
    "--seq-len": Case("--seq-len 2048"),
    "--global-batch": Case("--global-batch 128"),
    "--precision": Case("--precision fp8", "--system H100-DGX"),
    "--profile": Case("--profile generic"),
    "--stack": Case("--stack torchtitan"),
    "--set": Case("--set seq_len=2048"),
    "--chip": Case("--chip A100-40GB"),
}
DEGREES = {
    "--micro-batch": Case("--micro-batch 2"),
    "--accumulation-steps": Case("--accumulation-steps 2", says="give one of them"),
    "--tp": Case("--tp 2"),
    "--pp": Case("--pp 2"),
    "--cp": Case("--cp 2"),
    "--dp": Case("--dp 8", says="dp"),
    "--ep": Case("--ep 2", "--model mixtral-8x7b"),
    "--zero": Case("--zero 3"),
    "--shard": Case("--shard 8", "--zero 3"),
    "--reshard": Case("--no-reshard", "--zero 3"),
    "--sp": Case("--no-sp", "--tp 2"),
    "--interleave": Case("--interleave 2", "--pp 2"),
    "--recompute": Case("--recompute full", "--recompute none"),
    "--offload": Case("--offload 0.5"),
    "--schedule": Case("--schedule zero-bubble", "--pp 2"),
    "--attention": Case("--attention none"),
}
TERMS = {
    "--tokens": Case("--tokens 1e12"),
    "--chinchilla": Case("--chinchilla"),
    "--price-per-hour": Case("--price-per-hour 9"),
    "--until": Case("--until 2027-01-01", DATES),
    "--start": Case("--start 2026-08-01", DATES),
}
SPREAD = {
    "--workers": Case("--workers 0", says="--workers"),
    "--cluster": Case("--cluster tcp://127.0.0.1:1 --workers 1", says="--cluster"),
}
"""What computes changes no answer: tests/test_elsewhere.py."""
CASES = {
    "predict": JOB
    | DEGREES
    | TERMS
    | {
        "--loss": Case("--loss 2.2"),
        "--explain": Case("--explain matmul"),
        "--emit": Case("--emit megatron"),
        "--emit-out": Case("--emit-out x.args", "--emit megatron"),
        "--peak": Case("--peak 400"),
        "--anyway": Case("--anyway", ODD),
        "--against": Case("--against tp=2"),
        "--out": Case("--out x.csv", says="trace file"),
        "--configurations": Case("--configurations", says="trace file"),
        "--strict": Case("--strict", "--model gpt-3-175b --seq-len 2048"),
    },
    "diagnose": JOB
    | DEGREES
    | {
        "--profile": Case("--profile h100-megatron"),
        "--measured": Case("--measured memory=30GB"),
        # less is recomputed where some of it waits elsewhere
        "--offload": Case("--offload 0.5", "--zero 3 --micro-batch 2"),
        "--line": Case("--line 2", says="--line is of a file"),
        "--neighbours": Case("--neighbours 2"),
        "--figure": Case("--figure x.png"),
    },
    "solve": JOB
    | DEGREES
    | {
        "--for": Case("--for chip.hbm_bytes_per_s"),
        "--such-that": Case("--such-that step_time=4s"),
        "--tokens": Case("--tokens 1e12", "--such-that days=30"),
        "--loss": Case("--loss 2.5", "--such-that days=30"),
        "--between": Case("--between 1e14 2e15"),
    },
    "sensitivity": JOB
    | DEGREES
    | SPREAD
    | {
        "--offload": Case("--offload 0.5", "--output memory"),
        "--output": Case("--output memory"),
        "--top": Case("--top 3", shown=True),
        "--reoptimize": Case("--reoptimize --follow chip.hbm_bytes", slow=True),
        "--max-risk": Case("--max-risk 50%", "--reoptimize --follow chip.hbm_bytes"),
        "--follow": Case(
            "--follow chip.flops_per_s", "--reoptimize --follow chip.hbm_bytes", slow=True
        ),
        "--global": Case("--global 64"),
        "--range": Case("--range chip.flops_per_s=1e14:4e14", "--global 64"),
        "--interactions": Case("--interactions 3"),
        "--map": Case("--map flops,bandwidth"),
        "--loss": Case("--loss 2.5", "--output time_to_loss"),
        "--deadline-days": Case("--deadline-days 30", "--output largest_run"),
        "--check": Case("--check"),
        "--report": Case("--report out", slow=True),
    },
    "design": JOB
    | TERMS
    | SPREAD
    | {
        "--method": Case("--method gradient --starts 1", slow=True),
        "--top": Case("--top 2"),
        "--attention": Case("--attention none"),
        "--space": Case("--space everything", slow=True),
        "--pareto": Case("--pareto"),
        "--law": Case("--law loss=kaplan", says="--law: nothing to do here"),
        "--failures": Case("--failures", says="--failures: nothing to do here"),
        "--starts": Case("--starts 3", says="--starts: nothing to do here"),
        "--brief": Case("--brief", PRIOR),
        "--emit": Case("--emit megatron"),
        "--emit-out": Case("--emit-out x.args", "--emit megatron"),
        "--anyway": Case("--anyway", ODD),
        "--loss": Case("--loss 2.6 --starts 1", slow=True),
        "--flop": Case("--flop 1e22 --starts 1", slow=True),
        "--budget-dollars": Case("--budget-dollars 1"),
        "--budget-days": Case("--budget-days 0.001"),
        "--budget-joules": Case("--budget-joules 1"),
        "--max-risk": Case("--max-risk 1%"),
        "--free": Case("--free batch --starts 1", slow=True),
        "--vary": Case(LISTED),
        "--figure": Case("--figure x.png", LISTED),
        "--objective": Case("--objective energy"),
    },
    "catalog": {"--toml": Case("--toml", shown=True)},
}

NOT_HERE = {
    "sensitivity loss": ("sensitivity", "--loss 2.5", "--loss"),
    "sensitivity deadline": ("sensitivity", "--deadline-days 30", "--deadline-days"),
    "sensitivity follow": ("sensitivity", "--follow chip.hbm_bytes", "--follow"),
    "sensitivity risk": ("sensitivity", "--max-risk 5%", "--max-risk"),
    "predict dates": ("predict", "--until 2027-01-01", "--until"),
    "predict begin": ("predict", "--tokens 1e12 --start 2026-01-01", "--start"),
    "sensitivity workers": ("sensitivity", "--workers 2", "--workers"),
    "design workers": ("design", "--workers 2 --method gradient", "--workers"),
    "design starts": ("design", "--starts 3", "--starts"),
    "design figure": ("design", "--figure x.png", "--figure"),
    "design list of plans": ("design", f"{LISTED} --top 2", "--top"),
    "design list to launch": ("design", f"{LISTED} --emit megatron", "--emit"),
    "design list of fronts": ("design", f"{LISTED} --pareto", "--pareto"),
    "design file": ("design", "--emit-out x.args", "name a framework"),
    "catalog toml": ("catalog", "", "--toml"),
}
"""Options where they have nothing to do → what the refusal names."""

ALWAYS = {"--json", "--help"}
"""Options of every command, which choose a way of speaking."""

ASKED = [(name, option) for name, cases in CASES.items() for option in cases]


def options_of(command: str) -> list[str]:
    """The first name of every option of a command."""
    found = [p.opts[0] for p in loaded(command).params if p.opts[0].startswith("--")]
    return [name for name in found if name not in ALWAYS]


@pytest.mark.parametrize("command", CASES)
def test_every_option_has_a_case(command):
    assert set(options_of(command)) == set(CASES[command])


def outcome(command: str, words: str, shown: bool):
    """What a command answers: its code, and the document but for what repeats the question, or
    what people see; and what it refused."""
    more = [] if shown else ["--json"]
    result = CliRunner().invoke(app, [command, *words.split(), *more])
    assert result.exception is None or isinstance(result.exception, SystemExit), words
    if result.exit_code == 2 or shown:
        return result.exit_code, result.stdout, result.stderr
    document = json.loads(result.stdout)
    told = {k: v for k, v in document.items() if k not in ECHO}
    return result.exit_code, json.dumps(told, sort_keys=True), result.stderr


@pytest.mark.parametrize(
    ("command", "option"),
    [
        pytest.param(*asked, marks=pytest.mark.slow) if CASES[asked[0]][asked[1]].slow else asked
        for asked in ASKED
    ],
)
def test_an_option_changes_the_answer_or_is_refused(command, option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case = CASES[command][option]
    whole = case.context.startswith(ONE)
    plain = case.context if whole else f"{BASE[command]} {case.context}"
    before = outcome(command, plain, case.shown)
    files = {p.name for p in tmp_path.iterdir()}
    code, told, said = outcome(command, f"{plain} {case.words}", case.shown)
    if case.says:
        assert code == 2 and case.says in said
        return
    assert before[0] in (0, 1) and code in (0, 1), (before[2], said)
    written = {p.name for p in tmp_path.iterdir()} - files
    assert (code, told) != before[:2] or written


@pytest.mark.parametrize("case", NOT_HERE)
def test_an_option_that_has_nothing_to_do_is_refused(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command, words, says = NOT_HERE[case]
    typed = "systems --toml" if command == "catalog" else f"{BASE[command]} {words}"
    code, _, said = outcome(command, typed, False)
    assert code == 2 and says in said


@pytest.mark.parametrize("command", ["predict", "diagnose", "solve", "sensitivity"])
def test_accumulation_is_a_batch(command):
    """4 micro-batches of 2 on each of 8 replicas are 64 sequences."""
    plain = BASE[command].replace("--global-batch 64", "")
    said = [f"{plain} --micro-batch 2 --tp 2 {x}" for x in ("--global-batch 64", STEPS)]
    by_batch, by_steps = (outcome(command, words, False) for words in said)
    assert by_batch[:2] == by_steps[:2] and by_batch[0] in (0, 1)
    by_settings = f"{plain} --set micro_batch=2 --set tp=2 {STEPS}"
    assert outcome(command, by_settings, False)[:2] == by_batch[:2]


STEPS = "--accumulation-steps 4"
