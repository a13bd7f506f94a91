"""A run that keeps no trace: the same numbers, from the documents to the files."""

from __future__ import annotations

import json
from dataclasses import replace

import chain
import pytest

import simulator as hosim
from simulator import engine
from simulator.errors import ConfigError, InvariantError
from simulator.run import Case, prepare, read, run_case

MOE_ROWS = ["resident", "on demand, lru", "hybrid, guess 80 %"]


def lasting(steps: int, case: Case) -> Case:
    """The case with so many steps."""
    loaded = case.loaded
    return prepare(replace(loaded, workload=loaded.workload.model_copy(update={"steps": steps})))


@pytest.mark.parametrize(
    ("name", "steps", "rows"),
    [
        ("tiny_train_910c", 2, None),
        pytest.param("moe_experts_on_demand", 16, MOE_ROWS, marks=pytest.mark.slow),
    ],
)
def test_all_that_a_summary_says_is_the_same(name: str, steps: int, rows: list[str] | None) -> None:
    """Columns, sentences, expectations, and stalls by place."""
    followed, kept = (run_case(lasting(steps, read(name, trace=trace)), rows) for trace in ("none", "kept"))
    assert followed.json() == kept.json()
    assert [row.trace is None for row in followed.values()] == [True] * len(followed)
    assert any(row.trace is not None for row in kept.values())


def test_the_folder_has_no_files_that_need_a_trace(tmp_path) -> None:
    scenario = chain.write(tmp_path)
    run_case(read(scenario, trace="none")).write(tmp_path / "out")
    found = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert found == {
        *("hardware.yaml", "scenario.yaml", "workload.yaml", "graph.jsonl"),
        *("summary.csv", "summary.json", "report.html", "comparison.png"),
    }
    page = (tmp_path / "out" / "report.html").read_text()
    assert "No trace was kept" in page
    assert "What a step waits for" in page
    assert "compute never waits" not in page
    assert "perfetto" not in page
    assert "trace: none" in (tmp_path / "out" / "scenario.yaml").read_text()
    again = json.loads(hosim.run(tmp_path / "out" / "scenario.yaml").json())
    assert again["rows"] == json.loads((tmp_path / "out" / "summary.json").read_text())["rows"]


def test_what_needs_a_trace_says_so(tmp_path) -> None:
    row = run_case(read(chain.write(tmp_path), trace="none"), ["static"])["static"]
    assert row.status == "ok"
    for ask in (lambda: row.spans, lambda: row.memory, lambda: row.recorded, row.timeline):
        with pytest.raises(ConfigError, match="is made from the trace of a row, found a run that kept none"):
            ask()


@pytest.mark.parametrize(
    ("name", "found"), [("llama3_8b_8x1x1", "8 ranks"), ("llama3_8b_fragmentation_910c", "allocator: best_fit")]
)
def test_ranks_and_addresses_keep_their_trace(name: str, found: str) -> None:
    with pytest.raises(ConfigError, match=f"a run keeps its trace if ranks may meet.*found {found}; write trace: kept"):
        read(name, trace="none")


def test_the_referee_is_there_as_well(tmp_path, monkeypatch) -> None:
    """An engine that forgets a wait is told so, also by a referee that follows it."""
    run = engine.run

    def forgetful(programs, hardware, *, forward=None, **more):
        def spoilt(happened):
            forward({**happened, "waits": {name: column[1:] for name, column in happened["waits"].items()}})

        return run(programs, hardware, forward=forward and spoilt, **more)

    monkeypatch.setattr(engine, "run", forgetful)
    case = read(chain.write(tmp_path), trace="none")
    with pytest.raises(InvariantError, match="every nanosecond of a stream"):
        run_case(case, ["reactive"])
