"""Workers: processes of this machine that are replaced when they die, and clusters of Dask."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from typing import Any

from dmodel.errors import InputError

MOST_WORKERS = 1024
"""Processes of one machine [count]."""

ONE_THREAD = (
    *("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
    "VECLIB_MAXIMUM_THREADS",
)
"""Variables that bound the threads of a process; XLA takes its number from the first
(`DefaultThreadPoolSize` in xla/pjrt/utils.cc)."""

TRIES = 3
"""Times that workers may die at work in a row before a block is done [count]: then it is the work
that kills them."""

STARTS = 50
"""Times that they may die in a row before they are at work [count]: then they cannot start."""

_LOCK = threading.Lock()


class Processes(Executor):
    """Processes of this machine, begun afresh, each with one thread. What a killed one was at is
    computed again by another.

    Limits: a script that uses it needs `if __name__ == "__main__":`, as with any process that is
    begun afresh.

    Args:
      workers: how many, from 1 to `MOST_WORKERS`.

    Raises:
      InputError: another number.
    """

    def __init__(self, workers: int) -> None:
        if not 1 <= workers <= MOST_WORKERS:
            raise InputError(f"workers: expected 1 to {MOST_WORKERS:,}; got {workers}")
        self._max_workers, self._closed = workers, False
        self._died = self._unborn = 0
        self._first: list[Future[None]] = []
        self._lock = threading.RLock()
        self._pool: ProcessPoolExecutor | None = None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The result of a call by a process, later."""
        outer: Future[Any] = Future()
        self._send(outer, fn, args, kwargs)
        return outer

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls."""
        with self._lock:
            self._closed = True
        if self._pool is not None:
            self._pool.shutdown(wait, cancel_futures=cancel_futures)

    def _send(self, outer: Future[Any], fn: Any, args: Any, kwargs: Any) -> None:
        with self._lock:
            try:
                inner = self._alive().submit(fn, *args, **kwargs)
            except BrokenProcessPool:  # a process died that was at nothing
                self._pool = None
                inner = self._alive().submit(fn, *args, **kwargs)
            pool = self._pool
        inner.add_done_callback(lambda found: self._came(outer, found, pool, (fn, args, kwargs)))

    def _alive(self) -> ProcessPoolExecutor:
        """The processes, begun where there are none."""
        if self._closed:
            raise RuntimeError("processes: expected no call after the shutdown")
        if self._pool is None:
            self._pool, self._first = _started(self._max_workers)
        return self._pool

    def _came(self, outer: Future[Any], inner: Future[Any], pool: Any, call: tuple) -> None:
        """Hand a result over, or call again where the process died."""
        if inner.cancelled() or outer.cancelled():
            outer.cancel()
            return
        error = inner.exception()
        if isinstance(error, BrokenProcessPool) and self._may_try_again(pool):
            try:
                self._send(outer, *call)
                return
            except RuntimeError as closed:  # it was shut down meanwhile
                error = closed
        with suppress(Exception):  # who waits may have gone
            if error is None:
                self._died = self._unborn = 0
                outer.set_result(inner.result())
            else:
                outer.set_exception(error)

    def _may_try_again(self, pool: Any) -> bool:
        """Whether the call of a dead process is made again."""
        with self._lock:
            if pool is self._pool:  # one death fails all calls of its pool
                self._pool = None
                at_work = any(f.done() and f.exception() is None for f in self._first)
                self._died, self._unborn = self._died + at_work, self._unborn + (not at_work)
            return not self._closed and self._died <= TRIES and self._unborn <= STARTS


def _nothing() -> None:
    """What a process does to begin."""


def _started(workers: int) -> tuple[ProcessPoolExecutor, list[Future[None]]]:
    """Processes that have begun, with one thread each and the folder of compiled code of this one;
    and what each does first."""
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    with _LOCK, _environment({**dict.fromkeys(ONE_THREAD, "1"), **_compiled_code()}):
        # each call begins one, as none is idle yet
        first = [pool.submit(_nothing) for _ in range(workers)]
    return pool, first


def _compiled_code() -> dict[str, str]:
    """Variables that lead to the folder of compiled code."""
    import jax

    folder = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    least = jax.config.jax_persistent_cache_min_compile_time_secs  # type: ignore[attr-defined]
    if not folder:
        return {}
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": str(least),
    }


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Variables of the environment while processes begin."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def connection(executor: Executor) -> object | None:
    """By what an executor of Dask speaks with its scheduler: another one after each loss of it,
    None while it is lost, and for all other executors."""
    client = getattr(executor, "_client", None)
    return client.scheduler_comm if client is not None and client.status == "running" else None


TIMEOUT_S = 20.0
"""How long a scheduler may take to answer [s]."""


@contextmanager
def opened(workers: int | None = None, cluster: str | None = None) -> Iterator[Executor | None]:
    """What computes blocks; None for threads of this process.

    Args:
      workers: processes of this machine. cluster: address of a scheduler of Dask, such as
        tcp://127.0.0.1:8786.

    Raises:
      InputError: both are given, a number that is none, Dask is not installed, or no scheduler
        answers.
    """
    if workers is not None and cluster is not None:
        raise InputError("workers of this machine or a cluster: expected one of the two, got both")
    if cluster is not None:
        with _client(cluster) as client:
            yield client.get_executor(pure=False, retries=TRIES)
    elif workers is not None:
        pool = Processes(workers)
        try:
            yield pool
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    else:
        yield None


@contextmanager
def _client(address: str) -> Iterator[Any]:
    try:
        from distributed import Client
    except ImportError as error:
        raise InputError(
            "a cluster needs Dask, which is not installed: pip install 'dmodel-jax[cluster]'"
        ) from error
    try:
        client = Client(address, timeout=TIMEOUT_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"cluster {address}: no scheduler answers ({error}); start one (`dask scheduler --host "
            "127.0.0.1`) and give its address, such as tcp://127.0.0.1:8786"
        ) from error
    with _silent(), client:
        if not client.nthreads():
            raise InputError(
                f"cluster {address}: it has no workers; start some (`dask worker {address}`)"
            )
        yield client


TELLING = ("distributed", "distributed.client", "tornado.application")
"""Loggers by which Dask tells, with tracebacks, of a scheduler that is gone."""


@contextmanager
def _silent() -> Iterator[None]:
    """Keep Dask from telling what who waits for its answers tells in a line."""
    before = {name: logging.getLogger(name).level for name in TELLING}
    for name in TELLING:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
