"""Many small tasks on several processes: the results in the order of the tasks, whoever does them.

A worker starts afresh (spawn), builds once what all its tasks share, and then takes task after task. If a worker dies,
the tasks that are not done run again, each alone in a process of its own and at most twice; what dies both times is
reported by a value of the caller's choice, so that one bad task does not take the others with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any, TypeVar

from simulator.processes import working

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")

Make = Callable[[], Callable[[Any], Any]]
"""Builds what all tasks share and returns what does one task; it is sent to the workers."""

_TRIES = 2
_make: Make
_do: Callable[[Any], Any] | None = None


def spread(
    make: Callable[[], Callable[[Task], Outcome]],
    tasks: Sequence[Task],
    workers: int,
    lost: Callable[[Task], Outcome],
    tell: Callable[[int], None],
) -> list[Outcome]:
    """Do all tasks.

    Parameters
    ----------
    make
        Builds what does one task.
    tasks
        The tasks; they and their outcomes are sent between processes.
    workers
        How many processes; 1 does everything in this one.
    lost
        The outcome of a task whose process dies, at its second try.
    tell
        Called with the number of tasks that are done.

    Returns
    -------
    list
        The outcomes, in the order of the tasks.
    """
    if workers <= 1 or len(tasks) < 2:
        do, found = make(), []
        for task in tasks:
            found.append(do(task))
            tell(len(found))
        return found
    done: dict[int, Outcome] = {}
    _in_pool(make, tasks, min(workers, len(tasks)), done, tell)
    for number in range(len(tasks)):
        for _ in range(_TRIES):
            if number not in done:
                _in_pool(make, tasks, 1, done, tell, (number,))
        if number not in done:
            done[number] = lost(tasks[number])
            tell(len(done))
    return [done[number] for number in range(len(tasks))]


def _in_pool(
    make: Make,
    tasks: Sequence[Any],
    workers: int,
    done: dict[int, Any],
    tell: Callable[[int], None],
    numbers: Sequence[int] | None = None,
) -> None:
    """Do tasks until all are done or a worker dies."""
    chosen = range(len(tasks)) if numbers is None else numbers
    try:
        with working(workers, _one, [tasks[number] for number in chosen], partial(_begin, make)) as futures:
            number_of = dict(zip(futures, chosen, strict=True))
            for future in as_completed(futures):
                done[number_of[future]] = future.result()
                tell(len(done))
    except BrokenProcessPool:
        pass


def _begin(make: Make) -> None:
    """Note what builds what all tasks share."""
    global _make  # noqa: PLW0603 - a worker has one job
    _make = make


def _one(task: Any) -> Any:
    """Do a task; build what all share with the first, so that an error there is an error of that task."""
    global _do  # noqa: PLW0603
    if _do is None:
        _do = _make()
    return _do(task)
