"""Calls in forks of a process; the forks are of a fresh one, since pytest may have threads."""

import subprocess
import sys
import threading
import time

import pytest

from simulator.processes import aside

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


def test_a_call_here_that_fails_fails_the_block():
    held = threading.Event()
    other = threading.Thread(target=held.wait)
    other.start()
    with pytest.raises(ZeroDivisionError), aside() as calls:
        calls.call(lambda: 1 // 0)
    held.set()
    other.join()
