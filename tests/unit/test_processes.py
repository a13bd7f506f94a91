"""Calls in forks of a process; the forks are of a fresh one, since pytest may have threads."""

import os
import subprocess
import sys
import threading
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import tasks

from simulator.processes import aside, worked

_BEGIN = """
import os, sys, time
from functools import partial
from pathlib import Path
os.cpu_count = lambda: 2
from simulator.processes import aside
def write(path):
    path.write_text(str(os.getpid()))
def fail(path):
    raise LookupError("no such thing", path)
"""


def _script(text, folder):
    command = [sys.executable, "-c", _BEGIN + text, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_calls_run_in_processes_of_their_own(tmp_path):
    _script(
        """
with aside() as calls:
    for number in range(5):
        calls.call(partial(write, Path(sys.argv[1]) / str(number)))
(Path(sys.argv[1]) / "main").write_text(str(os.getpid()))
""",
        tmp_path,
    )
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert sorted(written) == ["0", "1", "2", "3", "4", "main"]
    assert len(set(written.values())) == 6


def test_what_a_call_raises_comes_back_with_where_it_was(tmp_path):
    out = _script(
        """
try:
    with aside() as calls:
        calls.call(partial(fail, 7))
except LookupError as error:
    print(error.args, "in fail" in "".join(error.__notes__))
""",
        tmp_path,
    )
    assert out == "('no such thing', 7) True\n"


def test_a_process_that_dies_is_an_error(tmp_path):
    out = _script(
        """
from concurrent.futures.process import BrokenProcessPool
try:
    with aside() as calls:
        calls.call(partial(os._exit, 9))
except BrokenProcessPool as error:
    print(error)
""",
        tmp_path,
    )
    assert out == "a process ended before it had told how its call went\n"


def test_what_ends_the_block_ends_its_processes(tmp_path):
    before = time.monotonic()
    _script(
        """
import multiprocessing
try:
    with aside() as calls:
        calls.call(partial(time.sleep, 1000))
        raise KeyboardInterrupt
except KeyboardInterrupt:
    assert not multiprocessing.active_children()
""",
        tmp_path,
    )
    assert time.monotonic() - before < 60


def test_beside_other_threads_calls_run_at_the_end_and_here():
    here, done = threading.get_ident(), []
    held = threading.Event()
    other = threading.Thread(target=held.wait)
    other.start()
    with aside() as calls:
        calls.call(lambda: done.append(threading.get_ident()))
        assert done == []
    held.set()
    other.join()
    assert done == [here]


def test_what_waits_runs_once_however_often_all_is_finished():
    done, held = [], threading.Event()
    other = threading.Thread(target=held.wait)
    other.start()
    with aside() as calls:
        calls.call(lambda: done.append("first"))
        calls.call(lambda: done.append("second"))
        calls.finish()
        assert done == ["first", "second"]
        calls.finish()
    held.set()
    other.join()
    assert done == ["first", "second"]


_FORKED = """
refused = []
def fork():
    refused.append(1)
    raise BlockingIOError(11, "Resource temporarily unavailable")
os.fork = fork
"""


def test_where_nothing_can_be_forked_calls_run_here(tmp_path):
    _script(
        _FORKED
        + """
with aside() as calls:
    for number in range(3):
        calls.call(partial(write, Path(sys.argv[1]) / str(number)))
assert refused
(Path(sys.argv[1]) / "main").write_text(str(os.getpid()))
""",
        tmp_path,
    )
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert sorted(written) == ["0", "1", "2", "main"]
    assert len(set(written.values())) == 1


_TAKER = """
from simulator.processes import beside
class Sum:
    def __init__(self):
        self.found = []
    def take(self, value):
        self.found.append(value)
    def finish(self, value):
        return sum(self.found) + value, os.getpid()
with beside(Sum()) as taker:
    for number in range(100):
        taker.take(number)
    total, pid = taker.finish(1000)
assert total == 5950
assert (pid == os.getpid()) == HERE
"""


@pytest.mark.parametrize("refuse", [False, True])
def test_what_is_taken_beside_is_the_same_where_nothing_can_be_forked(refuse, tmp_path):
    _script(f"HERE = {refuse}\n" + _FORKED * refuse + _TAKER, tmp_path)


_CALLS = """
from simulator.processes import forked
class Held:
    pass
held, told = Held(), []
def call(number, tell):
    tell("call", number)
    time.sleep(0.3 * (number == 0))
    return number, os.getpid(), held, [number] * 3
found = list(forked([partial(call, number) for number in range(COUNT)], lambda *how_far: told.append(how_far), [held]))
assert [number for number, *_ in found] == list(range(COUNT))
assert all(one is held and more == [number] * 3 for number, _, one, more in found)
assert sorted(told) == [("call", number) for number in range(COUNT)]
pids = {pid for _, pid, *_ in found}
assert (len(pids) == COUNT and os.getpid() not in pids) if FORKS else pids == {os.getpid()}
"""


@pytest.mark.parametrize(("count", "refuse"), [(5, False), (5, True), (1, False)])
def test_what_comes_of_forked_calls_is_in_order_and_refers_to_what_is_shared(count, refuse, tmp_path):
    forks = count > 1 and not refuse
    _script(f"COUNT, FORKS = {count}, {forks}\n" + _FORKED * refuse + _CALLS, tmp_path)


def test_a_forked_call_that_fails_ends_the_others(tmp_path):
    out = _script(
        """
import multiprocessing
from simulator.processes import forked
try:
    list(forked([lambda tell: fail(7), lambda tell: time.sleep(1000)], print))
except LookupError as error:
    print(error.args, multiprocessing.active_children())
""",
        tmp_path,
    )
    assert out == "('no such thing', 7) []\n"


def test_where_no_process_can_be_started_tasks_are_done_here(monkeypatch):
    def refused(process):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("multiprocessing.context.SpawnProcess.start", refused)
    found = list(worked(tasks.whereabouts, list(enumerate("abc")), 2))
    assert found == [(number, os.getpid()) for number in range(3)]


def test_a_task_whose_process_dies_is_done_once_more(tmp_path):
    assert sorted(worked(tasks.Once(tmp_path / "died"), list(enumerate(range(6))), 2)) == [(n, n * n) for n in range(6)]
    assert sorted(worked(tasks.fragile, list(enumerate(range(6))), 2)) == [(n, n * n) for n in range(6) if n != 3]


def test_where_every_process_dies_nothing_is_done_again(tmp_path, monkeypatch):
    """A script that has no guard starts itself over and over: its tasks end with the processes that begin them."""
    started, start = [], BaseProcess.start
    monkeypatch.setattr(BaseProcess, "start", lambda process: [started.append(process), start(process)])
    assert list(worked(tasks.fragile, [(0, 3), (1, 3), (2, 3)], 2)) == []
    assert len(started) == 3


def _semaphores():
    return {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/sem." in line}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="finds semaphores in /proc")
def test_workers_need_no_semaphore_and_end_when_no_more_is_asked():
    before = _semaphores()
    outcomes = worked(tasks.whereabouts, list(enumerate("abcdef")), 2)
    _, pid = next(outcomes)
    assert pid != os.getpid()
    assert _semaphores() == before
    outcomes.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


_LEFT = {
    "a call": """
with aside() as calls:
    calls.call(partial(tasks.endless(), 0))
    time.sleep(1000)
""",
    "a taker": """
from simulator.processes import beside
class Taker:
    take = staticmethod(tasks.endless())
with beside(Taker()) as taker:
    taker.take(1)
    time.sleep(1000)
""",
    "a worker": "from simulator.processes import worked; next(worked(tasks.endless, [(0, 'x')], 1))",
}


@pytest.mark.parametrize("what", _LEFT)
def test_nothing_is_left_of_who_is_killed(what):
    """It holds standard output, and says there that it runs; without it there is an end."""
    path = f"sys.path.insert(0, {str(Path(tasks.__file__).parent)!r})"
    text = "\n".join((_BEGIN, path, "import tasks", _LEFT[what]))
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
    assert process.stdout.read(1) == b"x"
    process.kill()
    assert process.communicate(timeout=60) == (b"", None)


def test_a_call_here_that_fails_fails_the_block():
    held = threading.Event()
    other = threading.Thread(target=held.wait)
    other.start()
    with pytest.raises(ZeroDivisionError), aside() as calls:
        calls.call(lambda: 1 // 0)
    held.set()
    other.join()
