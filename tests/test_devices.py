"""The driver of sweeps over several devices, and several processes of JAX: the bits of one."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def started(devices, *words):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    own = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": flags.strip()}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.devices_task", *words],
        cwd=ROOT,
        env={**own, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(process):
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    devices, found = out.split()[-2:]
    return int(devices), found


@pytest.fixture(scope="module")
def usual():
    return said(started(1))[1]


def test_eight_devices_give_the_bits_of_one(usual):
    assert said(started(8)) == (8, usual)


@pytest.mark.slow
def test_two_processes_of_two_devices_give_the_bits_of_one(usual):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    both = [started(2, str(i), "2", address) for i in range(2)]
    assert [said(each) for each in both] == [(4, usual), (4, usual)]
