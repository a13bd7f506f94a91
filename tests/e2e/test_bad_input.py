"""Bad input: one clear message with where, what must hold, what was found and what to do; exit code 1; nothing left."""

import json
import os
import re
import subprocess
from html import unescape

import chain
import pytest

from simulator.engine.reference.ledger import Ledger

pytestmark = pytest.mark.usefixtures("pictures_are_blank")

DOCUMENTS = {
    "a path that none is": (
        ("workload", "graph.jsonl", r'"graph\0.jsonl"'),
        None,
        [r"'\x00'", "no control characters"],
    ),
    "a title that rings": (("scenario", "six layers", r'"\a" # '), None, ["scenario.yaml:3", r"'\x07'"]),
    "a missing scenario": (None, "llama3_8b_train", ["'llama3_8b_train'", "did you mean 'llama3_8b_train_"]),
    "a folder": (None, "inputs", ["name a file in it: 'inputs/scenario.yaml'"]),
    "a missing file": (None, "nowhere.yaml", ["nowhere.yaml", "no such file"]),
    "broken YAML": (("scenario", "policies:", "policies: ["), None, ["scenario.yaml:", "well-formed YAML"]),
    "a key twice": (("scenario", "budget:", "budget: 1 MB\nbudget:"), None, ["scenario.yaml:7", "'budget' again"]),
    "an unknown key": (("scenario", "budget:", "bugdet:"), None, ["'bugdet'", "did you mean 'budget'?"]),
    "an unknown machine": (("scenario", "machine.yaml", "h100"), None, ["'h100'", "did you mean 'h100_sxm'?"]),
    "an unknown policy": (
        ("scenario", "- static", "- statik"),
        None,
        ["scenario.yaml:10, policies.2.policy: ", "'statik'", "did you mean 'static'?"],
    ),
    "an unknown option": (
        ("scenario", "evict: lru", "evikt: lru"),
        None,
        ["scenario.yaml:9, policies.1.options.evikt: ", "'evikt'", "did you mean 'evict'?"],
    ),
    "a wrong option": (
        ("scenario", "evict: lru", "evict: mru"),
        None,
        ["scenario.yaml:9, policies.1.options.evict: ", "'mru'", "lru"],
    ),
    "an unknown home": (("scenario", "budget:", "homes: {weight: dram}\nbudget:"), None, ["'dram'", "hbm, ddr, free"]),
    "a home for nobody": (
        ("scenario", "budget:", "homes: {'L0*': ddr}\nbudget:"),
        None,
        ["scenario.yaml:6, homes.L0*: ", "'L0*'", "'w'"],
    ),
    "a bare number": (("scenario", "4.3 MB", "4300000"), None, ["scenario.yaml:6, budget", "4300000"]),
    "a wrong unit": (("machine", "4 GB/s", "4 GBps"), None, ["machine.yaml:11", "'4 GBps'"]),
    "a wrong dimension": (("machine", "100 MB", "100 us"), None, ["machine.yaml:8", "'100 us'"]),
    "a negative size": (("machine", "100 MB", "-100 MB"), None, ["machine.yaml:8", "'-100 MB'"]),
    "a tier no link reaches": (("machine", "links:", "  ssd: {capacity: 1 TB}\nlinks:"), None, ["'ssd'"]),
    "a budget beyond the tier": (("scenario", "4.3 MB", "4.3 GB"), None, ["4.30 GB", "100 MB"]),
}


@pytest.mark.parametrize("case", DOCUMENTS)
def test_a_bad_document(case, hosim, scenario, tmp_path, monkeypatch):
    change, named, fragments = DOCUMENTS[case]
    monkeypatch.chdir(tmp_path)
    if change is not None:
        file = scenario.parent / f"{change[0]}.yaml"
        text = file.read_text()
        assert change[1] in text
        file.write_text(text.replace(change[1], change[2], 1))
    _refused(hosim("run", named or scenario, "--out", "out"), fragments, tmp_path)


RUN = "a run computes at most 4,000,000 ops"
MODEL = "model: {layers: 2, hidden: 8, heads: 4, kv_heads: 2, ffn: 16, vocabulary: 32}"
SPARSE = (
    "phase: decode\nexperts: each\nmodel: {family: decoder, layers: 3000, hidden: 8, vocabulary: 9, "
    "attention: {kind: gqa, heads: 4, kv_heads: 2, head_size: 2}, "
    "feed_forward: {kind: experts, routed: 1500, top_k: 2, width: 4}}"
)
HUGE = {
    "many layers": ("layers: 2", "layers: 1000000000000", "model.layers: input should be less than or equal to 10000"),
    "many steps": ("steps: 2", "steps: 100000000", RUN),
    "more steps": ("steps: 2", "steps: 4000000000000", "steps: input should be less than or equal to 1000000000"),
    "too many together": ("steps: 2\n" + MODEL, "steps: 10000\n" + MODEL.replace("layers: 2", "layers: 90"), RUN),
    "many tokens": (MODEL, SPARSE.replace("1500", "6").replace("3000", "9") + "\nnew_tokens: 999999999", RUN),
    "many experts": (MODEL, SPARSE, "a graph has at most 4,000,000 tensors"),
    "many senders": (
        MODEL,
        f"phase: serve\npools: {{prefill: 1000000, decode: 1, new_tokens: 1}}\n{MODEL}",
        "pools.prefill: a decode rank serves at most 1,000 prefill ranks",
    ),
    "many copies": (MODEL, f"{MODEL}\nreplicas: 100000000", "replicas: input should be less than or equal to 1048576"),
}


@pytest.mark.parametrize("case", HUGE)
def test_what_memory_cannot_hold_is_refused_before_it_is_built(case, hosim, scenario, tmp_path):
    old, new, fragment = HUGE[case]
    text = f"schema: hosim/workload/1\nname: job\nsteps: 2\n{MODEL}\n"
    made = text.replace(old, new)
    keys = [line.partition(":")[0] for line in made.splitlines()[2:] if not line.startswith("phase")]
    (scenario.parent / "workload.yaml").write_text(
        made + f"assumed: {{{', '.join(f'{key}: a toy' for key in keys)}}}\n"
    )
    for command in (("run", scenario, "--out", tmp_path / "out"), ("check", scenario.parent / "workload.yaml")):
        _refused(hosim(*command), [fragment], tmp_path)


GRAPHS = {
    "a cycle": ({"op": "fwd/0", "reads": ["g0"], "writes": ["a0"]}, ["'fwd/0'", "'g0'", "cycle"]),
    "a dangling tensor": ({"op": "fwd/0", "reads": ["lost"], "writes": ["a0"]}, ["'fwd/0'", "'lost'"]),
    "a negative size": ({"tensor": "a0", "size_bytes": -1}, ["'a0'", "-1"]),
    "an unknown key": ({"op": "fwd/0", "flop": 3}, ["'flop'", "flops"]),
}


@pytest.mark.parametrize("case", GRAPHS)
def test_a_bad_graph(case, hosim, scenario, tmp_path):
    bad, fragments = GRAPHS[case]
    name = bad.get("op") or bad.get("tensor")
    lines = [bad if name in (line.get("op"), line.get("tensor")) else line for line in chain.graph_lines()]
    chain.write_lines(scenario.parent / "graph.jsonl", lines)
    number = lines.index(bad) + 1
    _refused(hosim("run", scenario, "--out", tmp_path / "out"), [f"graph.jsonl:{number}", *fragments], tmp_path)


HIDDEN = {
    "an escape": ("fwd/0", "\x1b]0;owned\x07\x1b[31m", r"'\x1b]0;owned\x07\x1b[31m'"),
    "a line's end": ("fwd/0", "fine\nok: fwd/0", r"'fine\nok: fwd/0'"),
    "another direction": ("a0", "a\u202e0", r"'a\u202e0'"),
    "a formula": ("a0", "=HYPERLINK(0)", "'=HYPERLINK(0)'"),
    "ten megabytes": ("a0", "a" * 10_000_000, "found one of 10,000,000 characters"),
}


@pytest.mark.parametrize("case", HIDDEN)
def test_a_name_that_a_terminal_or_a_table_would_act_upon(case, hosim, scenario, tmp_path):
    old, new, shown = HIDDEN[case]
    text = "".join(f"{json.dumps(line)}\n" for line in chain.graph_lines())
    (scenario.parent / "graph.jsonl").write_text(text.replace(json.dumps(old), json.dumps(new)))
    done = hosim("run", scenario, "--out", tmp_path / "out")
    _refused(done, [shown], tmp_path)
    assert done.err.count("\n") == 1
    assert done.err[:-1].isprintable()
    assert len(done.err) < 2000


def test_dimensions_of_a_model_are_no_graph(hosim, scenario, tmp_path):
    text = '{\n"architectures": ["LlamaForCausalLM"],\n"hidden_size": 4096,\n"num_hidden_layers": 32\n}\n'
    (scenario.parent / "config.json").write_text(text)
    workload = scenario.parent / "workload.yaml"
    workload.write_text(workload.read_text().replace("graph.jsonl", "config.json"))
    said = ["config.json:1: ", "but the keys architectures, hidden_size, num_hidden_layers", "run `hosim import hf"]
    for command in (("run", scenario, "--out", tmp_path / "out"), ("check", scenario), ("check", workload)):
        _refused(hosim(*command), said, tmp_path)


LATE = {
    "an odd point": (
        "sweep: {workload.steps: [1, nan]}",
        "scenario.yaml:13, sweep.workload.steps (workload.steps: nan): this is a whole number",
    ),
    "no number": (
        "expect: [{row: static, column: gap_fraction, at_most: NaN}]",
        "is a number, or a range from less to more, found 'NaN'",
    ),
}


@pytest.mark.parametrize("case", LATE)
def test_check_reads_what_only_other_commands_use(case, hosim, scenario, tmp_path):
    added, said = LATE[case]
    scenario.write_text(f"{scenario.read_text()}{added}\n")
    _refused(hosim("check", scenario), [said], tmp_path)


def test_a_plan_that_reads_what_it_detached(hosim, scenario, tmp_path):
    """Its row fails; the others are as without it."""
    chain.write_lines(scenario.parent / "mine.jsonl", chain.plan_lines(detach_early=True))
    scenario.write_text(scenario.read_text().replace("- static", "- mine.jsonl"))
    done = hosim("run", scenario, "--out", tmp_path / "out")
    assert done.code == 1
    assert done.err.count("hosim: ") == 1
    for fragment in ("plan 'mine.jsonl'", "action 2 (detach a0 from hbm)", "'bwd/0' reads later"):
        assert fragment in done.err
    assert re.search(r"reactive +ok +1\.90 ms", done.out)
    assert re.search(r"mine +failed +-", done.out)
    assert (tmp_path / "out" / "report.html").exists()


def test_check_finds_what_run_would_refuse(hosim, scenario):
    chain.write_lines(scenario.parent / "mine.jsonl", chain.plan_lines(detach_early=True))
    text = scenario.read_text()
    scenario.write_text(text.replace("- static", "- mine.jsonl"))
    done = hosim("check", scenario)
    assert done.code == 1
    assert "plan 'mine.jsonl', action 2" in done.err
    scenario.write_text(text + "\nexpect:\n  - {row: static, column: stall, equals: 3}\n")
    for command in ("check", "run"):
        done = hosim(command, scenario)
        assert (done.code, done.out) == (1, "")
        assert (
            "scenario.yaml:15, expect.0.column: an expectation names a column of the summary, found 'stall'" in done.err
        )


def test_what_the_system_refuses_is_one_message(hosim, scenario, tmp_path):
    done = hosim("run", scenario, "--out", tmp_path / ("long" * 100))
    assert done.code == 1
    assert "File name too long" in done.err
    assert "Traceback" not in done.err


def test_a_row_may_be_called_like_a_file_of_the_folder(hosim, scenario, tmp_path):
    text = scenario.read_text().replace("- static", "- {policy: static, label: report.html}")
    scenario.write_text(text)
    assert hosim("run", scenario, "--out", tmp_path / "out").code == 0
    assert (tmp_path / "out" / "report.html").is_file()
    assert (tmp_path / "out" / "report.html-2" / "waits.csv").is_file()


ARGUMENTS = {
    "a change without a value": (["--set", "links.d2h.bandwidth"], ["links.d2h.bandwidth=40 GB/s"]),
    "a change of nothing": (["--set", "links.d2h.bandwith=1 GB/s"], ["did you mean 'bandwidth'?"]),
    "a change to nonsense": (["--set", "links.d2h.bandwidth=fast"], ["'fast'", "33.6 GB/s"]),
    "an unknown row": (["--policy", "sttic"], ["'sttic'", "did you mean 'static'?"]),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_a_bad_argument(case, hosim, scenario, tmp_path):
    arguments, fragments = ARGUMENTS[case]
    _refused(hosim("run", scenario, "--out", tmp_path / "out", *arguments), fragments, tmp_path)


def test_a_folder_that_is_a_file(hosim, scenario, tmp_path):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        done = hosim("run", scenario, "--out", out)
        assert done.code == 1
        assert "a folder of their own" in done.err
    assert (tmp_path / "file").read_text() == "mine"


def test_the_working_directory_is_not_replaced(hosim, scenario, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    done = hosim("run", scenario, "--out", ".")
    assert done.code == 1
    assert "the working directory" in done.err


@pytest.mark.parametrize(
    "arguments", [["runn"], ["run"], ["run", "x", "--colour"], ["schema", "model"], ["list", "machines"], ["check"], []]
)
def test_wrong_usage_is_exit_code_2(arguments, hosim):
    done = hosim(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("Usage: hosim")


def test_a_broken_law_is_one_message_too(hosim, scenario, monkeypatch):
    """A stream that tells of longer waits than it had: the referee finds it, whatever the plan."""
    own = Ledger.write
    monkeypatch.setenv("HOSIM_ENGINE", "simpy")
    monkeypatch.setattr(Ledger, "write", lambda self, compute, start, end, why: own(self, compute, start, end + 1, why))
    done = hosim("run", scenario, "--policy", "reactive")
    assert done.code == 1
    assert done.err.count("hosim: ") == 1
    assert done.err.endswith("; report this: it is a bug of hosim\n")
    assert "Traceback" not in done.err


def _refused(done, fragments, tmp_path):
    assert done.code == 1
    assert done.out == ""
    assert done.err.startswith("hosim: ")
    assert done.err.count("hosim: ") == 1
    assert "; " in done.err
    assert "Traceback" not in done.err
    for fragment in fragments:
        assert fragment in done.err, done.err
    assert {p.name for p in tmp_path.iterdir()} <= {"inputs"}


def test_an_op_of_a_class_that_no_one_knows(hosim, scenario, tmp_path, monkeypatch):
    lines = chain.graph_lines()
    del lines[-1]["duration_ns"]
    lines[-1] |= {"flops": 1000, "op_class": "matmull"}
    chain.write_lines(scenario.with_name("graph.jsonl"), lines)
    monkeypatch.chdir(tmp_path)
    _refused(
        hosim("run", scenario, "--out", "out"), ["op 'update' of class 'matmull'", "did you mean 'matmul'?"], tmp_path
    )


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_names_that_are_not_utf_8_are_read_and_written(hosim, scenario, tmp_path, monkeypatch, command):
    """A name is bytes; the page tells them to a shell, from which the command gives the same again."""
    name = os.fsdecode(b"in\xff'\\.yaml")
    scenario.rename(scenario.with_name(name))
    monkeypatch.chdir(scenario.parent)
    out = os.fsdecode(b"out\xfe")
    more = ["--grid", "workload.steps=1,2", "--workers", "1"] if command == "sweep" else []
    done = hosim(command, name, *more, "--policy", "static", "--out", out)
    assert done.code == 0, done.err
    page = unescape((scenario.parent / out / "report.html").read_text(encoding="utf-8"))
    (line,) = re.findall(rf"hosim {command} [^<]*", page)[:1]
    shell = ["bash", "-c", f"printf '%s\\0' {line.strip()}"]
    words = subprocess.run(shell, check=True, capture_output=True).stdout.split(b"\0")[:-1]
    assert words == [
        os.fsencode(word) for word in ("hosim", command, name, *more[:2], "--policy", "static", "--out", out)
    ]
