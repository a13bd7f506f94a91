"""Several ranks from the command line: what a folder holds, and one clear message for ranks that do not meet."""

import gzip
import json
import re

import pytest

SCENARIO = """\
schema: hosim/scenario/1
name: ranks
title: ranks of a graph file
hardware: {hardware}
workload: workload.yaml
policies: [resident]
"""
WORKLOAD = "schema: hosim/workload/1\nname: ranks\ntitle: ranks of a graph file\ngraph: graph.jsonl\n"
ALL, NEXT = '{"group":"all","ranks":[[0,1,2,3]]}', '{"group":"next","ranks":[[0,1],[1,0]]}'


def op(name, does="", group="all", size=4000):
    about = {"does": does, "group": group, "size_bytes": size, "algorithm": "auto"}
    return json.dumps({"op": name, "writes": ["x"], **({"collective": about} if does else {"duration_ns": 500})})


@pytest.fixture
def ranks(tmp_path):
    """Write a scenario of a graph with these lines."""

    def write(*lines, hardware="cloudmatrix384_node"):
        folder = tmp_path / "inputs"
        folder.mkdir()
        tensor = '{"tensor":"x","size_bytes":4000,"persistent":true}'
        text = ['{"schema":"hosim-graph/1","name":"g"}', tensor, *lines]
        (folder / "graph.jsonl").write_text("\n".join(text) + "\n")
        (folder / "workload.yaml").write_text(WORKLOAD)
        (folder / "scenario.yaml").write_text(SCENARIO.format(hardware=hardware))
        return folder / "scenario.yaml"

    return write


def test_a_run_of_ranks_fills_a_folder(hosim, ranks, tmp_path):
    scenario = ranks(ALL, op("f"), op("sum", "all_reduce"), op("g"))
    done = hosim("run", scenario, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert re.search(r"the 4 ranks of \w+ compute for", done.out)
    folder = tmp_path / "out" / "resident"
    assert {"timeline.png", "ranks.png", "ranks.csv", "trace.perfetto.json.gz"} <= {p.name for p in folder.iterdir()}
    assert len((folder / "ranks.csv").read_text().splitlines()) == 1 + 4
    events = json.loads(gzip.decompress((folder / "trace.perfetto.json.gz").read_bytes()))["traceEvents"]
    assert "resident x4, rank" in {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert "<h3>The ranks</h3>" in (tmp_path / "out" / "report.html").read_text()


WRONG = {
    "a message that nobody takes": (
        (NEXT, op("give", "send", "next")),
        ["group 'next': members meet as often as one another", "op 'give' of rank 0", "and nothing of rank 1"],
    ),
    "a message of another size": (
        (NEXT, op("give", "send", "next", 8), op("take", "recv", "next", 9)),
        ["and agree on kind, size and algorithm", "op 'give' of rank 0 (send of 8 B, auto)", "9 B"],
    ),
    "messages in a circle": (
        (NEXT, op("give", "send", "next"), op("take", "recv", "next")),
        ["wait for one another: rank 0 at op 'give' (group 'next') for rank 1, rank 1 at op 'give' (group 'next')"],
    ),
    "a rank outside of the groups": (
        ('{"group":"some","ranks":[[0,2]]}', op("sum", "all_reduce", "some")),
        ["group 'some': a rank that comes to a group is a member, found op 'sum' of rank 1"],
    ),
    "more ranks than devices": (
        ('{"group":"all","ranks":[[0,16]]}', op("sum", "all_reduce")),
        ["each rank has a device of its own, found 17 ranks for 16", "raise topology.nodes"],
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_ranks_that_do_not_meet_are_one_message(case, hosim, ranks, tmp_path):
    lines, fragments = WRONG[case]
    done = hosim("run", ranks(*lines), "--out", tmp_path / "out")
    assert done.code == 1
    assert done.err.count("hosim: ") == 1
    assert "Traceback" not in done.err
    for fragment in fragments:
        assert fragment in done.err, done.err
    left = {"inputs", "out"} if case == "messages in a circle" else {"inputs"}
    assert {p.name for p in tmp_path.iterdir()} == left, "only what plans are to blame for is found row by row"
