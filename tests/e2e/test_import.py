"""`hosim import`: a file of another kind becomes documents, and what is given to another command says so."""

import gzip
import io
import json
import os
import re
import sys
import tarfile

import pytest
import recorded

from simulator import inputs
from simulator.importers import imported

pytestmark = pytest.mark.usefixtures("pictures_are_blank")


def test_a_graph_is_imported_told_and_checked(hosim, scenario, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = hosim("import", "graph", scenario.with_name("graph.jsonl"), "-o", "mine.yaml")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[1:4] == ["model:", "  weights: 100 kB", "  graph: 13 ops and 13 tensors"]
    assert lines[-3:] == ["written:", "  mine.yaml", "  mine.jsonl"]
    assert hosim("check", "mine.yaml").code == 0
    source = scenario.with_name("graph.jsonl")
    again = hosim("import", "graph", source, "-o", "mine.yaml")
    assert (again.code, again.out) == (1, "")
    assert "a file that is there is kept" in again.err
    over = hosim("import", "graph", "mine.jsonl", "-o", "mine.yaml", "--force")
    assert over.code == 0
    assert over.out.splitlines()[-2:] == ["  mine.yaml", "  mine.imported.jsonl"], "what is read is not written over"
    assert hosim("check", "mine.yaml").code == 0
    said = json.loads(hosim("import", "graph", source, "-o", "mine.yaml", "--force", "--json").out)
    assert said["files"] == ["mine.yaml", "mine.jsonl"]
    assert (said["card"]["ops"], said["card"]["tensors"]) == ([13], [13]), "numbers, for programs"


@pytest.mark.parametrize("command", ["run", "plan", "serve", "sweep", "frontier"])
def test_a_foreign_file_names_the_import_that_reads_it(hosim, scenario, command):
    done = hosim(command, scenario.with_name("graph.jsonl"))
    assert (done.code, done.out) == (1, "")
    assert "a scenario is a YAML document of hosim, found a graph of hosim" in done.err
    assert "run `hosim import graph " in done.err
    assert len(done.err.splitlines()) == 1


def test_import_lists_its_kinds_and_refuses_others(hosim):
    assert re.search(r"  graph +a graph of hosim", hosim("import", "--help").out)
    done = hosim("import", "nothing", "x", "-o", "mine.yaml")
    assert done.code == 2
    assert "'nothing' is no kind of file: use one of graph, hf, " in done.err


def test_a_workload_runs_on_a_machine_without_a_scenario(hosim, scenario):
    folder = scenario.parent
    where = ("--hardware", folder / "machine.yaml", "--workload", folder / "workload.yaml")
    done = hosim("run", *where)
    assert (done.code, done.err) == (0, "")
    cards, table = done.out.split("\n\n")[:2]
    assert cards.startswith(
        "model: weights 100 kB; graph 13 ops and 13 tensors\nmachine: peak arithmetic bf16 1.00 TFLOP/s; "
    )
    assert [line.split()[0] for line in table.splitlines()[1:]] == ["resident", "reactive", "static"]
    named = hosim("run", *where, "--policy", "static", "--policy", "recompute", "--json")
    assert [row["policy"] for row in json.loads(named.out)["rows"]] == ["static", "recompute"]
    assert hosim("plan", *where).out.startswith("static on workload_on_machine: ")


def test_what_runs_without_a_scenario_is_written_with_one(hosim, scenario, tmp_path):
    folder, out = scenario.parent, tmp_path / "out"
    where = ("--hardware", folder / "machine.yaml", "--workload", folder / "workload.yaml")
    done = hosim("run", *where, "--policy", "static", "--set", "workload.steps=3", "--out", out)
    assert (done.code, done.err) == (0, "")
    assert "steps: 3" in (out / "workload.yaml").read_text(encoding="utf-8")
    said = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert said["card"]["model"] == {
        "weight_bytes": 100_000, "persistent_bytes": 100_000, "ops": [13], "tensors": [13], "ranks": 1
    }  # fmt: skip
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "weights <strong>100 kB</strong>" in page
    assert page.index("peak arithmetic <strong>bf16 1.00 TFLOP/s</strong>") < page.index(
        "<table", page.index('class="picture"')
    )
    again = json.loads(hosim("run", out / "scenario.yaml", "--json").out)["rows"]
    assert again == json.loads((out / "summary.json").read_text(encoding="utf-8"))["rows"]


@pytest.mark.parametrize(
    "words",
    [[], ["chain.yaml", "--hardware", "h100_sxm"], ["--workload", "tiny_train"], ["--hardware", "h100_sxm"]],
)
def test_a_scenario_is_named_or_a_machine_and_what_runs_there(hosim, words):
    done = hosim("run", *words)
    assert (done.code, done.out) == (2, "")
    assert "name a SCENARIO (see `hosim list`), or --hardware NAME and --workload NAME" in done.err


def test_fields_of_the_workload_are_set_like_those_of_the_machine(hosim):
    words = ("run", "--hardware", "ascend_910c_die", "--workload", "tiny_train", "--policy", "resident", "--json")
    once, twice = (
        json.loads(hosim(*words, *more).out)["rows"][0] for more in ((), ("--set", "workload.sequence=4096"))
    )
    assert twice["step_ns"] > 1.9 * once["step_ns"]
    for change, said in (
        ("workload.bach=4", "set, workload.bach: a change names a field of the workload, found 'bach'"),
        ("workload.batch=0", "set, workload.batch: input should be greater than or equal to 1, found 0"),
        ("workload.model.layer=3", "(did you mean 'layers'?)"),
        ("workload=3", "set, workload: a change names a field of the hardware"),
        ("batch=3", "a change names a field of the hardware, found 'batch'; write workload.batch"),
    ):
        done = hosim(*words, "--set", change)
        assert (done.code, done.out) == (1, "")
        assert said in done.err


def test_a_foreign_file_in_place_of_a_workload_names_its_import(hosim, scenario):
    done = hosim("run", "--hardware", "h100_sxm", "--workload", scenario.with_name("graph.jsonl"))
    assert done.code == 1
    assert "a workload is a YAML document of hosim, found a graph of hosim" in done.err


def test_a_machine_that_nobody_knows_is_named(hosim):
    done = hosim("run", "--hardware", "h100_sx", "--workload", "tiny_train")
    assert done.err.startswith("hosim: hardware: a hardware document has a name in the catalogue")
    assert "did you mean 'h100_sxm'?" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("word", ["origin: mine\n", ""])
def test_figures_of_ones_own_need_no_source_but_are_counted(hosim, scenario, tmp_path, word):
    machine = scenario.with_name("machine.yaml")
    machine.write_text(machine.read_text().replace("  tiers: round numbers\n", "").replace("title:", f"{word}title:"))
    assert hosim("check", machine).out.endswith(
        "hardware, 1 device, 2 tiers, 2 links, 3 figures without a source: ok\n"
    )
    done = hosim("check", "--strict", scenario)
    assert done.code == 1
    assert "tiers.hbm.capacity: each figure has an origin under sources, assumed or fitted" in done.err
    done = hosim("run", scenario, "--out", tmp_path / "out")
    assert "\nYour own figures, without a source: 3 figures of bench_machine.\n" in done.out
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "without a source: 3 figures of <code>bench_machine</code>." in page


def test_what_ships_needs_a_source_for_each_figure(hosim, monkeypatch):
    from simulator.document import Document

    monkeypatch.setattr(Document, "entry_of", lambda self, path: None)
    assert "each figure has an origin" in hosim("check", "h100_sxm").err


def test_a_recorded_step_is_replayed_when_it_is_imported(hosim, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = recorded.saved(tmp_path / "profile.json", recorded.profiled().document)
    replay = "replayed as recorded: 70.0 us a step, recorded 70.0 us (+0.00 %), no memory in it"
    done = hosim("import", "kineto", source, "-o", "mine.yaml")
    assert (done.code, done.err, done.out.splitlines()[-1]) == (0, "", replay)
    told = json.loads(hosim("import", "kineto", source, "-o", "mine.yaml", "--force", "--json").out)
    assert told["replay"] == replay
    assert hosim("check", "mine.yaml").code == 0
    profile = recorded.profiled()
    profile.kernel("late", 70, 300, "5")
    source = recorded.saved(tmp_path / "profile.json", profile.document)
    *_, told = hosim("import", "kineto", source, "-o", "other.yaml").out.splitlines()
    assert told == f"{replay}; both lack 1 kernels, copies and fills without a time"
    ran = hosim("run", "--hardware", "h100_sxm", "--workload", "mine.yaml", "--policy", "resident")
    assert ran.code == 0
    assert "70.0 us" in ran.out


def test_a_trace_of_requests_is_imported_and_served(hosim, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    about = ((0, 1100, [0, 1, 2]), (1500, 1300, [0, 1, 3]), (2000, 512, [0]))
    lines = [{"timestamp": at, "input_length": n, "output_length": 5, "hash_ids": ids} for at, n, ids in about]
    (tmp_path / "trace.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert "hosim import requests trace.jsonl -o trace.yaml" in hosim("serve", "trace.jsonl").err
    done = hosim("import", "requests", "trace.jsonl", "-o", "mine.yaml", "--model", "llama32_1b_hits")
    assert (done.code, done.err) == (0, "")
    assert "  requests: 3 within 2 s" in done.out
    assert hosim("check", "mine.yaml").code == 0
    served = hosim("serve", "--hardware", "h100_sxm", "--workload", "mine.yaml", "--policy", "static")
    assert (served.code, served.err) == (0, "")
    assert "3 of 3" in served.out
    assert "Of all prompt tokens static finds 35 % in hbm, and computes 65 %." in served.out


def test_a_kind_that_nobody_has_is_told_with_those_there_are(hosim):
    done = hosim("import", "pytorch", "mine.py", "-o", "mine.yaml")
    assert done.code == 2
    assert "'pytorch' is no kind of file: use one of graph, hf, " in done.err
    assert "did you mean 'torch'" in done.err


@pytest.mark.parametrize(
    "command", [("run",), ("serve",), ("plan",), ("sweep",), ("layout",), ("graph", "--out", "graph")]
)
def test_a_program_is_refused_by_each_command_that_takes_a_document(command, hosim, tmp_path):
    file = tmp_path / "train.py"
    file.write_text("raise SystemExit(3)")
    done = hosim(command[0], file, *command[1:])
    assert done.code == 1
    assert "found a Python program, which is not run; run `hosim import torch train:FUNCTION -o train.yaml`" in done.err


CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
    "num_hidden_layers": 64, "vocab_size": 100, "max_position_embeddings": 4096,
}  # fmt: skip


@pytest.fixture
def piped(monkeypatch):
    """Put bytes into standard input."""

    def pipe(content):
        inputs.from_stdin.cache_clear()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    yield pipe
    inputs.from_stdin.cache_clear()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["graph", "hf", "requests"])
def test_standard_input_is_read_as_a_file_is(hosim, scenario, tmp_path, monkeypatch, piped, kind, packed):
    content = {
        "graph": scenario.with_name("graph.jsonl").read_bytes(),
        "hf": json.dumps(CONFIG).encode(),
        "requests": b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,10,5\n",
    }[kind]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source").write_bytes(content)
    piped(gzip.compress(content) if packed else content)
    done = hosim("import", kind, "-", "-o", "piped.yaml")
    assert (done.code, done.err) == (0, "")
    assert hosim("import", kind, "source", "-o", "read.yaml").code == 0
    texts = [(tmp_path / name).read_text() for name in ("piped.yaml", "read.yaml")]
    name = "(?m)piped|read|imported|source|standard input|-(?=;|, served|$)"  # what it is called is all that differs
    assert re.sub(name, "mine", texts[0]) == re.sub(name, "mine", texts[1])
    assert "; - reads standard input." in " ".join(hosim("import", kind, "--help").out.split())


def test_an_archive_is_known_by_its_content_where_it_has_no_name(hosim, tmp_path, piped):
    archive = io.BytesIO()
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with tarfile.open(fileobj=archive, mode="w:gz") as packed:
        packed.add(tmp_path / "config.json", "config.json")
    piped(archive.getvalue())
    done = hosim("import", "hf", "-", "-o", tmp_path / "mine.yaml")
    assert (done.code, done.err) == (0, "")


def test_what_pipes_in_nothing_is_one_message(hosim, tmp_path, piped):
    piped(b"")
    done = hosim("import", "kineto", "-", "-o", tmp_path / "mine.yaml")
    assert (done.code, done.out) == (1, "")
    assert done.err == "hosim: standard input: a file holds something, found an empty one; write it again\n"


def test_a_pipe_is_told_how_it_is_read(hosim, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    done = hosim("import", "kineto", tmp_path / "pipe", "-o", tmp_path / "mine.yaml")
    assert (done.code, done.out) == (1, "")
    assert "found a device or a pipe; save it in a file, or import it as -, standard input" in done.err


def test_a_model_on_very_many_ranks_is_told_without_being_built(hosim, tmp_path, monkeypatch):
    monkeypatch.setattr(imported, "build_job", None)
    config = {**CONFIG, "num_hidden_layers": 126}
    (tmp_path / "config.json").write_text(json.dumps(config))
    spread = ("--phase", "train", "--data", 4_096, "--pipeline", 126)
    done = hosim("import", "hf", tmp_path / "config.json", "-o", tmp_path / "mine.yaml", *spread)
    assert (done.code, done.err) == (0, "")
    assert re.search(r"graph: up to [0-9]+ tensors on each of 516,096 ranks, not built here", done.out)


@pytest.mark.parametrize("options", ["--phase prefill --chunk 7", "--phase decode --new-tokens 1000"])
def test_a_large_model_is_told_without_being_built(hosim, tmp_path, monkeypatch, options):
    """Its ops are counted from two layers; building a million of them takes a minute and a gigabyte."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    build, built = imported.build_job, []
    monkeypatch.setattr(imported, "build_job", lambda work: built.append(work.chunk) or build(work))
    source, out = tmp_path / "config.json", tmp_path / "mine.yaml"
    done = hosim("import", "hf", source, "-o", out, *options.split())
    assert (done.code, done.err) == (0, "")
    ops = int(re.search(r"graph: up to ([0-9,]+) ops, not built here", done.out)[1].replace(",", ""))
    assert built == []
    small = hosim("import", "hf", source, "-o", out, "--force", "--phase", options.split()[1])
    times = 586 if "chunk" in options else 1000
    assert ops == times * int(re.search(r"graph: ([0-9,]+) ops", small.out)[1].replace(",", ""))
    assert built == [None]
