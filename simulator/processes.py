"""Processes that end with the one that started them: an interrupt is the parent's alone, which then ends them.

A terminal sends Ctrl-C to all processes of a command, also to one that is about to start and knows no better than to
print where it was. So it waits until all have been started; those inherit that it waits, and then ignore it.
"""

from __future__ import annotations

import gc
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from multiprocessing import active_children, get_all_start_methods, get_context
from multiprocessing.connection import Connection
from threading import active_count, current_thread, main_thread
from typing import Any, Generic, Protocol, TypeVar

Outcome = TypeVar("Outcome")
Told_co = TypeVar("Told_co", covariant=True)
Call = Callable[[], None]

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)

_MOST_WAITING = 64
"""So many things may wait to be sent to another process: of a run, a third of a megabyte each."""


@contextmanager
def working(
    workers: int,
    do: Callable[[Any], Outcome],
    tasks: Sequence[Any],
    begin: Callable[[], None] = lambda: None,
) -> Iterator[list[Future[Outcome]]]:
    """Start processes afresh on tasks; whatever ends the block ends them, too.

    Parameters
    ----------
    workers
        How many.
    do, tasks
        What is done for each task; it is sent to the processes.
    begin
        What each process does first.

    Yields
    ------
    list of Future
        The outcomes that are to come, in the order of the tasks.
    """
    with _interrupts_wait():  # it makes semaphores, and notes a little later that they must go
        pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin, (begin,))
    try:
        with _ended_on_error():
            with _interrupts_wait():
                futures = [pool.submit(do, task) for task in tasks]
            yield futures
    finally:
        pool.shutdown(cancel_futures=True)


class Aside:
    """Calls that run in forks of this process, with all that it has, while it goes on.

    At most as many run as there are cores. Where a process cannot be forked safely, as while it has other threads, a
    call waits; what waits to the end runs in this process if need be.
    """

    def __init__(self) -> None:
        self._waiting: list[Call] = []
        self._running: list[Connection] = []
        self._most = os.cpu_count() or 1

    def call(self, do: Call) -> None:
        """Run a call aside, now or later.

        Parameters
        ----------
        do
            What it leaves is in files; of what it raises all that can be pickled comes back, now or later.
        """
        self._waiting.append(do)
        while self._waiting and _can_fork():
            if len(self._running) == self._most:
                _ended(self._running.pop(0))
            self._running.append(_forked(self._waiting.pop(0)))

    def finish(self) -> None:
        """Return when all calls have ended."""
        waiting, self._waiting = self._waiting, []
        for do in waiting:
            self.call(do)
        for do in self._waiting:
            do()
        while self._running:
            _ended(self._running.pop(0))


@contextmanager
def aside() -> Iterator[Aside]:
    """Give what runs calls in forks; whatever ends the block before its end ends them, too."""
    with _ended_on_error():
        calls = Aside()
        yield calls
        calls.finish()


class Taker(Protocol[Told_co]):
    """Takes one thing after another, and says at the end what came of it."""

    def take(self, value: Any) -> None:
        """Take what comes next."""

    def finish(self, value: Any) -> Told_co:
        """Take the last thing, and say what came of all."""


@contextmanager
def beside(taker: Taker[Outcome]) -> Iterator[Taker[Outcome]]:
    """Let a taker take in a fork of this process what is given to it here, while this process goes on.

    What it raises is raised when it is finished. Where a process cannot be forked safely it takes in this one.

    Parameters
    ----------
    taker
        What takes; all that is given to it, and what comes of it, can be pickled.

    Yields
    ------
    Taker
        What to give it to.
    """
    if not _can_fork():
        yield taker
        return
    with _ended_on_error():
        context = get_context("fork")
        here, there = context.Pipe()
        with _interrupts_wait():
            context.Process(target=_take, args=(taker, here, there)).start()
        there.close()
        with here, closing(_Given[Outcome](here)) as given:
            yield given


class _Given(Generic[Outcome]):
    """A taker in another process; a thread sends it what it is given, as it may take a while to take that."""

    def __init__(self, there: Connection) -> None:
        self._there, self._sender = there, ThreadPoolExecutor(1)
        self._sent: deque[Future[None]] = deque()

    def close(self) -> None:
        """Send no more; the thread ends once what it is sending has come, or nobody is left to take it."""
        self._sender.shutdown(wait=False, cancel_futures=True)

    def take(self, value: Any) -> None:
        self._send(False, value)

    def finish(self, value: Any) -> Outcome:
        self._send(True, value)
        self._wait_for(0)
        self._sender.shutdown()
        outcome: Outcome
        outcome, error = _told(self._there)
        if error is not None:
            raise error
        return outcome

    def _send(self, is_last: bool, value: Any) -> None:
        self._wait_for(_MOST_WAITING - 1)
        self._sent.append(self._sender.submit(self._there.send, (is_last, value)))

    def _wait_for(self, most: int) -> None:
        """Wait until at most so many things are still to be sent."""
        try:
            while len(self._sent) > most:
                self._sent.popleft().result()
        except ConnectionError:
            raise _ended_early() from None


def _take(taker: Taker[Any], here: Connection, there: Connection) -> None:
    """In a fork: take what comes, and tell what came of it; behind an error the rest is let pass."""
    here.close()
    gc.freeze()
    _begin(lambda: None)
    outcome = error = None
    is_last = False
    while not is_last:
        try:
            is_last, value = there.recv()
        except EOFError:
            break
        try:
            if is_last and error is None:
                outcome = taker.finish(value)
            elif error is None:
                taker.take(value)
        except Exception as raised:
            error = raised
            error.add_note(traceback.format_exc())
        if is_last:
            there.send((outcome, error))


def _can_fork() -> bool:
    return (os.cpu_count() or 1) > 1 and "fork" in get_all_start_methods() and active_count() == 1


def _forked(do: Call) -> Connection:
    """Start a call; what it raises will come through the connection, or else None."""
    context = get_context("fork")
    here, there = context.Pipe(duplex=False)
    with _interrupts_wait():
        context.Process(target=_tell, args=(do, there)).start()
    there.close()
    return here


def _tell(do: Call, there: Connection) -> None:
    """In a fork: do it, without going through all that was inherited in search of garbage, and tell how it ended."""
    gc.freeze()
    error = None
    try:
        _begin(do)
    except Exception as raised:
        error = raised
        error.add_note(traceback.format_exc())
    there.send(error)


def _ended(running: Connection) -> None:
    """Wait for a call, and raise what it raised."""
    with running:
        error = _told(running)
    if error is not None:
        raise error


def _told(running: Connection) -> Any:
    try:
        return running.recv()
    except (EOFError, ConnectionError):
        raise _ended_early() from None


def _ended_early() -> BrokenProcessPool:
    return BrokenProcessPool("a process ended before it had told how its call went")


@contextmanager
def _ended_on_error() -> Iterator[None]:
    """End all processes that were started within the block if it fails."""
    others = set(active_children())
    try:
        yield
    except BaseException:
        started = set(active_children()) - others
        for process in started:
            process.kill()
        for process in started:
            process.join()
        raise


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Let interrupts wait; what is started meanwhile inherits that."""
    came: list[int] = []
    is_main = current_thread() is main_thread()
    handlers = {number: signal.getsignal(number) for number in _INTERRUPTS} if is_main else {}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    for number in handlers:  # another thread may take the signal; its handler runs in this one all the same
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if came:
            signal.raise_signal(came[0])


def _begin(begin: Callable[[], None]) -> None:
    """Leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTS)
    begin()
