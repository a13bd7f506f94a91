"""A small job of several ranks, as documents that people would write."""

from __future__ import annotations

from pathlib import Path

WORKLOAD = """
schema: hosim/workload/1
name: small
model: {family: llama, layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn: 128, vocabulary: 256}
phase: train
batch: 1
sequence: 64
dtypes: {compute: bf16, optimizer_bytes_per_parameter: 12, logits_copies_fp32: 1}
parallel: {ranks: all, PARALLEL}
steps: 2
assumed: {model: a story, batch: a story, sequence: a story, dtypes: a story, parallel: a story, steps: a story}
"""
SCENARIO = """
schema: hosim/scenario/1
name: ranks
title: Several ranks
hardware: dgx_h100
workload: workload.yaml
homes: {activation: free}
policies: [resident, reactive, static]
expect:
  - {row: static, column: ranks, equals: 4}
"""


def written(folder: Path, parallel: str, scenario: str = SCENARIO) -> Path:
    """Write the scenario with its workload, laid out so; return the scenario's path."""
    (folder / "workload.yaml").write_text(WORKLOAD.replace("PARALLEL", parallel))
    (folder / "scenario.yaml").write_text(scenario)
    return folder / "scenario.yaml"
