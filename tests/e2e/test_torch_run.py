"""`hosim torch run`: a step of one's own runs within a budget, predicted beside measured."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import commands

pytest.importorskip("torch")

MINE = """
import torch

def step():
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)) for _ in "abcd"]
    options = {"optimizer": torch.optim.SGD, "loss": lambda made: made.square().mean()}
    return torch.nn.Sequential(*layers), torch.randn(256, 64), options
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine_of_torch_run.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    return "mine_of_torch_run:step"


@pytest.mark.slow
def test_each_policy_has_a_row_and_losses_are_equal(hosim, mine, tmp_path):
    out = tmp_path / "out"
    done = hosim("torch", "run", mine, "--budget", "2.6MB", "--steps", "2", "--folder", tmp_path, "--out", out)
    assert done.code == 0, done.err
    assert "compute, measured" in (out / "report.html").read_text()
    assert (out / "trace.perfetto.json.gz").exists()
    assert "All losses are equal to the last bit. Times are medians of 2 steps, within 2.60 MB." in done.out
    assert [line.split()[0] for line in done.out.splitlines()[1:3]] == ["static", "reactive"]
    done = hosim("torch", "run", mine, "--budget", "2.6MB", "--steps", "1", "--policy", "lookahead", "--json")
    (row,) = json.loads(done.out)["rows"]
    assert row["measured_peak_bytes"] <= 2_600_000
    assert row["is_equal"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none:step", "--budget", "1MB"], "the module is there, found No module named 'none'"),
        (["mine_of_torch_run:other", "--budget", "1MB"], "the module has such a function"),
        (["mine_of_torch_run:step", "--budget", "1"], "a size is a number and a unit"),
        (["mine_of_torch_run:step", "--budget", "1kB"], "give it a larger budget"),
    ],
)
def test_what_cannot_run_is_one_message(hosim, mine, arguments, said):
    done = hosim("torch", "run", *arguments)
    assert done.code == 1
    assert said in done.err
    assert done.err.count("hosim: ") == 1


@pytest.mark.slow
def test_the_page_runs(hosim, tmp_path, monkeypatch):
    """A module of the name that the page gives, in a process that has none of it yet."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "run-within-a-budget.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "mine.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    for line in (line for line in commands(page) if line.startswith("hosim torch run ")):
        command = [sys.executable, "-m", "simulator", *line.split()[1:], "--steps", "1"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "All losses are equal to the last bit." in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="the system does not tell what was resident"
)
def test_rss_is_what_was_counted_where_the_allocator_gives_pages_back(mine, tmp_path):
    larger = MINE.replace("64, 256", "256, 1024").replace("256, 64", "1024, 256").replace("randn(1024", "randn(2048")
    (tmp_path / "mine_of_torch_run.py").write_text(larger)
    rows = [word for row in ("resident", "saved_tensors_hooks", "static") for word in ("--policy", row)]
    command = [
        sys.executable,
        "-m",
        "simulator",
        "torch",
        "run",
        mine,
        "--budget",
        "60MB",
        "--steps",
        "1",
        "--json",
        *rows,
    ]
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    rows = json.loads(done.stdout)["rows"]
    assert [row["is_within"] for row in rows] == [False, True, True]
    for row in rows:
        assert row["measured_rss_bytes"] == pytest.approx(row["measured_peak_bytes"], rel=0.1)


@pytest.mark.slow
def test_a_step_is_timed_beside_the_machine(hosim, mine, tmp_path):
    done = hosim("calibrate", "-o", "this.yaml", "--quick", "--step", mine)
    assert done.code == 0, done.err
    assert done.out.endswith("written: this.yaml\nwritten: this_step.yaml\nwritten: this_step.jsonl\n")
    ran = hosim("run", "--hardware", "this.yaml", "--workload", "this_step.yaml", "--json")
    assert ran.code == 0, ran.err
    refused = hosim("calibrate", "-o", "this.yaml", "--quick", "--step", "mine_of_torch_run:none")
    assert (refused.code, refused.out, "the module has such a function" in refused.err) == (1, "", True)
