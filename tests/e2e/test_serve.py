"""`hosim serve` and `hosim.serve`: requests that come and leave, and what is said when they cannot."""

from __future__ import annotations

import json
import re

import pandas as pd
import pytest
from sensitivity import sensitivity
from serving_cases import DRAWN, write

import simulator as hosim_api
from simulator import catalog
from simulator.errors import ConfigError, InvariantError
from simulator.formats import tables_csv
from simulator.metrics.figures import SERVED, figure_of
from simulator.run.case import Case
from simulator.serving import replays, scheduler
from simulator.serving.scheduler import Block

pytestmark = pytest.mark.usefixtures("pictures_are_blank")
COUNTED = "count: 12\n  arrivals: {interval: 40 us}"
FILED = "  file: some.csv\n  block: 8\n  max_sequences: 4\n  max_tokens: 64\n"


@pytest.fixture
def filed(tmp_path):
    """Write the documents with a file of requests."""

    def made(text):
        (tmp_path / "some.csv").write_text(text)
        return write(tmp_path, requests=FILED)

    return made


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """Both rows of the toy as it is, for all that only read them."""
    return hosim_api.serve(write(tmp_path_factory.mktemp("toy")))


@pytest.fixture(scope="module")
def static(tmp_path_factory):
    """The planned row alone."""
    return hosim_api.serve(write(tmp_path_factory.mktemp("static")), policies=["static"])


def test_there_is_a_line_for_each_policy_and_sentences_about_them(hosim, tmp_path):
    done = hosim("serve", write(tmp_path))
    assert done.code == 0
    cards, *blocks = done.out.split("\n\n")
    assert [line.split(":")[0] for line in cards.splitlines()] == ["model", "machine", "software"]
    assert "arithmetic" in cards
    assert "TFLOP/s" in blocks[1]
    assert "MFU" in blocks[1]
    assert [block.split()[0] for block in blocks[:4]] == ["policy"] * 4
    assert [line[:9].strip() for line in blocks[0].splitlines()] == ["policy", "static", "on demand"]
    assert "12 of 12" in blocks[0]
    assert "static: half of the requests have their first token within " in blocks[4]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_and_another_one_others(hosim, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    path = write(folder)
    for name in ("one", "two"):  # the page says in which folder the results were written
        (tmp_path / name).mkdir()
        done = hosim("serve", path, "--out", tmp_path / name / "out")
        assert done.code == 0
    path.write_text(path.read_text() + "seed: 7\n")
    other = hosim_api.serve(path)
    files = {p.name for p in (tmp_path / "one" / "out").iterdir()}
    assert files == set(json.loads((tmp_path / "one" / "out" / "summary.json").read_text())["files"])
    assert {"requests.csv", "iterations.csv", "serve.png", "serve.svg", "report.html"} <= files
    one, two = ({n: (tmp_path / name / "out" / n).read_bytes() for n in files} for name in ("one", "two"))
    assert one == two
    assert one["requests.csv"] != other.requests.to_csv(index=False, lineterminator="\n").encode()
    assert done.out.startswith(hosim("serve", tmp_path / "one" / "out" / "scenario.yaml").out)


def test_the_tables_add_up(static):
    found = static
    (row,) = found.rows
    hits = [row[f"hit_{tier}_fraction"] for tier in ("hbm", "ddr", "pool")]
    assert row["computed_fraction"] + sum(hits) == pytest.approx(1)
    ran = found.iterations[found.iterations["held_blocks"] > 0]
    assert row["busy_ns"] == ran["took_ns"].sum()
    assert row["tflops"] == pytest.approx(ran["flops"].sum() / row["busy_ns"] / 1e3)
    assert row["mfu"] == pytest.approx(row["tflops"] / 1), "the box has a peak of 1 TFLOP/s"
    waits = sum(row[key] for key in row if key.startswith("wait_")) + row["drain_ns"]
    assert row["stall_fraction"] * row["busy_ns"] == pytest.approx(waits)
    for link in ("d2h", "h2d", "h2p", "p2h"):
        assert row[f"moved_{link}_bytes"] == found.iterations[f"moved_{link}_bytes"].sum()
    loaded = found.requests["hit_ddr_tokens"].sum() + found.requests["hit_pool_tokens"].sum()
    assert row["moved_h2d_bytes"] == loaded * 2 * 2 * 2 * 16 * 2
    assert row["ttft_p50_ns"] == sorted(found.requests["ttft_ns"])[5]


@pytest.mark.slow
def test_a_row_that_breaks_a_law_fails_alone(hosim, toy, tmp_path, monkeypatch):
    """One iteration of `static` is refused by the referee: the other row is as it was."""
    path, checked = write(tmp_path), replays.checked

    def refusing(case, label, plans, progress=None):
        if label == "static":
            raise InvariantError("trace", "a law", "none", "report this")
        return checked(case, label, plans, progress)

    monkeypatch.setattr(replays, "checked", refusing)
    failed, other = hosim_api.serve(path).rows
    assert (failed["status"], failed["why"]) == ("failed", "trace: a law, found none; report this")
    assert other == toy.rows[1]
    done = hosim("serve", path)
    assert "static fails: trace: a law" in done.out
    assert (done.code, done.err) == (1, "hosim: static fails: trace: a law, found none; report this\n")
    assert hosim("serve", path, "--policy", "static").err.startswith(
        "hosim: no row ran to its end, all are failed; trace"
    )


def test_a_file_of_requests_is_read_and_travels_with_the_results(hosim, filed, tmp_path):
    path = filed("arrival,prompt,output,prefix,prefix_tokens\n0,30,2,a,24\n0.001,30,2,a,24\n0.002,12,1,,\n")
    out = tmp_path / "out"
    first = hosim("serve", path, "--policy", "static", "--out", out)
    assert first.code == 0
    found = pd.read_csv(out / "requests.csv")
    assert list(found["arrival_ns"]) == [0, 1_000_000, 2_000_000]
    assert list(found["hit_hbm_tokens"]) == [0, 24, 0]
    assert hosim("serve", out / "scenario.yaml", "--policy", "static").out == first.out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("arrival,prompt\n0,3\n", "some.csv:1: the first line names arrival,prompt,output or TIMESTAMP,"),
        ("", "some.csv:1: the first line names"),
        ("arrival,prompt,output\n", "has some that add a token, found none"),
        ("arrival,prompt,output\n0,3\n", "some.csv:2: a line has 3 fields, found 2"),
        ("arrival,prompt,output\n0,3,1\nsoon,3,1\n", "some.csv:3: arrival is a number of seconds from 0"),
        ("arrival,prompt,output\n-1,3,1\n", "some.csv:2: arrival is a number of seconds from 0"),
        ("arrival,prompt,output\n0,0,1\n", "a file of requests has some that add a token, found none"),
        ("arrival,prompt,output\n0,3,x\n", "some.csv:2: output is a whole number from 0"),
        ("arrival,prompt,output,prefix,prefix_tokens\n0,3,1,a,5\n", "or of prompt and answer, found 5 of 4 tokens"),
        ("arrival,prompt,output\n0,30,1\n0,900,30\n", "900 and 30 tokens, 240 kB, where 32.8 kB are left"),
    ],
)
def test_a_wrong_file_is_one_message(text, said, hosim, filed):
    done = hosim("serve", filed(text))
    assert (done.code, done.out) == (1, "")
    assert said in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  count: 12\n", "", "requests come from a file, or are drawn, found no count"),
        ("  count: 12\n", "  count: 12\n  file: x.csv\n", "a file states arrivals, lengths"),
        ("tokens: 24", "tokens: 41", "a prefix is a part of the mean prompt, found 41 of 40 tokens"),
        ("max_tokens: 64", "max_tokens: 4", "has room for one of a prompt, found 4 sequences and 4 tokens"),
        ("interval: 40 us", "interval: 40", "a time is a number and a unit"),
        ("number: 2,", "number: 100001,", "prefixes.number: input should be less than or equal to 100000"),
        ("hbm: 32 KiB", "hbm: 1 GB", "KV blocks fit beside weights and iterations in hbm"),
        ("hbm: 32 KiB, ddr: 64 KiB", "ddr: 64 KiB, hbm: 32 KiB", "from the compute tier down, found hbm after ddr"),
        ("ddr: 64 KiB", "ddt: 64 KiB", "kv_tiers names tiers of the machine, found 'ddt'"),
        ("phase: requests", "phase: decode", "requests is for phase requests, found it with phase decode"),
        ("  count: 12\n", "  count: 12\n  clients: {number: 2}\n", "clients set the arrivals and the"),
        ("  count: 12\n", "  clients: {number: 2}\n", "the arrivals and the number of requests, found arrivals"),
        (COUNTED, "clients: {number: 2, think: 1 s}", "clients think between rounds, found one round"),
        (COUNTED, "clients: {number: 2, barrier: true}", "a barrier stands between rounds, found one round"),
        (COUNTED, "clients: {number: 2, order: random}", "fewer than all clients may send, found a place for each"),
        (COUNTED, "clients: {number: 2, in_flight: 3}", "client has at most one request in flight, found 3 of 2"),
        (COUNTED, "clients: {number: 900, rounds: 900}", "clients send at most 100,000 requests, found 900 clients"),
        ("block: 8", "block: 8\n  loads: soon", "should be 'by_layer' or 'before_admission', found 'soon'"),
        ("block: 8", "block: 8\n  queued_blocks: 3\n  loads: before_admission", "only loads by layer wait"),
        ("hbm: 32 KiB", "hbm: {room: 32 KiB, write: through}", "kv_tiers.hbm.write: write, uses and content are"),
        ("ddr: 64 KiB", "ddr: {room: 1 KiB, uses: 1, write: through}", "have room for a block, found ddr, 1.02 kB"),
        ("ddr: 64 KiB", "ddr: {write: through, content: exclusive}", "an exclusive tier has no block that the"),
        ("ddr: 64 KiB", "ddr: {uses: 2}", "counted for a tier that is written through, found write: back"),
        ("ddr: 64 KiB", "ddr: {write: up}", "kv_tiers.ddr.write: input should be 'back' or 'through', found 'up'"),
        ("ddr: 64 KiB", "ddr: {rom: 64 KiB}", "found 'rom'; use one of room, write, uses, content (did"),
    ],
)  # fmt: skip
def test_a_wrong_document_is_one_message(old, new, said, hosim, tmp_path):
    path = write(tmp_path)
    for file in (path, tmp_path / "toy.yaml"):
        file.write_text(file.read_text().replace(old, new))
    done = hosim("serve", path)
    assert (done.code, done.out) == (1, "")
    assert said in done.err


def test_without_a_scenario_a_workload_is_served_on_a_machine_and_what_is_short_is_said(hosim, tmp_path):
    write(tmp_path)
    box, toy = tmp_path / "box.yaml", tmp_path / "toy.yaml"
    (row,) = hosim_api.serve(hardware=box, workload=toy, policies=["static"]).rows
    assert (row["policy"], row["finished"]) == ("static", 12)
    small = hosim("serve", "--hardware", box, "--workload", toy, "--set", "tiers.hbm.capacity=1 kB")
    (least,) = re.findall(r"short by .*; raise tiers\.hbm\.capacity to ([\d,]+) B, lower max_tokens", small.err)
    enough = int(least.replace(",", ""))
    asked = {"hardware": box, "workload": toy, "policies": ["resident"]}
    with pytest.raises(ConfigError, match="short by 1 B"):
        hosim_api.serve(**asked, set={"tiers.hbm.capacity": f"{enough - 1} B"})
    assert hosim_api.serve(**asked, set={"tiers.hbm.capacity": f"{enough} B"}).rows[0]["status"] == "ok"
    with pytest.raises(ConfigError, match="say either scenario, or hardware and workload"):
        hosim_api.serve(hardware=box)


def test_what_is_read_already_is_served_as_it_is(static, tmp_path):
    read = catalog.resolve(write(tmp_path))
    assert hosim_api.serve(read, policies=["static"]).rows == static.rows
    with pytest.raises(ConfigError, match="found scenario and hardware and workload"):
        hosim_api.serve(read, hardware="box", workload="toy")
    with pytest.raises(ConfigError, match="a loaded document does not change"):
        hosim_api.serve(read, set={"links.*.bandwidth": "1 GB/s"})


def test_expectations_are_about_columns_of_this_table(hosim, tmp_path):
    path = write(tmp_path)
    text = path.read_text()
    for expected, code, said in (
        ("{row: static, column: ttft_p50_ns, at_most: 1 s}", 0, ""),
        ("{row: static, column: ttft_p50_ns, at_most: 1 us}", 1, "static: ttft_p50_ns must be at most 1.00 us, found "),
        (
            "{row: static, column: step_ns, at_most: 1 us}",
            1,
            "names a column of the summary, found 'step_ns'",
        ),
        ("{row: static, column: status, equals: okay}", 1, "status is a word that rows have, found 'okay'"),
        ("{row: static, faster_than: on demand}", 1, "an expectation of a served row has no faster_than, found one"),
    ):
        path.write_text(f"{text}expect:\n  - {expected}\n")
        done = hosim("serve", path, "--policy", "static")
        assert done.code == code
        assert said in done.err


def test_what_is_expected_of_it_is_validated_too(static, tmp_path):
    path = write(tmp_path)
    path.write_text(
        f"{path.read_text()}expect:\n  - {{row: static, column: ttft_p50_ns, printed: 10 s, kind: shown, why: first}}\n"
    )
    nominal, slower = (hosim_api.validate([path], scale=scale) for scale in ({}, {"compute.peak.bf16": 0.001}))
    (served,) = static.rows
    assert nominal.rows[0]["error"] == pytest.approx(served["ttft_p50_ns"] / 10e9 - 1)
    assert slower.rows[0]["error"] > nominal.rows[0]["error"]


@pytest.mark.slow
def test_a_claim_about_what_is_served_is_judged_with_the_values_that_vary(tmp_path):
    path = write(tmp_path, kv_tiers="hbm: 64 KiB")
    field = "workload.requests.prompt.mean"
    path.write_text(
        f"{path.read_text()}expect:\n  - {{row: static, column: ttft_p50_ns, printed: 10 ms, figure: first}}\n"
        "claim: {sentence: s, source: s}\n"
    )
    path.with_suffix(".open.yaml").write_text(
        f"unstated: [{{parameter: prompt, fields: [{field}], from: 40, to: 80, multiple_of: 40, why: a guess}}]\n"
    )
    short, long = sensitivity([path]).tables["points"]
    assert (short["value"], long["value"]) == (40, 80)
    assert short["error"] < long["error"]


def test_other_workloads_are_run_and_these_are_served(hosim, tmp_path, scenario):
    assert "use hosim run" in hosim("serve", scenario).err
    assert "run hosim serve" in hosim("run", write(tmp_path)).err


def test_a_scenario_of_requests_is_checked_without_running(hosim, tmp_path):
    path = write(tmp_path)
    assert hosim("check", path).out == f"{path}: scenario, 2 rows, 12 requests, 3 figures without a source: ok\n"


def test_a_workload_of_requests_is_checked_with_its_file(hosim, filed, tmp_path):
    filed("arrival,prompt,output\n0,3,1\n5,3,1\n")
    assert hosim("check", tmp_path / "toy.yaml").out == f"{tmp_path / 'toy.yaml'}: workload, 2 requests: ok\n"
    (tmp_path / "some.csv").write_bytes(b"\xff\n")
    done = hosim("check", tmp_path / "toy.yaml")
    assert (done.code, done.out) == (1, "")
    assert "some.csv:1: a table can be read, found 'utf-8' codec" in done.err
    (tmp_path / "some.csv").unlink()
    assert "some.csv: an input is a file, found no such file" in hosim("check", tmp_path / "toy.yaml").err


def test_a_queue_is_told_though_all_are_served(hosim, tmp_path):
    fast = DRAWN.replace("count: 12", "count: 60").replace("mean: 40, spread: 0.5", "mean: 40")
    fast = fast.replace("40 us", "20 us")
    done = hosim("serve", write(tmp_path, requests=fast), "--policy", "static")
    assert done.code == 0
    assert "60 of 60" in done.out
    assert " of 60 requests waited when the last one came (in a second " in done.out


def test_a_rate_that_never_drains_is_said_and_ends(hosim, tmp_path):
    fast = (
        DRAWN.replace("count: 12", "count: 400").replace("40 us", "2 us").replace("mean: 40, spread: 0.5", "mean: 40")
    )
    done = hosim("serve", write(tmp_path, requests=fast), "--policy", "static")
    assert done.code == 1
    assert "overloaded" in done.out.splitlines()[5]
    assert " requests waited when the last one came." in done.out
    assert "static is overloaded: " in done.out


def crowd(number):
    """So many requests at once, of mixed lengths."""
    mixed = DRAWN.replace("mean: 40, spread: 0.5", "mean: 40, spread: 0.3")
    return mixed.replace("count: 12", f"count: {number}").replace("40 us", "0 s")


def test_a_crowd_is_served_and_held_against_no_bound(tmp_path, monkeypatch):
    """What no plan can beat takes longer to find than a replay, and nothing that is told here asks for it."""

    def asked(*_, **__):
        raise LookupError("a bound")

    for name in ("bound", "least_peak_bytes"):
        monkeypatch.setattr(Case, name, asked)
    (row,) = hosim_api.serve(write(tmp_path, requests=crowd(40)), policies=["static"]).rows
    assert (row["status"], row["finished"]) == ("ok", 40)


LONG = """\
  count: 6
  arrivals: {interval: 0 s}
  prompt: {mean: 8}
  output: {mean: 400}
  block: 8
  max_sequences: 1
  max_tokens: 64
"""


def test_iterations_that_are_alike_are_replayed_once(tmp_path):
    """Long answers, one after another."""
    (row,) = hosim_api.serve(write(tmp_path, requests=LONG, kv_tiers="hbm: 160 KiB"), policies=["static"]).rows
    assert (row["status"], row["finished"], row["iterations"]) == ("ok", 6, 2_400)
    assert row["replayed"] < 150


def test_a_request_that_has_no_room_yet_costs_no_more_the_longer_it_is(tmp_path, monkeypatch):
    """Its private blocks are named when it leaves, those that stay cached and the rest, not while it waits or runs."""
    named = []
    monkeypatch.setattr(scheduler, "Block", lambda *about: named.append(about) or Block(*about))
    requests = LONG.replace("max_sequences: 1", "max_sequences: 2")
    row = hosim_api.serve(write(tmp_path, requests=requests, kv_tiers="hbm: 160 KiB"), policies=["static"]).rows[0]
    assert row["iterations"] > 6 * 408 // 8
    assert len(named) == 6 * 2


def test_a_row_tells_how_far_it_is(tmp_path):
    told = []
    hosim_api.serve(write(tmp_path), policies=["static"], progress=lambda *args: told.append(args))
    assert told[0][:2] == ("static at iteration 1", 0)
    assert told[-1][1:] == (12, 12)


def test_what_a_file_has_without_an_output_token_is_counted(hosim, filed):
    done = hosim("serve", filed("arrival,prompt,output\n0,30,1\n1,12,0\n2,12,0\n"), "--policy", "static")
    assert "1 of 1" in done.out
    assert "2 requests of the file have no prompt or no output token, and are left out." in done.out


def test_a_run_of_a_long_file_says_how_many_it_serves(hosim, filed, monkeypatch):
    monkeypatch.setattr(tables_csv, "MOST", 3)
    lines = [f"{at},12,1\n" for at in (3, 0, 2, 1)]
    path = filed("arrival,prompt,output\n" + "".join(lines))
    done = hosim("serve", path)
    assert (done.code, done.out) == (1, "")
    assert "some.csv:5: a run serves at most 3 requests, found a file with more; say in the workload how" in done.err
    workload = path.parent / "toy.yaml"
    workload.write_text(workload.read_text().replace("  file:", "  count: 2\n  file:"))
    assert list(hosim_api.serve(path).requests["arrival_ns"]) == [0, 10**9] * 2


def test_reading_a_long_file_tells_how_far_it_is(filed, monkeypatch):
    monkeypatch.setattr(tables_csv, "_SELDOM", 2)
    told = []
    path = filed("arrival,prompt,output\n0,12,1\n1,12,1\n2,12,1\n")
    hosim_api.serve(path, policies=["static"], progress=lambda *args: told.append(args))
    assert told[:2] == [("line 2 of some.csv", 0, 0), ("line 4 of some.csv", 0, 0)]


@pytest.mark.slow
def test_the_shipped_scenario_answers_its_question():
    (row,) = hosim_api.serve("kv_reuse_h100", policies=["static"]).rows
    none, half, most = (row[f"read_{share}_hit_p50_ns"] for share in (0, 50, 100))
    assert most < half < none
    assert none / most > 5


def test_latencies_are_held_against_objectives(static, tmp_path):
    path, (free,) = write(tmp_path), static.rows
    assert free["goodput_fraction"] is free["goodput_per_s"] is None
    path.write_text(f"{path.read_text()}slo: {{ttft: {free['ttft_p50_ns']} ns, e2e: {free['e2e_p90_ns']} ns}}\n")
    found = hosim_api.serve(path, policies=["static"])
    (row,), requests = found.rows, found.requests
    met = (requests["ttft_ns"] <= free["ttft_p50_ns"]) & (requests["e2e_ns"] <= free["e2e_p90_ns"])
    assert 0 < met.sum() < len(requests)
    assert row["goodput_fraction"] == met.sum() / len(requests)
    assert row["goodput_per_s"] == pytest.approx(met.sum() * 1e9 / row["end_ns"])
    tokens = requests["output_tokens"].sum()
    assert row["tokens_per_s"] == pytest.approx(tokens * 1e9 / row["end_ns"])
    assert row["total_tokens_per_s"] == pytest.approx((tokens + requests["prompt_tokens"].sum()) * 1e9 / row["end_ns"])


def test_every_column_of_a_summary_is_registered(static):
    (row,) = static.rows
    assert [column for column in row if not figure_of(column).meaning] == ["policy", "why", "busy_ns"]
    assert all(any(figure.place_in(column) is not None for column in row) for figure in SERVED)


@pytest.mark.slow
def test_an_expectation_may_be_about_goodput(hosim, tmp_path):
    path = write(tmp_path)
    path.write_text(
        f"{path.read_text()}slo: {{tpot: 1 s}}\n"
        "expect: [{row: static, column: goodput_fraction, at_least: 1, why: a token takes less}]\n"
    )
    assert hosim("serve", path, "--policy", "static").code == 0
    path.write_text(path.read_text().replace("tpot: 1 s", "tpot: 1 ns"))
    done = hosim("serve", path, "--policy", "static")
    assert done.code == 1
    assert "goodput_fraction must be at least 100 %, found 8.3 %" in done.err


@pytest.mark.parametrize(("slo", "said"), [("{}", "names a latency"), ("{ttft: 3}", "a time is a number and a unit")])
def test_wrong_objectives_are_one_message(slo, said, hosim, tmp_path):
    path = write(tmp_path)
    path.write_text(f"{path.read_text()}slo: {slo}\n")
    done = hosim("serve", path)
    assert (done.code, done.out) == (1, "")
    assert said in done.err
