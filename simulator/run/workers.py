"""Many small tasks on several processes: the results in the order of the tasks, whoever does them.

A worker starts afresh (spawn), builds once what all its tasks share, and then takes task after task. A task
whose worker dies runs again when all others are done, alone and at most twice; what dies each time is reported by a
value of the caller's choice, so that one bad task does not take the others with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TypeVar

from simulator.processes import worked

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")

_AGAIN = 2


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
        The outcome of a task whose process dies at each try.
    tell
        Called with the number of tasks that are done.

    Returns
    -------
    list
        The outcomes, in the order of the tasks.
    """
    done: dict[int, Outcome] = {}
    is_small = workers <= 1 or len(tasks) < 2
    for processes in (0,) if is_small else (workers, *[1] * _AGAIN):
        left = [(number, task) for number, task in enumerate(tasks) if number not in done]
        with closing(worked(make, left, processes)) as outcomes:
            for number, outcome in outcomes:
                done[number] = outcome
                tell(len(done))
    for number, task in enumerate(tasks):
        if number not in done:
            done[number] = lost(task)
            tell(len(done))
    return [done[number] for number in range(len(tasks))]
