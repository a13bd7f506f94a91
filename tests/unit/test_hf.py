"""Hugging Face's ``config.json``: what is read, derived, dropped and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import simulator as hosim

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "hf_configs"
FILES = sorted(FOLDER.glob("*.json")) if FOLDER.is_dir() else []


@pytest.mark.skipif(not FILES, reason="the sample files are not there")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_sample_files_become_workloads(file: Path, phase: str) -> None:
    found = hosim.read_hf(file, phase=phase, sequence=1024)
    assert found.workload.phase == phase
    assert set(found.dropped) <= {"num_nextn_predict_layers (layers that only predict further tokens)"}
    assert None not in [found.workload.origin(path) for path in found.workload.figures()]
