"""`hosim sweep --cluster`: a scheduler and workers as processes on loopback, some of which are killed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from time import monotonic, sleep

import pytest

import simulator as hosim_api
from simulator.errors import ConfigError
from simulator.run import cluster

pytest.importorskip("distributed", reason="Dask is not installed")

ROOT = Path(hosim_api.__file__).parents[1]
ASKED = {"links.*.bandwidth": "1..4 GB/s:8"}
QUICK = ["resident", "reactive"]
_MANY_S = 300


def _until(done, what: str) -> None:
    end = monotonic() + _MANY_S
    while not done():
        assert monotonic() < end, f"no {what} within {_MANY_S} s"
        sleep(0.1)


class Cluster:
    """A scheduler with two workers."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "scheduler.json"
        self.all = [self._start("dask_scheduler", "--port", "0", "--no-dashboard")]
        _until(self.file.exists, "scheduler")
        self.address = json.loads(self.file.read_text())["address"]
        self.workers = [self._start("dask_worker", "--no-nanny", "--nthreads", "1", "--no-dashboard") for _ in "ab"]

    def _start(self, name: str, *more: str) -> subprocess.Popen:
        command = [sys.executable, "-m", f"distributed.cli.{name}", "--host", "127.0.0.1", *more]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            [*command, "--scheduler-file", str(self.file)],
            env=environment,
            cwd=self.folder,
            stderr=subprocess.DEVNULL,
        )
        self.__dict__.setdefault("all", []).append(process)
        return process

    def close(self) -> None:
        for process in self.all:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A cluster for all tests of this file; the last one may kill a worker."""
    with closing(Cluster(tmp_path_factory.mktemp("cluster"))) as found:
        yield found


@pytest.mark.slow
def test_rows_are_the_same_as_in_this_process(scenario, tmp_path, running):
    for name, more in (("here.csv", {"workers": 1}), ("there.csv", {"cluster": running.address})):
        hosim_api.sweep(scenario, ASKED, policies=QUICK, cache=False, out=tmp_path / name, **more)
    assert (tmp_path / "here.csv").read_bytes() == (tmp_path / "there.csv").read_bytes()


@pytest.mark.slow
def test_workers_with_other_code_are_refused(scenario, running, monkeypatch):
    monkeypatch.setattr(cluster, "code_key", lambda: "another one that is here")
    with pytest.raises(ConfigError, match=r"workers run the same hosim and Python, found hosim .* and .* another one"):
        hosim_api.sweep(scenario, ASKED, cluster=running.address, cache=False)


@pytest.mark.slow
def test_a_client_that_is_killed_goes_on_where_it_was(scenario, tmp_path, running):
    grid = "links.*.bandwidth=1..4 GB/s:40"
    command = [sys.executable, "-m", "simulator", "sweep", str(scenario), "--grid", grid, "--cluster", running.address]
    command += ["--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "a.csv")]
    client = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)

    def rows() -> int:
        try:
            with closing(sqlite3.connect(f"file:{tmp_path}/cache/rows.sqlite?mode=ro", uri=True)) as base:
                return base.execute("SELECT count(*) FROM rows").fetchone()[0]
        except sqlite3.Error:
            return 0

    _until(lambda: rows() >= 2, "rows")
    client.send_signal(signal.SIGKILL)
    client.wait()
    assert 2 <= rows() < 40
    left = (tmp_path / "a.csv").read_text()
    assert not left or left.endswith("\n")  # what was measured may be kept before rows are written
    assert subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=_MANY_S, check=False).returncode == 0
    assert (tmp_path / "a.csv").read_text().startswith(left)
    assert rows() == 40


@pytest.mark.slow
def test_what_a_killed_worker_had_is_done_by_another(scenario, running):
    """The last test: one worker is left."""
    own = hosim_api.sweep(scenario, ASKED, policies=QUICK, workers=1, cache=False)

    def kill(label: str, done: int, total: int) -> None:
        if done == 3:
            running.workers[0].kill()

    found = hosim_api.sweep(scenario, ASKED, policies=QUICK, cluster=running.address, cache=False, progress=kill)
    assert running.workers[0].wait() == -signal.SIGKILL
    assert found.json() == own.json()


@pytest.mark.slow
def test_a_scheduler_that_is_killed_is_one_message(scenario, tmp_path):
    with closing(Cluster(tmp_path)) as own:

        def kill(label: str, done: int, total: int) -> None:
            if done == 1:
                own.all[0].kill()

        with pytest.raises(ConfigError, match="a Dask scheduler answers to the end, found that it went away"):
            hosim_api.sweep(scenario, ASKED, policies=QUICK, cluster=own.address, cache=False, progress=kill)


def test_a_cluster_that_does_not_answer_is_one_message_and_nothing_is_lost(hosim, scenario, monkeypatch, tmp_path):
    monkeypatch.setattr(cluster, "_WAIT_S", 0.1)
    (tmp_path / "kept.csv").write_text("an earlier result\n")
    for name in ("kept.csv", "new.csv"):
        grid = ("--grid", "links.*.bandwidth=1..2 GB/s:2", "--out", tmp_path / name)
        hosim("sweep", scenario, *grid, "--no-cache", "--cluster", "tcp://127.0.0.1:9")
    assert {file.name: file.read_text() for file in tmp_path.glob("*.csv")} == {"kept.csv": "an earlier result\n"}
    grid = ("--grid", "links.*.bandwidth=1..2 GB/s:2")
    done = hosim("sweep", scenario, *grid, "--no-cache", "--cluster", "tcp://127.0.0.1:9")
    assert (done.code, done.out) == (1, "")
    assert "--cluster tcp://127.0.0.1:9: a Dask scheduler answers there" in done.err


@pytest.mark.parametrize("address", ["tcp//127", "nonsense://x", "127.0.0.1:abc"])
def test_a_malformed_address_is_refused_before_a_client_is_made(hosim, scenario, monkeypatch, address):
    """A client that finds it wrong is closed by nobody, and waits 20 s for that at the end."""
    monkeypatch.setattr("distributed.Client", None)
    done = hosim("sweep", scenario, "--grid", "workload.steps=1,2", "--no-cache", "--cluster", address)
    assert (done.code, done.out) == (1, "")
    assert f"--cluster {address}: a Dask scheduler answers there" in done.err


def test_without_dask_it_is_named_what_to_install(hosim, scenario, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    done = hosim("sweep", scenario, "--grid", "workload.steps=1,2", "--no-cache", "--cluster", "tcp://127.0.0.1:9")
    assert (done.code, done.out) == (1, "")
    assert "pip install 'hosim[dask]'" in done.err
