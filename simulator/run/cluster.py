"""Runs the tasks of a sweep on a Dask cluster, instead of in processes on this machine."""

from __future__ import annotations

import logging
import pickle
import platform
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack
from importlib.metadata import version
from threading import Lock
from typing import Any

import simulator
from simulator import engine
from simulator.errors import ConfigError, import_extra, insist
from simulator.processes import Make
from simulator.run.kept import code_key

_WAIT_S = 10
"""Time to wait for a scheduler to answer [s]: a running one answers within a second."""
_lock = Lock()
_made: dict[bytes, Callable[[Any], Any]] = {}


def clustered(
    address: str, make: Make, tasks: Sequence[tuple[int, Any]], _: int
) -> Generator[tuple[int, Any], None, None]:
    """Run tasks on a Dask cluster, like `simulator.processes.spawned`.

    A worker builds what all tasks share once, and runs one task at a time. If a worker dies, another one takes over its
    tasks.

    Parameters
    ----------
    address
        Address of the scheduler, such as ``tcp://127.0.0.1:8786``.
    make, tasks
        As there.

    Yields
    ------
    tuple
        As there.

    Raises
    ------
    ConfigError
        If Dask is not installed, no scheduler with workers answers at the address until the end, or a worker runs
        another hosim or Python.
    """
    where = f"--cluster {address}"
    rule, do = "a cluster is reached by Dask", "pip install 'hosim[dask]'"
    distributed, comm = import_extra(where, rule, do, "distributed", "distributed.comm")
    try:
        comm.resolve_address(address)  # else a client would stay open, and warn at exit
        client = distributed.Client(address, timeout=_WAIT_S, set_as_default=False)
    except (OSError, ValueError) as error:  # a TimeoutError is an OSError
        do = "start `dask scheduler` and `dask worker`, and name its address"
        raise ConfigError(where, "a Dask scheduler answers there", str(error) or "none in time", do) from None
    log = logging.getLogger("distributed.client")
    with ExitStack() as after, client:
        after.callback(log.setLevel, log.level)
        log.setLevel(logging.CRITICAL)  # it logs as tracebacks what the errors below say
        _check(client, where)
        shared = client.submit(bytes, pickle.dumps(make), pure=False)  # recomputed if its worker dies
        given = ([each] * len(tasks) for each in (shared, engine.chosen()))
        futures = client.map(_done, *given, [task for _, task in tasks], pure=False)
        indices = {future.key: index for future, (index, _) in zip(futures, tasks, strict=True)}
        ended = distributed.as_completed(futures, loop=client.loop)
        del futures  # so that a task's rows are freed once they are yielded
        for future in ended:
            if future.status == "error" and isinstance(future.exception(), distributed.KilledWorker):
                continue  # the caller reports what is missing
            try:
                rows = future.result()
            except (CancelledError, comm.CommClosedError):
                do = "start it and sweep again: kept rows are not measured again"
                raise ConfigError(where, "a Dask scheduler answers to the end", "that it went away", do) from None
            yield indices[future.key], rows


def _versions() -> dict[str, str]:
    """Return the versions that must match on both ends for equal rows."""
    versions = {"hosim": f"{simulator.__version__} of {code_key()[:12]}", "Python": platform.python_version()}
    return versions | {name: version(name) for name in ("distributed", "numpy")}


def _check(client: Any, where: str) -> None:
    """Refuse a cluster in which some worker has other code."""
    rule, do = "workers run the same hosim and Python", "install the same on all of them"
    try:
        client.wait_for_workers(1, timeout=_WAIT_S)
    except TimeoutError:
        raise ConfigError(where, "a cluster has workers", "none in time", "start `dask worker`") from None
    try:
        by_worker = client.run(_versions)
    except Exception as error:  # raised by another hosim, or by its absence
        raise ConfigError(where, rule, str(error), do) from None
    expected = _versions()
    for worker, versions in by_worker.items():
        for name, other in versions.items():
            insist(other == expected[name], where, rule, f"{name} {other} at {worker}, and {expected[name]} here", do)


def _done(shared: bytes, engine_name: str, task: Any) -> Any:
    """Run a task on a worker, one at a time, by the engine of the one who asks."""
    with _lock, engine.using(engine_name):
        if shared not in _made:
            _made.clear()
            _made[shared] = pickle.loads(shared)()
        return _made[shared](task)
