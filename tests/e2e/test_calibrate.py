"""`hosim calibrate`: this machine as a profile that checks and runs."""

import os
import sys

import pytest


@pytest.fixture(autouse=True)
def numpy_alone(monkeypatch):
    """What computes is numpy: torch takes seconds to import."""
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.mark.slow
def test_a_measured_machine_runs_a_scenario(hosim, tmp_path, monkeypatch):
    """As any profile; what was measured is printed, and nothing else is left in the folder."""
    monkeypatch.chdir(tmp_path)
    done = hosim("calibrate", "-o", "this.yaml", "--quick")
    assert done.code == 0
    assert done.err == ""
    assert "links.h2d: 16 MiB from a file into new memory; median " in done.out
    assert "by hosim calibrate --quick, 1 core, numpy " in done.out
    assert done.out.endswith("written: this.yaml\n")
    assert os.listdir() == ["this.yaml"]
    assert hosim("check", "--strict", "this.yaml").out == "this.yaml: hardware, 1 device, 2 tiers, 2 links: ok\n"
    ran = hosim("run", "--hardware", "this.yaml", "--workload", "tiny_train", "--policy", "offload_saved")
    assert ran.code == 0
    assert "offload_saved" in ran.out


def test_a_machine_that_cannot_be_measured_is_told_in_a_line(hosim, tmp_path):
    """With exit code 1, and no profile."""
    done = hosim("calibrate", "-o", tmp_path / "this.yaml", "--folder", tmp_path / "none")
    assert done.code == 1
    assert done.err.startswith(f"hosim: tier in {tmp_path / 'none'}: ")
    assert os.listdir(tmp_path) == []
