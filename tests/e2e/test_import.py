"""`hosim import`: a file of another kind becomes documents, and what is given to another command says so."""

import json

import pytest


def test_a_graph_is_imported_told_and_checked(hosim, scenario, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = hosim("import", "graph", scenario.with_name("graph.jsonl"), "-o", "mine.yaml")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[1:4] == ["model:", "  weights: 100 kB", "  graph: 13 ops and 13 tensors"]
    assert lines[-3:] == ["written:", "  mine.yaml", "  mine.jsonl"]
    assert hosim("check", "mine.yaml").code == 0
    again = hosim("import", "graph", "mine.jsonl", "-o", "mine.yaml")
    assert (again.code, again.out) == (1, "")
    assert "a file that is there is kept" in again.err
    said = json.loads(hosim("import", "graph", "mine.jsonl", "-o", "mine.yaml", "--force", "--json").out)
    assert said["files"] == ["mine.yaml", "mine.jsonl"]
    assert said["card"]["graph"] == "13 ops and 13 tensors"


@pytest.mark.parametrize("command", ["run", "plan", "serve", "scaling", "robust", "largest", "least"])
def test_a_foreign_file_names_the_import_that_reads_it(hosim, scenario, command):
    done = hosim(command, scenario.with_name("graph.jsonl"))
    assert (done.code, done.out) == (1, "")
    assert "a scenario is a YAML document of hosim, found a graph of hosim" in done.err
    assert "run `hosim import graph " in done.err
    assert len(done.err.splitlines()) == 1


def test_import_lists_its_kinds_and_refuses_others(hosim):
    assert "  graph  a graph of hosim" in hosim("import", "--help").out
    done = hosim("import", "nothing", "x", "-o", "mine.yaml")
    assert done.code == 2
    assert "No such command 'nothing'" in done.err
