"""Launch scripts: they call the command with options that it has, and pass on what they are
given."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dmodel.cli import app

LAUNCH = Path(__file__).parents[1] / "calibration" / "launch"
SCRIPTS = sorted(p.name for p in LAUNCH.iterdir() if p.suffix in (".sh", ".sbatch"))


def called(tmp_path, script, *words, **environ):
    """What a script calls, one call a line, words between bars; srun hands on to the command as it
    does on a cluster."""
    for name in ("dmodel", "gcloud"):
        (tmp_path / name).write_text(
            f'#!/bin/bash\n(IFS="|"; echo "{name}|$*" >> "{tmp_path}/calls")\n'
        )
    (tmp_path / "srun").write_text(
        '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n'
    )
    for name in ("dmodel", "gcloud", "srun"):
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    bare = {
        k: v
        for k, v in os.environ.items()
        if k not in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "PROJECT", "ZONE")
    }
    command = ["bash", str(LAUNCH / script), *words]
    done = subprocess.run(
        command, cwd=tmp_path, env=bare | {"PATH": path} | environ, capture_output=True, text=True
    )
    calls = (tmp_path / "calls").read_text().splitlines() if (tmp_path / "calls").exists() else []
    return done, calls


def test_there_is_a_script_for_every_launcher():
    assert (
        SCRIPTS == ["slurm.sbatch", "torchrun.sh", "tpu_vm.sh"] and (LAUNCH / "gke.yaml").is_file()
    )


@pytest.mark.parametrize("script", SCRIPTS)
def test_without_a_folder_they_say_how_to_use_them(tmp_path, script):
    done, calls = called(tmp_path, script)
    assert done.returncode != 0 and "usage" in done.stderr and not calls


def test_slurm_hands_on_the_options(tmp_path):
    done, calls = called(tmp_path, "slurm.sbatch", "out folder", "--budget-minutes", "5")
    assert done.returncode == 0, done.stderr
    assert calls == ["dmodel|collect|--launcher|slurm|--out|out folder|--json|--budget-minutes|5"]


def test_torchrun_needs_its_variables(tmp_path):
    done, calls = called(tmp_path, "torchrun.sh", "out")
    assert done.returncode != 0 and "MASTER_ADDR" in done.stderr and not calls
    job = {"MASTER_ADDR": "n0", "MASTER_PORT": "29500", "WORLD_SIZE": "2", "RANK": "1"}
    done, calls = called(tmp_path, "torchrun.sh", "out", "--what", "matmul", **job)
    assert calls == ["dmodel|collect|--launcher|torchrun|--out|out|--json|--what|matmul"]


def test_a_tpu_slice_runs_everywhere_and_gathers_the_records(tmp_path):
    done, calls = called(
        tmp_path,
        "tpu_vm.sh",
        "slice",
        "/data/my runs",
        "--what",
        "matmul,steps",
        PROJECT="p",
        ZONE="z",
    )
    assert done.returncode == 0, done.stderr
    remote, copy = calls
    assert (
        r"--command=dmodel collect --launcher tpu --out /data/my\ runs --json --what matmul\,steps"
        in remote
    )
    assert "--worker=all" in remote and "slice:/data/my runs/*.jsonl|my runs/" in copy


def test_the_options_exist():
    known = CliRunner().invoke(app, ["collect", "--help"], env={"COLUMNS": "200"}).stdout
    lines = [
        line
        for p in LAUNCH.iterdir()
        for line in re.findall(r"dmodel[\"', ]+collect.*", p.read_text())
    ]
    used = {option for line in lines for option in re.findall(r"--[a-z-]+", line)}
    assert {"--launcher", "--out", "--json"} <= used
    assert all(option in known for option in used), used
