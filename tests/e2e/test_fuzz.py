"""Files of every kind that went wrong: each read ends in a result, or in one message that can be printed."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import chain
import documents
import pytest
import serving_cases
from examples import examples
from mutations import broken, changed, fields, lines, packed

from simulator import formats
from simulator.catalog.text import compose
from simulator.cli.check import describe
from simulator.errors import HosimError

ROOT = Path(__file__).parents[2]
LONGEST_MESSAGE = 2000
MEMORY_BYTES = 1_500_000_000
"""By so much the process may grow."""
PROCESSOR_S = 60
"""A read that takes so long hangs: most take milliseconds, the largest graph that may be built seconds."""

TRACE = {
    "schema": "residency-trace/1",
    "source": {"kind": "by hand"},
    "memory_limit_bytes": 120,
    "storages": [{"id": 7, "bytes": 100}, {"id": 9, "bytes": 50, "retained": True, "kind": "wgrad"}],
    "ops": [
        {"id": 0, "name": "mm", "duration_ms": 0.5, "reads": [], "writes": [{"storage": 7, "bytes": 100}]},
        {"id": 1, "name": "add_", "duration_ms": 1, "reads": [{"storage": 7, "bytes": 100}],
         "writes": [{"storage": 9, "bytes": 50}]},
    ],
    "schedule": {"pre": [[1, "COPY_H2D", 7]], "post": [[0, "COPY_D2H", 7], [0, "RELEASE_DEVICE", 7]]},
}  # fmt: skip
TABLES = {
    "routing": ("layer,expert,share\n0,0,0.5\n0,1,0.5\n", "step,op,chosen\n0,L0/experts,1\n1,L0/experts,2\n"),
    "requests": (
        "arrival,prompt,output,prefix,prefix_tokens\n0,3,1,a,2\n0.5,3,1,a,2\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,396,109\n2023-11-16 18:17:03,5,1\n",
        "Timestamp,Model,Request tokens,Response tokens\n5,ChatGPT,472,18\n45,ChatGPT,1087,0\n",
    ),
}


class Kind(NamedTuple):
    """How files of a kind are made, and read."""

    name: str
    originals: list[Any]
    written: Callable[[Any], bytes]
    mutated: Callable[[Any, Random], bytes]
    read: Callable[[Path], object]


def _shipped(pattern: str) -> list[Any]:
    return [compose(path.read_text(), path.name).data for path in sorted(ROOT.glob(pattern))]


def _lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _dumped(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")


def _text(text: str) -> bytes:
    return text.encode()


def _document(name: str, originals: list[Any]) -> Kind:
    return Kind(name, originals, _dumped, lambda one, random: _dumped(changed(one, random)), _described)


def _described(path: Path) -> str:
    """What is said of a document, and of the scenario that names it if one does."""
    naming = {"machine": "chain.yaml", "job": "job_story.yaml", "soft": "driven.yaml"}.get(path.stem)
    return describe(str(path)) + (describe(str(path.with_name(naming))) if naming else "")


def _records(name: str, originals: list[Any], read: Callable[[Path], object]) -> Kind:
    return Kind(name, originals, lambda records: b"".join(_dumped(one) + b"\n" for one in records), lines, read)


def _table(name: str, read: Callable[[Path], object]) -> Kind:
    return Kind(f"{name}.csv", [*TABLES[name]], _text, fields, read)


def _graph(path: Path) -> str:
    formats.read_graph(path)
    return describe(str(path))


def _plan(path: Path) -> str:
    return describe(str(path)) + describe(str(path), str(path.with_name("chain.yaml")))


def _trace(path: Path) -> str:
    graph = formats.read_graph(path)
    formats.read_plan(path, graph, ("hbm", "ddr"))
    return describe(str(path))


SHIPPED = (
    *(
        "chat_kv_tiers_h100",
        "cloudmatrix384_pool",
        "llama3_70b_stream_ssd",
        "llama3_8b_layer_scaling",
        "residency_acceptance",
    ),
    *("claims/kv_fragmentation", "claims/kv_peak_calibrated", "measured/olmoe_a2000_gemv", "measured/vllm_h100_load"),
)
SERVED = serving_cases.STORY.replace("KV_TIERS", serving_cases.SMALL_TIERS)
STORIES = [
    *(compose(text, "here").data for text in (chain.SCENARIO, documents.STORY, SERVED)),
    *(one for name in SHIPPED for one in _shipped(f"scenarios/{name}.yaml")),
]
SOFTWARE = """\
schema: hosim/software/1
name: soft
for: ["bench*", "!gh200*"]
copies:
  in: {mode: pageable, share: 0.5, rate: 9 GB/s, latency: 2 us, host_passes: 3}
  links: {d2h: {mode: staged, share: 1.0}}
host: {op: 8 us, copy: 8 us, layer: 500 us, step: 2 ms, iteration: 5 ms, request: 1 ms, ahead: true}
kernels: {default: {arithmetic: {matmul: 0.7}, bandwidth: 0.8, launch: 3 us, fill: 9 us}}
memory: {taken: 0.9, context: 1 MB, workspace: 1 MB, communication: 1 MB, lost: 0.1}
"""
KINDS = {
    "hardware": _document("machine.yaml", [compose(chain.MACHINE, "here").data, *_shipped("hardware_profiles/*.yaml")]),
    "software": _document("soft.yaml", [compose(SOFTWARE, "here").data, *_shipped("software_profiles/llama_cpp.yaml")]),
    "workload": _document("mutated.yaml", _shipped("workloads/*.yaml")),
    "scenario": _document("scenario.yaml", STORIES),
    "graph": _records(
        "mutated.jsonl", [chain.graph_lines(), *map(_lines_of, sorted((ROOT / "workloads").glob("*.jsonl")))], _graph
    ),
    "plan": _records("plan.jsonl", [chain.plan_lines()], _plan),
    "trace": Kind("trace.json", [TRACE], _dumped, lambda one, random: _dumped(changed(one, random)), _trace),
    "routing": _table("routing", formats.read_routing),
    "requests": _table("requests", formats.read_requests),
}


IMPORTED = ("graph", "trace")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What the files name lies beside them; a read that hangs, or fills the memory, fails."""
    monkeypatch.chdir(tmp_path)
    texts = {"machine": chain.MACHINE, "workload": chain.WORKLOAD, "chain": chain.SCENARIO, "box": serving_cases.BOX,
             "driven": f"{chain.SCENARIO}software: soft.yaml\n", "job": documents.JOB,
             "toy": serving_cases.TOY.replace("REQUESTS", serving_cases.DRAWN)}  # fmt: skip
    for name, text in texts.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    chain.write_lines(tmp_path / "graph.jsonl", chain.graph_lines())
    for path in (*ROOT.glob("workloads/*.jsonl"), *ROOT.glob("workloads/*.csv")):
        (tmp_path / path.name).symlink_to(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY_BYTES, hard))
    before = signal.signal(signal.SIGVTALRM, _hangs)
    yield tmp_path
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _hangs(*_: object) -> None:
    raise AssertionError("it hangs")


def _read(kind: Kind, number: int, folder: Path) -> bool:
    """Whether a file that went wrong could still be read; the first one did not."""
    random = Random(f"{kind.name} {number}")
    original = random.choice(kind.originals)
    if number == 0:
        data = kind.written(original)
    elif random.random() < 0.6:
        data = kind.mutated(original, random)
    else:
        data = broken(kind.written(original), random)
    path = folder / kind.name
    if number and kind.name.endswith("jsonl") and random.random() < 0.1:
        path, data = folder / f"{kind.name}.gz", packed(data, random)
    path.write_bytes(data)
    signal.setitimer(signal.ITIMER_VIRTUAL, PROCESSOR_S)
    try:
        said = kind.read(path)
    except HosimError as error:
        message = str(error)
        assert len(message) < LONGEST_MESSAGE, message
        assert message.replace("\n", "").isprintable(), ascii(message)
        return False
    assert not isinstance(said, str) or said.isprintable(), ascii(said)
    return True


def _check(kind: str, reads: int, folder: Path) -> None:
    found = []
    for number in range(reads):
        try:
            found.append(_read(KINDS[kind], number, folder))
        except BaseException as error:
            error.add_note(f"read {number} of kind {kind}: {[*folder.glob(f'{KINDS[kind].name}*')]}")
            raise
    assert found[0], "it was right before"
    assert False in found


@pytest.mark.parametrize("kind", KINDS)
def test_what_went_wrong_ends_in_a_result_or_a_message(kind: str, folder: Path) -> None:
    _check(kind, 13, folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_reads_of_what_went_wrong(kind: str, folder: Path) -> None:
    """Of what others write, and is imported, more."""
    _check(kind, examples(10_000) if kind in IMPORTED else 250, folder)
