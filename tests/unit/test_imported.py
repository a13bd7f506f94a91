"""The door: what a reader returns is told, written whole or not at all, and read back; kinds are known by content."""

import gzip
import json
from contextlib import suppress
from pathlib import Path

import chain
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import ABSENT, DATA

import simulator as hosim
from simulator import catalog, importers
from simulator.builders import build_job
from simulator.errors import ConfigError
from simulator.formats import graph_jsonl
from simulator.importers import KINDS, Imported, ImportKind
from simulator.importers.imported import named
from simulator.workload import Workload


@pytest.fixture
def graph(tmp_path):
    return chain.write(tmp_path).with_name("graph.jsonl")


def of_graph(graph, **more):
    work = Workload(name="mine", title="by hand", graph=".jsonl")
    return Imported({".jsonl": graph_jsonl.read(graph), ".yaml": work}, **more)


def test_a_graph_and_its_workload_are_written_and_read_back(graph, tmp_path):
    files = of_graph(graph, derived=("said\nof it",)).write(tmp_path / "new" / "mine.yaml")
    assert [file.name for file in files] == ["mine.yaml", "mine.jsonl"]
    assert files[0].read_text(encoding="utf-8").startswith("# said of it\nschema: hosim/workload/1\nname: mine\n")
    work = catalog.read_workload(files[0])
    assert work.graph == "mine.jsonl"
    job = build_job(work, files[0].parent, lambda path, _: graph_jsonl.read(path))
    assert job.graphs[0] == graph_jsonl.read(graph)


def test_requests_name_the_file_beside_them(tmp_path):
    work = catalog.read_workload("llama31_8b_hits")
    work = work.model_copy(update={"requests": work.requests.model_copy(update={"file": ".csv"})})
    files = Imported({".yaml": work, ".csv": b"arrival,prompt,output\n0,10,5\n"}).write(tmp_path / "mine.yaml")
    assert catalog.read_workload(files[0]).requests.file == "mine.csv"
    assert files[1].read_bytes().startswith(b"arrival")


def test_what_is_there_is_kept_unless_forced(graph, tmp_path):
    found, out = of_graph(graph), tmp_path / "mine.yaml"
    (tmp_path / "mine.jsonl").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"a file that is there is kept, found .*mine\.jsonl; choose another name"):
        found.write(out)
    assert not out.exists()
    assert (tmp_path / "mine.jsonl").read_text(encoding="utf-8") == "mine"
    found.write(out, force=True)
    assert (tmp_path / "mine.jsonl").read_text(encoding="utf-8").startswith("{")


def test_all_files_are_written_or_none(graph, tmp_path):
    found = of_graph(graph)
    broken = Imported({**found.files, ".csv": None})
    before = sorted(tmp_path.iterdir())
    with pytest.raises(TypeError):
        broken.write(tmp_path / "mine.yaml")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["mine.json", "mine", ".yaml"])
def test_what_is_written_is_a_workload(graph, tmp_path, name):
    with pytest.raises(ConfigError, match=r"ends in \.yaml"):
        of_graph(graph).write(tmp_path / name)


def test_a_place_where_nothing_can_be_made_is_refused(graph, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="can be written"):
        of_graph(graph).write(tmp_path / "file" / "mine.yaml")


def test_what_is_told_is_one_screen_whatever_the_file_says(graph):
    dropped = {f"thing {number}\x1b[31m": number for number in range(1, 100)}
    told = str(of_graph(graph, kept={"nodes": "7"}, dropped=dropped)).splitlines()
    assert told[:5] == ["model:", "  weights: 100 kB", "  graph: 13 ops and 13 tensors", "kept:", "  nodes: 7"]
    assert told[6] == "  thing 1\\x1b[31m, 1 time"
    assert told[-1] == "  and 88 more (--json tells all)"
    assert len(told) < 40


@pytest.mark.parametrize(("text", "name"), [("a b/c", "a-b-c"), ("\x1b", "imported"), ("x" * 200, "x" * 100)])
def test_any_text_makes_a_name(text, name):
    assert named(text) == name


def test_a_kind_is_known_by_what_is_in_it_also_packed(graph, tmp_path):
    packed = tmp_path / "other.bin"
    packed.write_bytes(gzip.compress(graph.read_bytes()))
    assert importers.sniff(graph) == importers.sniff(packed) == "graph"
    graph.write_text('{"a": 1}', encoding="utf-8")
    assert importers.sniff(graph) is None


@pytest.mark.parametrize("start", [b"PK\x03\x04", b"\x80\x04\x95"])
def test_what_could_run_code_is_never_opened(tmp_path, start):
    file = tmp_path / "model.pt"
    file.write_bytes(start + b"os\nsystem\n")
    readers = [KINDS[name].reader for name in KINDS if name != "torch"]
    for read in (importers.sniff, *readers):
        with pytest.raises(ConfigError, match="an input is data, not a program, found a pickle, or an archive"):
            read(file)


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_is_the_packages_too_and_has_options_that_the_command_knows(kind):
    reader = KINDS[kind].reader
    assert getattr(hosim, reader.__name__) is reader
    from simulator.cli.documents import import_

    command = import_.get_command(None, kind)
    assert all(one.help for one in command.params if one.param_type_name == "option"), "each option says what it is"


def test_what_is_framed_like_a_pickle_may_be_a_message_of_protocol_buffers(tmp_path):
    file = tmp_path / "step.et"
    file.write_bytes(b"\x80\x02\n\x050.0.4" + b"is_cpu_op")
    assert importers.sniff(file) == "chakra"


SAMPLES = {
    "hf_configs/*.json": "hf",
    "hyper_offload/*.json": "graph",
    "chakra/*.gz": "chakra",
    "kineto/*trace.json.gz": "kineto",
    "pytorch_et/*et.json*": "pytorch-trace",
    "requests/*": "requests",
}


@pytest.mark.skipif(DATA is None, reason=ABSENT)
@pytest.mark.parametrize(("pattern", "kind"), SAMPLES.items())
def test_recorded_files_are_known_by_what_is_in_them(pattern, kind):
    files = list(DATA.glob(pattern))
    assert {importers.sniff(file) for file in files} == {kind}


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_a_damaged_graph_is_a_graph_or_one_error(data, tmp_path_factory):
    file = tmp_path_factory.mktemp("damaged") / "g.jsonl"
    text = bytearray("".join(f"{json.dumps(line)}\n" for line in chain.graph_lines()).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    file.write_bytes(bytes(text[: data.draw(st.integers(0, len(text)))]))
    with suppress(ConfigError):
        assert isinstance(hosim.read_graph(file), Imported)
    with suppress(ConfigError):
        importers.sniff(file)


def test_options_of_all_types_are_made_of_a_signature(monkeypatch):

    from typing import Literal

    from click.testing import CliRunner

    from simulator.cli import documents

    given = {}

    def read_odd(
        source: str, *, new_tokens: int = 3, phase: Literal["train", "decode"] | None = None,
        with_it: Path | None = None, flag: bool = False, many: tuple[str, ...] = (),
    ) -> Imported:  # fmt: skip
        """Read what is odd.

        Parameters
        ----------
        source
            Anything.
        new_tokens
            How many
            of them.
        """
        given.update({key: value for key, value in locals().items() if key != "given"})
        raise ConfigError(source, "it is read", "not", "stop")

    command = documents._import_command("odd", "something odd", read_odd)
    told = CliRunner().invoke(command, ["--help"]).output
    assert "How many of them.  [default: 3]" in told
    assert "[train|decode]" in told
    words = ["x", "-o", "a.yaml", "--new-tokens", "5", "--phase", "train", "--with-it", "p", "--flag", "--many", "a"]
    assert isinstance(CliRunner().invoke(command, words).exception, ConfigError)
    wanted = {"source": "x", "new_tokens": 5, "phase": "train", "with_it": Path("p"), "flag": True, "many": ("a",)}
    assert given == wanted


def test_a_kind_of_ones_own_is_sniffed(monkeypatch, tmp_path):
    monkeypatch.setitem(KINDS, "odd", ImportKind("recordings", "read_graph", "something odd", "odd & words"))
    file = tmp_path / "x.bin"
    file.write_bytes(b"words that are odd")
    with pytest.raises(ConfigError, match=r"found something odd; run `hosim import odd .*x\.bin -o x\.yaml`, then"):
        importers.refuse_foreign(file)
    importers.refuse_foreign("llama3_8b_train")
    importers.refuse_foreign(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("name", "about", "command"),
    [
        ("train.py", "a Python program, which is not run", "hosim import torch train:FUNCTION -o train.yaml"),
        ("model.pt", "weights or a pickle, which hosim never opens", "hosim import torch model:FUNCTION -o model.yaml"),
        ("model.safetensors", "weights or a pickle", "hosim import torch model:FUNCTION -o model.yaml"),
    ],
)
def test_a_program_or_weights_are_not_opened_and_the_import_is_named(name, about, command, tmp_path, monkeypatch):
    monkeypatch.setattr(importers.inputs, "opened", None)
    file = tmp_path / name
    file.write_text("raise SystemExit(3)")
    for asked in ({"scenario": file}, {"hardware": "h100_sxm", "workload": file}):
        for story in (hosim.run, hosim.serve):
            with pytest.raises(ConfigError) as refused:
                story(**asked)
            assert f"found {about}" in str(refused.value)
            assert f"run `{command}` with a function that makes model and inputs, then `hosim run " in str(
                refused.value
            )


def test_a_file_of_no_kind_is_refused_and_a_table_of_requests_is_known(tmp_path):
    file = tmp_path / "some.csv"
    file.write_text("a,b\n1,2\n")
    with pytest.raises(
        ConfigError, match="found another kind of file; import it as one of the kinds that `hosim import"
    ):
        hosim.run(file)
    for head in ("arrival,prompt,output", "arrived_at,num_prefill_tokens,num_decode_tokens"):
        file.write_text(f"{head}\n0,30,4\n1.5,20,2\n")
        with pytest.raises(ConfigError, match=r"run `hosim import requests .*then `hosim serve "):
            hosim.serve(file)
        assert hosim.read_request_trace(file).kept["requests"] == "2 within 2 s"


def test_a_graph_is_read_with_what_its_trace_has_besides(tmp_path):
    file, access = tmp_path / "step.json", [{"storage": 7, "bytes": 100}]
    make = {"id": 0, "name": "mm.default", "duration_ms": 0.5, "writes": access}
    view = {"id": 1, "name": "view.default", "duration_ms": 4, "reads": access, "writes": access}
    said = {
        "schema": "residency-trace/1",
        "memory_limit_bytes": 120,
        "storages": [{"id": 7, "bytes": 100}, {"id": 8, "bytes": 4}],
        "ops": [make, view],
        "schedule": {"pre": [], "post": [[0, "COPY_D2H", 7]]},
    }
    file.write_text(json.dumps(said), encoding="utf-8")
    found = hosim.read_graph(file)
    assert found.dropped == {"entry of the schedule": 1, "memory_limit_bytes": 1, "storage that no op accesses": 1}
    assert found.kept == {"measured times of ops": "4.50 ms"}
    assert not found.graph.ops[1].writes
    assert hosim.read_graph(file, views="writes").graph.ops[1].writes
