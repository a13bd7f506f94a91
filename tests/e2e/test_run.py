"""`hosim run`: what it prints, what it leaves in the folder, and how it ends."""

import csv
import gzip
import json
import multiprocessing
import re
import shutil
import threading
from itertools import pairwise

import chain
import pytest

import simulator as hosim_api
from simulator.catalog import resolve
from simulator.run import run_case
from simulator.run.case import prepare

FILES = {
    "hardware.yaml",
    "scenario.yaml",
    "workload.yaml",
    "graph.jsonl",
    "summary.csv",
    "summary.json",
    "report.html",
    "comparison.png",
    *(
        f"{row}/{name}"
        for row in ("reactive", "static")
        for name in ("spans.csv", "waits.csv", "memory.csv", "plan.jsonl", "timeline.png", "trace.perfetto.json.gz")
    ),
}


@pytest.fixture
def folder(ran):
    return ran


def _events(folder):
    packed = (folder / "static" / "trace.perfetto.json.gz").read_bytes()
    return json.loads(gzip.decompress(packed))["traceEvents"]


def test_the_folder_holds_what_the_readme_says(folder):
    assert {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()} == FILES
    assert [p.name for p in folder.parent.iterdir()] == ["chain"]


def test_summary_json_has_its_schema(folder):
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["schema"] == "hosim-summary/2"
    assert [row["policy"] for row in summary["rows"]] == ["resident", "reactive", "static"]
    assert [row["status"] for row in summary["rows"]] == ["infeasible", "ok", "ok"]
    assert len({tuple(row) for row in summary["rows"]}) == 1, "every row has every column"
    static = summary["rows"][2]
    for column in ("step_ns", "makespan_ns", "compute_ns", "stall_ns", "peak_hbm_bytes", "moved_d2h_bytes", "bound_ns"):
        assert isinstance(static[column], int), column
    waits = [value for name, value in static.items() if name.startswith("wait_")]
    assert sum(waits) == static["stall_ns"] == static["step_ns"] - static["compute_ns"]
    assert set(summary["files"]) == FILES
    assert summary["sentences"][0].startswith("resident does not fit in hbm: 1.90 MB short at op bwd/5")


def test_provenance_names_every_input_and_every_assumption(folder):
    provenance = json.loads((folder / "summary.json").read_text())["provenance"]
    assert provenance["hosim"] == hosim_api.__version__
    assert {entry["kind"] for entry in provenance["inputs"]} == {"scenario", "hardware", "workload", "graph"}
    assert all(re.fullmatch("[0-9a-f]{64}", entry["sha256"]) for entry in provenance["inputs"])
    assert {entry["field"] for entry in provenance["assumed"]} == {"compute", "tiers", "links", "steps", "budget"}
    assert provenance["switches"] == {"copies_wait_for": "start", "collectives": "own_stream"}


def test_what_a_scenario_sets_is_listed_once(tmp_path):
    fit = "{parameter: rate, figure: step, why: for a test}"
    fitted = f"set:\n  links.*.bandwidth: 5 GB/s\nfitted:\n  links.*.bandwidth: {fit}\n"
    results = hosim_api.run(chain.write(tmp_path, scenario=chain.SCENARIO + fitted), policies=["static"])
    why = {"document": "chain", "parameter": "rate", "figure": "step", "why": "for a test"}
    assert results.provenance["fitted"] == [
        {"field": "links.d2h.bandwidth", **why},
        {"field": "links.h2d.bandwidth", **why},
    ]


def test_tables_say_the_same_as_the_summary(folder):
    with (folder / "summary.csv").open() as file:
        static = next(row for row in csv.DictReader(file) if row["policy"] == "static")
    with (folder / "static" / "waits.csv").open() as file:
        stalls = [int(w["end_ns"]) - int(w["start_ns"]) for w in csv.DictReader(file) if w["step"] == "1"]
    with (folder / "static" / "memory.csv").open() as file:
        peak = max(int(change["used_bytes"]) for change in csv.DictReader(file) if change["tier"] == "hbm")
    assert sum(stalls) == int(static["stall_ns"]) > 0
    assert peak == int(static["peak_hbm_bytes"])


def test_perfetto_trace_is_one_thread_per_track_without_overlap(folder):
    events = _events(folder)
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert set(names.values()) == {"steps", "stream 0", "stream 0 stalls", "d2h #0", "h2d #0"}
    slices = sorted((e["tid"], e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X")
    assert {tid for tid, *_ in slices} <= set(names)
    for (tid, _, end), (next_tid, start, _) in pairwise(slices):
        assert tid != next_tid or end <= start + 1e-9
    counters = {e["name"] for e in events if e["ph"] == "C"}
    kinds = {"hbm: weight", "hbm: activation", "hbm: gradient", "ddr: activation"}
    assert counters == {"hbm (budget 4.30 MB)", "ddr (capacity 1.00 GB)", *kinds}
    used = [e["args"]["[B]"] for e in events if e["ph"] == "C" and e["name"] == "hbm (budget 4.30 MB)"]
    assert max(used) == 4_300_000


def test_perfetto_trace_says_the_same_as_the_summary(folder):
    with (folder / "summary.csv").open() as file:
        static = next(row for row in csv.DictReader(file) if row["policy"] == "static")
    slices = [e for e in _events(folder) if e["ph"] == "X"]
    first, last = [(e["ts"], e["ts"] + e["dur"]) for e in slices if e["cat"] == "step"]
    assert first[0] == 0
    assert last == (first[1], pytest.approx(first[1] + int(static["step_ns"]) / 1000))
    stalls = [e for e in slices if e["cat"] == "stall" and e["ts"] >= first[1]]
    assert {e["name"] for e in stalls} <= {"capacity at hbm", "transfer at h2d", "transfer at d2h"}
    assert sum(round(e["dur"] * 1000) for e in stalls) == int(static["stall_ns"]) > 0


def test_report_needs_no_network_and_shows_each_row(folder):
    page = (folder / "report.html").read_text()
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//|@import|url\(""", page)
    assert page.count("data:image/png;base64,") == 3
    for text in ("resident does not fit in hbm", "Ways out", "What a step waits for", "round numbers"):
        assert text in page
    assert not re.search(r"<script[^>]*\ssrc", page), "scripts are on the page"


def test_the_folder_runs_again_with_the_same_numbers(folder):
    first = json.loads((folder / "summary.json").read_text())["rows"]
    again = hosim_api.run(folder / "scenario.yaml")
    assert [again[row["policy"]].summary.get("step_ns") for row in first] == [row["step_ns"] for row in first]


def test_a_written_plan_replays_to_the_same_spans(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    text = (
        (copy / "scenario.yaml")
        .read_text()
        .replace("- policy: static", "- policy: static/plan.jsonl\n  label: replayed")
    )
    assert "replayed" in text
    (copy / "scenario.yaml").write_text(text)
    static, replayed = (hosim_api.run(f / "scenario.yaml")[n] for f, n in ((folder, "static"), (copy, "replayed")))
    assert replayed.spans.equals(static.spans)
    assert replayed.waits.equals(static.waits)


def test_the_table_is_aligned_plain_text_in_a_pipe(hosim, scenario):
    done = hosim("run", scenario)
    assert done.code == 0
    assert done.err == ""
    assert done.out.isascii()
    assert max(map(len, done.out.split("\n\n")[1].splitlines())) <= 100
    header, *rows = done.out.split("\n\n")[1].splitlines()
    for row in rows[1:]:
        assert len(row) == len(header)


def test_set_changes_the_machine_for_this_run(hosim, scenario):
    done = hosim("run", scenario, "--set", "links.*.bandwidth=40 GB/s", "--policy", "static")
    assert done.code == 0
    assert "at the lower bound" in done.out


def test_the_optimum_refuses_what_it_does_not_describe(hosim, scenario):
    done = hosim("run", scenario, "--policy", "optimal", "--set", "links.*.channels=2")
    assert done.code == 1
    assert "one channel and full bandwidth, found 2 channels from hbm to ddr" in done.err


def test_the_optimum_of_several_steps_is_that_of_each(hosim, scenario):
    done = hosim("run", scenario, "--policy", "static", "--policy", "optimal", "--json")
    assert done.code == 0, done.err
    static, optimal = json.loads(done.out)["rows"]
    assert optimal["notes"].startswith("proved optimal")
    assert optimal["bound_ns"] <= optimal["step_ns"] <= static["step_ns"]


def test_the_optimum_of_one_step_is_a_row_like_any_other(hosim, tmp_path):
    one_step = chain.WORKLOAD.replace("steps: 2", "steps: 1").replace(
        "  steps: the first warms up", "  steps: one is enough"
    )
    path = chain.write(tmp_path, workload=one_step, scenario=chain.SCENARIO)
    done = hosim("run", path, "--policy", "static", "--policy", "optimal", "--json")
    assert done.code == 0, done.err
    static, optimal = json.loads(done.out)["rows"]
    assert optimal["notes"].startswith("proved optimal")
    assert optimal["bound_ns"] <= optimal["step_ns"] <= static["step_ns"]
    assert optimal["least_peak_bytes"] <= optimal["peak_hbm_bytes"]


def test_policy_keeps_these_rows_only(hosim, scenario):
    done = hosim("run", scenario, "--policy", "static", "--policy", "offload_saved")
    assert done.code == 0
    assert [line.split()[0] for line in done.out.split("\n\n")[1].splitlines()] == ["policy", "static", "offload_saved"]


def test_an_expectation_that_fails_is_exit_code_1(hosim, tmp_path):
    expect = "expect:\n  - {row: static, at_most: 1.2 ms}\n  - {row: static, column: status, equals: ok}\n"
    path = chain.write(tmp_path, scenario=chain.SCENARIO + expect)
    done = hosim("run", path)
    assert done.code == 1
    assert done.err.splitlines() == ["hosim: expectation fails: static: step_ns must be at most 1.20 ms, found 1.50 ms"]
    changed = hosim("run", path, "--set", "links.*.bandwidth=4 GB/s")
    assert changed.code == 0
    assert "not checked, as" in changed.out


@pytest.mark.slow
def test_the_report_shows_a_claim_and_its_printed_figures_beside_ours(hosim, folder, tmp_path):
    about = "expect:\n  - {row: static, about: 1.5 ms, printed: 1.2 ms, source: table 2, figure: a}\n  - "
    about += "{row: reactive, at_least: 1 ms, printed: 2 ms, figure: b, kind: shown}\n"
    about += "  - {row: static, faster_than: reactive}\n"
    claim = "claim: {sentence: a step takes long, source: a paper}\n"
    done = hosim("run", chain.write(tmp_path, scenario=chain.SCENARIO + claim + about), "--out", tmp_path / "out")
    assert done.code == 0, done.err
    page = (tmp_path / "out" / "report.html").read_text()
    section = page[page.index("<h2>Claim</h2>") : page.index("<h2>Expectations</h2>")]
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", line) for line in section.splitlines() if line.startswith("<tr>")]
    assert cells == [
        ["static", "step_ns", "1.2 ms", "1.50 ms", "+25 %", "predicted", "table 2"],
        ["reactive", "step_ns", "2 ms", "1.90 ms", "-5.0 %", "shown", "a paper"],
    ]
    assert "<p>a step takes long</p>" in section
    assert "<h2>Claim</h2>" not in (folder / "report.html").read_text()


def test_expectations_that_hold_are_counted(hosim, tmp_path):
    expect = "expect:\n  - {row: static, faster_than: reactive}\n  - {row: static, about: 1.5 ms, within: 0.01}\n"
    done = hosim("run", chain.write(tmp_path, scenario=chain.SCENARIO + expect))
    assert done.code == 0
    assert "Expectations of the scenario: 2 of 2 hold." in done.out


def test_a_plan_that_blocks_itself_is_a_row_with_the_reason(hosim, scenario):
    chain.write_lines(scenario.parent / "mine.jsonl", chain.plan_lines())
    scenario.write_text(scenario.read_text().replace("- resident", "- mine.jsonl"))
    done = hosim("run", scenario)
    assert done.code == 0
    assert re.search(r"^mine +blocked", done.out, re.MULTILINE)
    assert "mine blocks itself: op 'fwd/4' (action 4) waits for 1.00 MB of room in hbm" in done.out
    alone = hosim("run", scenario, "--policy", "mine")
    assert alone.code == 1
    assert alone.err == "hosim: no row ran to its end, all are blocked\n"


@pytest.mark.usefixtures("pictures_are_blank")
def test_what_a_policy_does_not_know_how_to_plan_is_a_row_with_the_reason(hosim, scenario, tmp_path):
    policies = "switches: {copies_wait_for: end}\npolicies:\n  - optimal"
    scenario.write_text(scenario.read_text().replace("policies:\n  - resident", policies))
    done = hosim("run", scenario, "--out", tmp_path / "out")
    assert (done.code, done.err) == (0, "")
    assert re.search(r"^optimal +refused +- ", done.out, re.MULTILINE)
    why = "found copies that wait for the end of an op; change that, or plan with 'static'"
    assert re.search(rf"optimal is refused: a graph has .*, {why}\.", done.out)
    rows = json.loads((tmp_path / "out" / "summary.json").read_bytes())["rows"]
    assert [(row["policy"], row["status"]) for row in rows][:2] == [("optimal", "refused"), ("reactive", "ok")]
    assert rows[0]["notes"].endswith(why)
    alone = hosim("run", scenario, "--policy", "optimal")
    assert alone.code == 1
    assert alone.err == f"hosim: no row ran to its end, all are refused; {rows[0]['notes']}\n"


@pytest.mark.usefixtures("pictures_are_blank")
def test_what_cannot_fit_says_so_and_what_would_help(hosim, tmp_path):
    path = chain.write(tmp_path, scenario=chain.SCENARIO.replace("4.3 MB", "500 kB"))
    done = hosim("run", path, "--out", tmp_path / "out")
    assert done.code == 1
    assert "do not fit in hbm: 1.60 MB short at op" in done.out
    assert "raise the budget in hbm by 1.60 MB to 2.10 MB" in done.out
    assert (tmp_path / "out" / "report.html").exists()


def _in_a_thread(do):
    thread = threading.Thread(target=do)
    thread.start()
    thread.join()


def _in_a_process(do, daemon):
    process = multiprocessing.get_context("fork").Process(target=do, daemon=daemon)
    process.start()
    process.join()


PLACES = {
    "one core": lambda do: do(),
    "a thread": _in_a_thread,
    "a process": lambda do: _in_a_process(do, daemon=False),
    "a daemon": lambda do: _in_a_process(do, daemon=True),
}
SELDOM = ("one core", "a process")


@pytest.mark.usefixtures("pictures_are_blank")
@pytest.mark.parametrize(
    "place", ["a thread", *(pytest.param(one, marks=pytest.mark.slow) for one in ("a daemon", *SELDOM))]
)
def test_the_same_is_written_wherever_it_is_called(place, folder, tmp_path, monkeypatch):
    """Also where nothing can be forked."""
    if place == "one core":
        monkeypatch.setattr("os.cpu_count", lambda: 1)
    results = hosim_api.run(folder / "scenario.yaml")
    PLACES[place](lambda: results.write(tmp_path / "out"))
    files = {p.relative_to(folder) for p in folder.rglob("*") if p.is_file()}
    written = tmp_path / "out"
    assert {p.relative_to(written) for p in written.rglob("*") if p.is_file()} == files
    for name in ("spans.csv", "waits.csv", "memory.csv", "plan.jsonl", "trace.perfetto.json.gz"):
        assert (written / "static" / name).read_bytes() == (folder / "static" / name).read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_rows_from_forks_keep_no_tables_and_say_the_same(scenario):
    whole, forked = (run_case(prepare(resolve(scenario)), in_forks=in_forks) for in_forks in (False, True))
    assert forked.json() == whole.json()
    assert {len(row.trace.spans) for row in forked.values() if row.is_ok} == {0}


@pytest.mark.usefixtures("pictures_are_blank")
def test_an_earlier_run_is_replaced_and_nothing_else_is(hosim, scenario, tmp_path):
    out = tmp_path / "out"
    assert hosim("run", scenario, "--out", out, "--policy", "static").code == 0
    assert not (out / "reactive").exists()
    assert hosim("run", scenario, "--out", out, "--policy", "reactive").code == 0
    assert (out / "reactive").exists()
    assert not (out / "static").exists()
    (out / "notes.txt").write_text("mine")
    before = sorted(out.rglob("*"))
    done = hosim("run", scenario, "--out", out)
    assert done.code == 1
    assert "'notes.txt'" in done.err
    assert sorted(out.rglob("*")) == before


@pytest.mark.parametrize(
    "label", ["静态 $a_{b^$ 🚀", *(pytest.param(one, marks=pytest.mark.slow) for one in ("$a_{b^$", "🚀"))]
)
def test_a_label_of_any_characters_is_drawn_without_a_word(hosim, scenario, tmp_path, label):
    text = scenario.read_text(encoding="utf-8").replace("- static", f"- {{policy: static, label: '{label}'}}")
    scenario.write_text(text, encoding="utf-8")
    done = hosim("run", scenario, "--policy", label, "--out", tmp_path / "out")
    assert (done.code, done.err) == (0, "")
    assert label in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert hosim_api.run(scenario, policies=[label]).comparison().figure.png()
