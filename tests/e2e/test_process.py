"""The command as a process: Ctrl-C, closed pipes, hash seeds, and terminals."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from apart import without_progress
from serving_cases import BOX, DRAWN, write

HOSIM = [sys.executable, "-m", "simulator"]


@pytest.fixture(scope="module", autouse=True)
def commands_plan_quickly():
    """They plan as other processes do."""


@pytest.fixture(scope="module", autouse=True)
def runs_end_with_their_rows():
    """They search what others search, too."""


def _run(*arguments, **more):
    command = [*HOSIM, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **more)
    done.stderr = without_progress(done.stderr)
    return done


def _tree(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("more", [["--no-what-if"], pytest.param([], marks=pytest.mark.slow)])
def test_same_input_gives_the_same_bytes_under_any_hash_seed(hosim, scenario, tmp_path, more):
    """In this process, which has a seed of its own, and in another one; digests of cases hold it of all policies."""
    if not more:
        text = scenario.read_text().replace("- static", "- static\n  - lookahead\n  - offload_saved")
        scenario.write_text(text)
    here, there = tmp_path / "here" / "chain", tmp_path / "there" / "chain"
    own = hosim("run", scenario, "--out", here, *more)
    seed = "4711" if os.environ.get("PYTHONHASHSEED") == "0" else "0"
    done = _run("run", scenario, "--out", there, *more, env={**os.environ, "PYTHONHASHSEED": seed})
    assert (own.code, done.returncode, own.err, done.stderr) == (0, 0, "", "")
    assert own.out.replace(str(here), "OUT") == done.stdout.replace(str(there), "OUT")
    trees = _tree(here), _tree(there)
    assert trees[0].keys() == trees[1].keys()
    for name in trees[0]:
        assert trees[0][name] == trees[1][name], name


def test_a_shell_completes_commands():
    asked = {"_HOSIM_COMPLETE": "bash_complete", "COMP_WORDS": "hosim ru", "COMP_CWORD": "1"}
    done = _run(env={**os.environ, **asked})
    assert (done.returncode, done.stdout, done.stderr) == (0, "plain,run\n", "")


@pytest.mark.parametrize("sent", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_ctrl_c_while_writing_leaves_nothing(sent, tmp_path):
    out = tmp_path / "out"
    command = [*HOSIM, "run", "tiny_train_910c", "--policy", "reactive", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not any(tmp_path.iterdir()):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(sent)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT), stderr  # a shell reports both as 130
    assert stderr.strip() == "hosim: stopped; nothing was written"
    assert stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_ctrl_c_while_requests_are_served_is_one_line(tmp_path):
    """In the midst of the first row."""
    endless = DRAWN.replace("count: 12", "count: 1").replace("mean: 4, spread: 0.5", "mean: 1000000")
    box = BOX.replace("hbm: {capacity: 4 MB", "hbm: {capacity: 1 GB")
    path = write(tmp_path, requests=endless, kv_tiers="hbm: 520 MB", box=box)
    code = f"""
import sys
from simulator import __main__
from simulator.report import tables
tables.SELDOM_S = 0
sys.argv = ["hosim", "serve", {str(path)!r}, "--out", {str(tmp_path / "out")!r}]
__main__.main()
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert re.fullmatch(r"hosim: after \d+ s: static at iteration [\d,]+, 0 of 1\n", process.stderr.readline())
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout, stderr) == (130, "", "hosim: stopped; nothing was written\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("module", ["click", "numpy"])
def test_ctrl_c_while_modules_are_imported_is_one_line(module):
    """The signal arrives exactly when that module is looked for: click at once, numpy once the command runs."""
    code = f"""
import os, runpy, signal, sys
class Sender:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Sender())
sys.argv = ["hosim", "run", "tiny_train_910c"]
runpy.run_module("simulator", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "hosim: stopped; nothing was written\n")


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        (["run", "none.yaml"], signal.SIGTERM),
        (["stop"], signal.SIGINT),
        pytest.param(["run", "--nonsense"], signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(["stop"], signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_while_an_error_is_told_ends_without_a_traceback(sent, arguments):
    """The signal arrives with the first line that is printed; an interrupt has ended `stop` before."""
    code = f"""
import os, signal, sys
import click
from simulator import cli
echo = click.utils.echo
def send(message=None, *rest, **more):
    echo(message, *rest, **more)
    os.kill(os.getpid(), {int(sent)})
click.echo = click.exceptions.echo = send
cli.hosim.add_command(click.Command("stop", callback=lambda: os.kill(os.getpid(), signal.SIGINT)))
cli.main({arguments!r})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (128 + sent, "")
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") <= 3


ROBUST = "sweep tiny_train_910c --plans once --jitter 1%,5%,20% --draws 8 --workers 2 --no-cache"


def _children(pid):
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers in /proc")
@pytest.mark.parametrize(
    ("arguments", "later_s"),
    [
        (ROBUST, 0),
        ("run tiny_train_910c", 0.3),
        *(pytest.param(ROBUST, later_s, marks=pytest.mark.slow) for later_s in (0.02, 0.3)),
        *(pytest.param("run tiny_train_910c", later_s, marks=pytest.mark.slow) for later_s in (0, 0.02)),
    ],
)
@pytest.mark.slow
def test_ctrl_c_of_a_terminal_ends_all_processes_with_one_line(arguments, later_s, tmp_path):
    """It goes to the whole group: also to workers that are about to start, and know no better yet."""
    command = [*HOSIM, *arguments.split(), "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not _children(process.pid):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.001)
    time.sleep(later_s)
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    progress, _, last = stderr.removesuffix("\n").rpartition("\n")
    assert (process.returncode, stdout, last) == (130, "", "hosim: stopped; nothing was written")
    assert all(line.startswith("hosim: ") and "points" in line for line in progress.splitlines())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("stop", ["before it runs", "while it is imported"])
def test_nothing_is_imported_before_an_interrupt_is_one_line(stop):
    """What the console script does; the signal arrives when the first module beside the entry is looked for."""
    code = f"""
import sys
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name not in ("simulator", "simulator.__main__"):
            print("imports", name, file=sys.stderr)
            if {stop == "before it runs"}:
                sys.exit(3)
            sys.meta_path.remove(self)
            import os, _signal
            os.kill(os.getpid(), _signal.SIGINT)
sys.meta_path.insert(0, Stop())
from simulator.__main__ import main
if {stop == "before it runs"}:
    sys.exit()
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    if stop == "before it runs":
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert (done.returncode, done.stdout) == (130, "")
        assert done.stderr == "imports simulator.cli\nhosim: stopped; nothing was written\n"


def test_a_closed_pipe_is_no_error(tmp_path):
    """What reads it is gone before a line is written."""
    command = f"{sys.executable} -m simulator list policies | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_bad_file_gives_no_traceback(tmp_path):
    done = _run("run", tmp_path / "none.yaml")
    assert done.returncode == 1
    assert done.stderr.startswith("hosim: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("width", [60, pytest.param(200, marks=pytest.mark.slow)])
def test_a_terminal_gets_lines_that_fit_and_progress_that_vanishes(width, scenario):
    master, slave = pty.openpty()
    env = {**os.environ, "COLUMNS": str(width), "TERM": "xterm"}
    process = subprocess.Popen([*HOSIM, "run", str(scenario), "--no-what-if"], stdout=slave, stderr=slave, env=env)
    os.close(slave)
    seen = b""
    while True:
        try:
            more = os.read(master, 65536)
        except OSError:
            break
        if not more:
            break
        seen += more
    os.close(master)
    assert process.wait(timeout=60) == 0
    text = seen.decode()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    headings = [line for line in shown.splitlines() if line.startswith("policy ")]
    assert len(headings) == (1 if width == 200 else 4)
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= width
    assert "resident does not fit in hbm" in shown


def test_a_command_searches_for_garbage_less_often_and_no_more_often_than_its_caller():
    for caller, wanted in ((700, 50_000), (10**6, 10**6)):
        begin = f"import gc; gc.set_threshold({caller})"
        program = f"{begin}; from simulator import cli; cli._prepare(); print(gc.get_threshold())"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout == f"({wanted}, 20, 20)\n"
