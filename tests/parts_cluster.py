"""Clusters of Dask on loopback whose scheduler tests kill: it and workers in processes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
DASK = (sys.executable, "-m", "dask")
HERE = ("--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0")
ONE_THREAD = {"NPROC": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def free_port() -> int:
    """A port of loopback at which nobody listens."""
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def address_of(port: int) -> str:
    """The address of a scheduler."""
    return f"tcp://127.0.0.1:{port}"


def _begun(*words: str) -> subprocess.Popen[bytes]:
    """A process that says nothing, in a group of its own."""
    return subprocess.Popen(
        words,
        cwd=ROOT,
        env={**os.environ, **ONE_THREAD},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def killed(process: subprocess.Popen) -> None:
    """Kill a process and those that it began."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def _scheduler(port: int) -> Iterator[subprocess.Popen[bytes]]:
    process = _begun(*DASK, "scheduler", *HERE, "--port", str(port))
    try:
        while process.poll() is None:
            with suppress(OSError), closing(socket.create_connection(("127.0.0.1", port), 1.0)):
                break
            time.sleep(0.05)
        yield process
    finally:
        killed(process)


@contextmanager
def cluster_apart(port: int, workers: int) -> Iterator[subprocess.Popen[bytes]]:
    """A scheduler at a port and workers, in processes of their own; gives the scheduler."""
    words = ("worker", address_of(port), *HERE, "--nthreads", "1", "--no-nanny")
    with _scheduler(port) as process, ExitStack() as stack:
        for _ in range(workers):
            stack.callback(killed, _begun(*DASK, *words))
        yield process


@contextmanager
def cluster_here(port: int, workers: int) -> Iterator[subprocess.Popen[bytes]]:
    """The same, with the workers in a thread of this process, which begin at once."""
    from distributed import Worker

    there = threading.Event()

    async def work() -> None:
        some = [
            Worker(address_of(port), nthreads=1, dashboard=False, heartbeat_interval="1m")
            for _ in range(workers)
        ]
        await asyncio.gather(*some)
        there.set()
        await asyncio.gather(*(worker.finished() for worker in some))

    with _scheduler(port) as process:
        thread = threading.Thread(target=asyncio.run, args=[work()])
        thread.start()
        try:
            if not there.wait(60.0):
                raise TimeoutError("no worker found the scheduler")
            yield process
        finally:
            killed(process)
            thread.join()
