"""Calls in forks of a process; the forks are of a fresh one, since pytest may have threads."""

import os
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import tasks

from simulator.processes import forked, spawned

_BEGIN = """
import os, sys, time
from functools import partial
from pathlib import Path
os.cpu_count = lambda: 2
from simulator.processes import forked
def fail(path):
    raise LookupError("no such thing", path)
"""


def _script(text, folder):
    command = [sys.executable, "-c", _BEGIN + text, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_a_call_raises_comes_back_with_where_it_was_and_ends_the_others(tmp_path):
    out = _script(
        """
import multiprocessing
try:
    list(forked([lambda tell: fail(7), lambda tell: time.sleep(1000)], print))
except LookupError as error:
    print(error.args, "in fail" in "".join(error.__notes__), multiprocessing.active_children())
""",
        tmp_path,
    )
    assert out == "('no such thing', 7) True []\n"


def test_a_process_that_dies_is_an_error(tmp_path):
    out = _script(
        """
from concurrent.futures.process import BrokenProcessPool
try:
    list(forked([lambda tell: os._exit(9), lambda tell: time.sleep(1000)], print))
except BrokenProcessPool as error:
    print(error)
""",
        tmp_path,
    )
    assert out == "a process ended before it had told how its call went\n"


def test_who_closes_the_outcomes_ends_the_processes(tmp_path):
    before = time.monotonic()
    _script(
        """
import multiprocessing
outcomes = forked([lambda tell: None, lambda tell: time.sleep(1000)], print)
assert next(outcomes) == (0, None)
outcomes.close()
assert not multiprocessing.active_children()
""",
        tmp_path,
    )
    assert time.monotonic() - before < 60


@pytest.mark.parametrize("fails", [False, True])
def test_beside_other_threads_calls_run_here(fails):
    here, held = threading.get_ident(), threading.Event()
    other = threading.Thread(target=held.wait)
    other.start()
    calls = [lambda tell: 1 // 0] if fails else [lambda tell: threading.get_ident()] * 2
    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        assert list(forked(calls, print)) == [(0, here), (1, here)]
    held.set()
    other.join()


_FORKED = """
refused = []
def fork():
    refused.append(1)
    raise BlockingIOError(11, "Resource temporarily unavailable")
os.fork = fork
"""


_CALLS = """
told = []
def call(number, tell):
    tell("call", number)
    time.sleep(0.1 * (number in (0, 1)))
    return os.getpid(), [number] * 3
outcomes = list(forked([partial(call, number) for number in range(COUNT)], lambda *how_far: told.append(how_far)))
assert sorted(number for number, _ in outcomes) == list(range(COUNT))
assert all(more == [number] * 3 for number, (_, more) in outcomes)
assert sorted(told) == [("call", number) for number in range(COUNT)]
pids = {pid for _, (pid, _) in outcomes}
assert (len(pids) == 2 and os.getpid() not in pids) if FORKS else pids == {os.getpid()}
"""


@pytest.mark.parametrize(("count", "refuse"), [(5, False), (5, True), (1, False)])
def test_calls_run_once_each_in_as_many_forks_as_there_are_cores(count, refuse, tmp_path):
    forks = count > 1 and not refuse
    _script(f"COUNT, FORKS = {count}, {forks}\n" + _FORKED * refuse + _CALLS, tmp_path)


def test_where_no_process_can_be_started_tasks_are_done_here(monkeypatch):
    def refused(process):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(BaseProcess, "start", refused)
    found = list(spawned(tasks.whereabouts, list(enumerate("abc")), 2))
    assert found == [(number, os.getpid()) for number in range(3)]


_WORKER = f"""
import threading
sys.path.insert(0, {str(Path(tasks.__file__).parent)!r})
import tasks
from simulator.processes import spawned
ended, sys.modules["only_here"] = threading.Event(), tasks
for _ in range(THREADS):
    threading.Thread(target=ended.wait).start()
((_, has_it),) = spawned(tasks.has_module, [(0, "only_here")], 1)
ended.set()
assert has_it == (THREADS == 0)
"""


@pytest.mark.parametrize("threads", [0, 1])
def test_workers_import_nothing_again_unless_another_thread_makes_forks_unsafe(threads, tmp_path):
    _script(f"THREADS = {threads}\n" + _WORKER, tmp_path)


def test_a_task_whose_process_dies_is_done_once_more(tmp_path):
    assert sorted(spawned(tasks.Once(tmp_path / "died"), list(enumerate(range(6))), 2)) == [
        (n, n * n) for n in range(6)
    ]
    assert sorted(spawned(tasks.fragile, list(enumerate(range(6))), 2)) == [(n, n * n) for n in range(6) if n != 3]


def test_where_every_process_dies_nothing_is_done_again(tmp_path, monkeypatch):
    """A script that has no guard starts itself over and over: its tasks end with the processes that begin them."""
    started, start = [], BaseProcess.start
    monkeypatch.setattr(BaseProcess, "start", lambda process: [started.append(process), start(process)])
    assert list(spawned(tasks.fragile, [(0, 3), (1, 3), (2, 3)], 2)) == []
    assert len(started) == 3


def _semaphores():
    return {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/sem." in line}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="finds semaphores in /proc")
def test_workers_need_no_semaphore_and_end_when_no_more_is_asked():
    before = _semaphores()
    outcomes = spawned(tasks.whereabouts, list(enumerate("abcdef")), 2)
    _, pid = next(outcomes)
    assert pid != os.getpid()
    assert _semaphores() == before
    outcomes.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


_LEFT = {
    "a call": """
calls = [lambda tell: tasks.endless()(0), lambda tell: time.sleep(1000)]
list(forked(calls, print))
""",
    "a worker": "from simulator.processes import spawned; next(spawned(tasks.endless, [(0, 'x')], 1))",
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
