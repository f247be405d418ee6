"""Nothing that is typed is ignored, of commands that read files or measure: each option changes
the answer where it applies, or is refused. An option without a case here fails."""

import csv
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from dmodel.cli import app
from tests.rows import GOOD
from tests.test_options import Case, options_of

RUN = "--set accelerator=H100-80GB --set n_accel=64 --set seq_len=8192 --set tp=4"
NAMED = f"{RUN} --set model=llama-3-8b"
FIT = "fit rows.csv --out p.json"
NEXT = "next-measurements rows.csv --budget-minutes 1000 --out plan.json"
BASE = {
    "evaluate": "evaluate rows.csv",
    "fit": FIT,
    "next-measurements": NEXT,
    "watch": f"watch run.log --once {NAMED}",
    "import": "import run.log --out t.csv",
    "theory": "theory --sweep H100",
    "explore": "explore --out page.html",
    "collect": "collect --out there --list",
}
CASES = {
    "evaluate": {
        "--profile": Case("--profile prior"),
        "--strict": Case("--strict", "evaluate broken.csv"),
        "--configurations": Case("--configurations"),
    },
    "fit": {
        "--out": Case("--out q.json", slow=True),
        "--profile": Case("--profile prior", slow=True),
        "--seed": Case("--seed 3", f"{FIT} --hold-out 0.5", slow=True),
        "--hold-out": Case("--hold-out 0.5", slow=True),
        "--with-implausible": Case(
            "--with-implausible", "fit unlikely.csv --out p.json", slow=True
        ),
        "--strict": Case("--strict", "fit broken.csv --out p.json", slow=True),
        "--drift": Case("--drift 0.2", slow=True),
        "--configurations": Case("--configurations", slow=True),
        "--workers": Case("--workers 0", says="--workers"),
        "--cluster": Case("--cluster tcp://127.0.0.1:1 --workers 1", says="--cluster"),
    },
    "next-measurements": {
        "--budget-minutes": Case("--budget-minutes 2000", slow=True),
        "--out": Case("--out other.json", slow=True),
        "--profile": Case("--profile prior", slow=True),
        "--criterion": Case("--criterion everything", slow=True),
        "--steps": Case("--steps 40", slow=True),
        "--startup-seconds": Case("--startup-seconds 600", slow=True),
        "--candidates": Case(
            "--candidates 9", NEXT.replace("rows", "open"), says="--candidates: the file names"
        ),
    },
    "watch": {
        "--profile": Case("--profile prior"),
        "--set": Case("--set global_batch=256"),
        "--with": Case("--with config.json", f"watch run.log --once {RUN}"),
        "--format": Case("--format nemo"),
        "--least": Case("--least 0.9"),
        "--once": Case("--once", f"watch run.log --idle 1 {NAMED}", says="leave --idle"),
        "--first": Case("--first"),
        "--idle": Case("--idle 1", says="leave --idle and --every out"),
        "--every": Case("--every 1", says="leave --idle and --every out"),
    },
    "import": {
        "--out": Case("--out u.csv"),
        "--format": Case("--format nemo"),
        "--set": Case("--set n_accel=64"),
        "--with": Case("--with config.json"),
        "--strict": Case("--strict"),
    },
    "theory": {
        **dict.fromkeys(
            ("--layouts", "--matmuls", "--optima"), Case("--matmuls rows.csv", says="one of")
        ),
        "--sweep": Case("--sweep A100", slow=True),
        "--sparse": Case("--sparse", slow=True),
        "--batch-law": Case("--batch-law none", slow=True),
        "--out": Case("--out sweep.csv", slow=True),
    },
    "explore": {
        "--profile": Case("--profile prior", slow=True),
        "--out": Case("--out other.html", slow=True),
        "--open": Case("--open --out nowhere/page.html", says="cannot be written", slow=True),
    },
    "collect": {
        "--out": Case("--out rows.csv/there", "collect --tables-only", says="no such folder"),
        "--what": Case("--what launch"),
        "--budget-minutes": Case("--budget-minutes 3", says="nothing to do beside --list"),
        "--plan": Case("--plan rows.csv", says="nothing to do beside --list"),
        "--list": Case("--list", "collect --out there --tables-only", says="leave one out"),
        "--tables-only": Case("--tables-only", says="leave one out"),
        "--parquet": Case("--parquet", says="nothing to do beside --list"),
        "--retry-failed": Case("--retry-failed", says="nothing to do beside --list"),
        "--device-time": Case("--no-device-time", says="nothing to do beside --list"),
        "--launcher": Case("--launcher none", says="nothing to do beside --list"),
    },
}

NOT_HERE = {
    "a plan and kinds": ("collect --out d --plan rows.csv --what launch", "a plan names all"),
    "tables of kinds": ("collect --out d --tables-only --what launch", "beside --tables-only"),
    "a law without a sweep": ("theory --matmuls rows.csv --batch-law none", "belong to --sweep"),
    "a table and a sweep": ("theory --matmuls rows.csv --sweep H100", "expected one of"),
}

LINE = (
    " [2026-01-01 00:{m:02d}:{s:02d}] iteration {i:8d}/ 1000 | consumed samples: {n:12d} | "
    "elapsed time per iteration (ms): {ms:.1f} | learning rate: 1.0E-04 | global batch size: 128 | "
    "lm loss: 8.0E+00 |\n"
)
CONFIG = {
    **{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336},
    **{"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8},
    **{"vocab_size": 128256, "tie_word_embeddings": False},
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Rows that can be used, with one that cannot, and with one that has no time; a log of a run
    that becomes slower twice; the configuration of its model."""
    monkeypatch.chdir(tmp_path)
    seconds = 5.0 * np.repeat([1.0, 1.3, 1.7], 60)
    noise = np.exp(0.01 * np.random.default_rng(0).standard_normal(len(seconds)))
    log = [
        LINE.format(m=i // 60, s=i % 60, i=i, n=128 * i, ms=1e3 * x)
        for i, x in enumerate(seconds * noise, 1)
    ]
    (tmp_path / "run.log").write_text("".join(log))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    rows = [{**GOOD, "source": f"s{i}", "step_time_s": f"{2.0 + i:g}"} for i in range(4)]
    _write(tmp_path / "rows.csv", rows)
    _write(tmp_path / "broken.csv", [*rows, {**GOOD, "tp": "many"}])
    _write(tmp_path / "unlikely.csv", [*rows, {**GOOD, "flag": "implausible"}])
    _write(tmp_path / "open.csv", [*rows, {**GOOD, "step_time_s": "", "dp": "", "tp": "1"}])
    return tmp_path


def _write(path, rows):
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, list(rows[0]))
        out.writeheader()
        out.writerows(rows)


def outcome(words: str):
    """Code, what is printed but for seconds that it took, and messages."""
    more = [] if words.startswith("explore") else ["--json"]
    result = CliRunner().invoke(app, [*words.split(), *more])
    assert result.exception is None or isinstance(result.exception, SystemExit), words
    lines = [x for x in result.stdout.splitlines() if not x.startswith(' "seconds":')]
    return result.exit_code, lines, result.stderr


@pytest.mark.parametrize("command", CASES)
def test_every_option_has_a_case(command):
    assert set(options_of(command)) == set(CASES[command])


ASKED = [(name, option) for name, cases in CASES.items() for option in cases]


@pytest.mark.parametrize(
    ("command", "option"),
    [
        pytest.param(*asked, marks=pytest.mark.slow) if CASES[asked[0]][asked[1]].slow else asked
        for asked in ASKED
    ],
)
def test_an_option_changes_the_answer_or_is_refused(command, option, files):
    case = CASES[command][option]
    plain = case.context or BASE[command]
    before = (0, [], "") if case.says else outcome(plain)
    there = {path.name for path in files.iterdir()}
    code, told, said = outcome(f"{plain} {case.words}")
    if case.says:
        assert code == 2 and case.says in said
        return
    written = {path.name for path in files.iterdir()} - there
    assert (code, told) != before[:2] or written, (said, before[2])


@pytest.mark.parametrize("case", NOT_HERE)
def test_an_option_that_has_nothing_to_do_is_refused(case, files):
    words, says = NOT_HERE[case]
    code, _, said = outcome(words)
    assert code == 2 and says in said
