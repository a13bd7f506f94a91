"""What other people's CI needs: expectations in every column, JSON, JUnit, and `hosim diff` with its exit codes."""

import json
import os
import re
import shutil

import chain
import junit_grammar
import pytest
import small_job
from full import small_files

import simulator as hosim_api
from simulator.report.junit import write_junit
from simulator.run import row as rows

pytestmark = pytest.mark.usefixtures("pictures_are_blank")

FASTER = "links.*.bandwidth=8 GB/s"
HOLD = """\
expect:
  - {row: static, column: status, equals: ok}
  - {row: resident, column: status, equals: infeasible}
  - {row: static, at_most: 1.5 ms}
  - {row: static, column: peak_hbm_bytes, at_most: 4.3 MB}
  - {row: static, column: stall_ns, at_most: 200 us}
  - {row: static, column: wait_capacity_ns, about: 100 us}
  - {row: static, column: hidden_fraction, at_least: 0.75, at_most: 1.0}
  - {row: static, column: moved_d2h_bytes, at_most: 2 MB}
  - {row: static, faster_than: reactive}
"""


def keep(results, path):
    """Write what ``hosim run --json`` prints into a file."""
    path.write_bytes(results.json())
    return path


@pytest.fixture(scope="module")
def folders(ran, blank, tmp_path_factory):
    """Results of the chain: as it is and over faster links; as files, of fewer rows and with a budget for less."""
    out = tmp_path_factory.mktemp("results")
    inputs = tmp_path_factory.mktemp("inputs")
    shutil.copytree(ran, out / "old")
    with blank():
        hosim_api.run(chain.write(inputs), set={"links.*.bandwidth": "8 GB/s"}).write(out / "fast")
    keep(hosim_api.run(chain.write(inputs), policies=["static"]), out / "fewer.json")
    small = chain.SCENARIO.replace("4.3 MB", "1 MB")
    keep(hosim_api.run(chain.write(inputs, scenario=small)), out / "small.json")
    return out


def test_expectations_may_be_about_any_column(hosim, tmp_path):
    done = hosim("run", chain.write(tmp_path, scenario=chain.SCENARIO + HOLD), "--junit", tmp_path / "a" / "b.xml")
    assert (done.code, done.err) == (0, "")
    assert "Expectations of the scenario: 9 of 9 hold." in done.out
    found = junit_grammar.outcomes(tmp_path / "a" / "b.xml")
    assert set(found.values()) == {"passed"}
    assert list(found)[:2] == ["a row runs to its end", "static: status is ok"]
    assert len(found) == 10


@pytest.mark.parametrize(
    ("expectation", "message"),
    [
        ("column: peak_hbm_bytes, at_most: 4 MB", "peak_hbm_bytes must be at most 4.00 MB, found 4.30 MB"),
        ("column: peak_hbm_bytes, at_most: 4.2999 MB",
         "peak_hbm_bytes must be at most 4.30 MB, found 4.30 MB (4,300,000 B to be exact)"),
        ("column: stall_ns, at_most: 100 us", "stall_ns must be at most 100 us, found 200 us"),
        ("column: wait_capacity_ns, about: 200 us, within: 0.1",
         "wait_capacity_ns must be about 200 us (within 10 %), found 100 us"),
        ("column: hidden_fraction, at_least: 0.95", "hidden_fraction must be at least 95 %, found 80 %"),
        ("column: status, equals: blocked", "status must be blocked, found ok"),
    ],
)  # fmt: skip
def test_an_expectation_that_fails_says_what_was_found(hosim, tmp_path, expectation, message):
    scenario = f"{chain.SCENARIO}expect:\n  - {{row: static, {expectation}, why: because}}\n"
    done = hosim("run", chain.write(tmp_path, scenario=scenario), "--junit", tmp_path / "x.xml")
    assert done.code == 1
    assert done.err == f"hosim: expectation fails: static: {message}\n"
    (failure,) = junit_grammar.read(tmp_path / "x.xml").iter("failure")
    assert failure.get("message") == f"static: {message}"
    assert failure.text.splitlines()[-1] == "why: because"


def test_an_expectation_about_a_row_that_does_not_run_says_so(hosim, tmp_path):
    scenario = chain.SCENARIO + "expect: [{row: resident, at_most: 1 s}]\n"
    done = hosim("run", chain.write(tmp_path, scenario=scenario))
    assert done.code == 1
    assert done.err.endswith("resident: step_ns must be at most 1.00 s, found none, as the row is infeasible\n")


def test_json_is_all_there_is_on_stdout_and_says_what_the_folder_says(hosim, tmp_path):
    path = chain.write(tmp_path, scenario=chain.SCENARIO + HOLD)
    done = hosim("run", path, "--json", "--out", tmp_path / "out")
    assert done.code == 0
    said, written = json.loads(done.out), json.loads((tmp_path / "out" / "summary.json").read_text())
    assert written.pop("files")
    assert said == written
    assert [one["holds"] for one in said["expectations"]] == [True] * 9


def test_json_is_printed_and_the_exit_code_is_1_when_an_expectation_fails(hosim, tmp_path):
    scenario = chain.SCENARIO + "expect: [{row: static, at_most: 1 ms}]\n"
    done = hosim("run", chain.write(tmp_path, scenario=scenario), "--json")
    assert done.code == 1
    assert json.loads(done.out)["expectations"][0]["holds"] is False
    assert "expectation fails" in done.err


def test_what_was_not_checked_is_skipped_with_the_reason(hosim, tmp_path):
    path, file = chain.write(tmp_path, scenario=chain.SCENARIO + HOLD), tmp_path / "x.xml"
    assert hosim("run", path, "--policy", "static", "--junit", file).code == 0
    skipped = [name for name, outcome in junit_grammar.outcomes(file).items() if outcome == "skipped"]
    assert skipped == ["resident: status is infeasible", "static: step_ns is less than reactive's"]
    assert hosim("run", path, "--set", FASTER, "--junit", file).code == 0
    assert list(junit_grammar.outcomes(file).values()) == ["passed", *["skipped"] * 9]
    assert 'message="this run changes its documents"' in file.read_text()


def test_a_run_in_which_nothing_fits_is_a_failure(hosim, tmp_path):
    path = chain.write(tmp_path, scenario=chain.SCENARIO.replace("4.3 MB", "1 MB"))
    assert hosim("run", path, "--junit", tmp_path / "x.xml").code == 1
    assert junit_grammar.outcomes(tmp_path / "x.xml") == {"a row runs to its end": "failed"}


def test_the_same_results_are_exit_code_0(hosim, folders):
    done = hosim("diff", folders / "old", folders / "old")
    assert (done.code, done.err) == (0, "")
    assert done.out == "0 of 3 rows moved by more than 0 %, 0 with a worse figure.\n"


def test_documents_are_compared_by_what_they_say_and_not_by_where_they_lie_or_how_they_are_written(
    hosim, folders, tmp_path
):
    """What a run wrote beside its rows repeats it; a comment or another unit changes nothing; an option does."""
    again = keep(hosim_api.run(folders / "fast" / "scenario.yaml"), tmp_path / "again.json")
    assert hosim("diff", folders / "fast", again).out.splitlines()[0].startswith("0 of 3 rows moved")
    said = chain.SCENARIO.replace("4.3 MB", "4300 kB  # as before")
    for name, scenario in (
        ("said", said),
        ("rows", said.replace("- static", "- {policy: static, options: {recompute: true}}")),
    ):
        (tmp_path / name).mkdir()
        keep(hosim_api.run(chain.write(tmp_path / name, scenario=scenario)), tmp_path / f"{name}.json")
    assert hosim("diff", folders / "old", tmp_path / "said.json").out.startswith("0 of 3 rows moved")
    assert "\nscenario: chain " in hosim("diff", folders / "old", tmp_path / "rows.json").out


def test_a_changed_bandwidth_is_named_and_so_is_the_wait(hosim, folders):
    done = hosim("diff", folders / "old", folders / "fast")
    assert done.code == 1
    assert done.out.endswith("\nset links.*.bandwidth: not set -> 8 GB/s\n")
    assert re.search(r"^static +ok +1.50 ms +1.30 ms +-200 us +-13 % +wait ", done.out, re.MULTILINE)
    found = json.loads(hosim("diff", folders / "old", folders / "fast", "--json").out)
    static = next(row for row in found["rows"] if row["policy"] == "static")
    assert {(one["column"], one.get("on")) for one in static["spent"] if one["difference"]} == {
        ("wait_capacity_ns", "hbm"),
        ("wait_transfer_ns", "h2d"),
    }
    assert static["step"]["difference"] == -200_000 == sum(one["difference"] for one in static["spent"])
    assert found["inputs"] == [{"what": "set links.*.bandwidth", "old": "not set", "new": "8 GB/s"}]


def test_a_tolerance_accepts_small_moves_and_worse_is_only_what_is_worse(hosim, folders):
    old, fast = folders / "old", folders / "fast"
    assert hosim("diff", old, fast, "--tolerance", "20%").code == 1
    assert hosim("diff", old, fast, "--tolerance", "0.99").code == 0
    assert hosim("diff", old, fast, "--fail-on", "worse").code == 0
    done = hosim("diff", fast, old, "--fail-on", "worse", "--tolerance", "1%")
    assert done.code == 1
    assert "2 of 3 rows moved by more than 1.0 %, 2 with a worse figure" in done.out


def test_rows_that_are_gone_or_new_are_told(hosim, folders):
    gone = hosim("diff", folders / "old", folders / "fewer.json")
    assert gone.code == 1
    assert re.search(r"^resident +row is gone", gone.out, re.MULTILINE)
    assert hosim("diff", folders / "old", folders / "fewer.json", "--fail-on", "worse", "--tolerance", "50%").code == 1
    new = hosim("diff", folders / "fewer.json", folders / "old")
    assert re.search(r"^reactive +ok, new row", new.out, re.MULTILINE)
    assert hosim("diff", folders / "fewer.json", folders / "old", "--fail-on", "worse").code == 0


def test_a_row_that_fits_no_more_says_by_how_much(hosim, folders):
    done = hosim("diff", folders / "old", folders / "small.json", "--fail-on", "worse")
    assert done.code == 1
    assert re.search(r"^static +ok -> infeasible +1.50 ms +- +- +1.10 MB short at op ", done.out, re.MULTILINE)
    assert re.search(r"^scenario: chain [0-9a-f]{8} -> chain [0-9a-f]{8}$", done.out, re.MULTILINE)


def test_markdown_has_a_table_that_labels_cannot_break(hosim, tmp_path):
    label = chain.SCENARIO.replace("- static", "- {policy: static, label: 'a|b <i>*c*'}")
    path = chain.write(tmp_path, scenario=label)
    for name, change in (("old", "links.*.channels=1"), ("new", FASTER)):
        ran = hosim("run", path, "--set", change, "--json")
        assert ran.code == 0
        (tmp_path / name).write_text(ran.out)
    done = hosim("diff", tmp_path / "old", tmp_path / "new", "--markdown")
    assert done.code == 1
    lines = [line for line in done.out.splitlines() if line.startswith("|")]
    assert len({line.count("|") - line.count("\\|") for line in lines[:5]}) == 1
    assert "a\\|b &lt;i&gt;\\*c\\*" in done.out
    assert "<i>" not in done.out
    assert done.out.count("<details>") == done.out.count("</details>") == 2


def test_an_expectation_that_turns_is_told_though_nothing_moved(hosim, tmp_path):
    for name, most in (("old", "2 ms"), ("new", "2 ms"), ("less", "1 ms")):
        path = chain.write(tmp_path, scenario=f"{chain.SCENARIO}expect: [{{row: static, at_most: {most}}}]\n")
        (tmp_path / name).write_text(hosim("run", path, "--json").out)
    assert hosim("diff", tmp_path / "old", tmp_path / "new").code == 0
    said = json.loads((tmp_path / "new").read_text())
    said["expectations"][0]["holds"] = False
    (tmp_path / "new.json").write_text(json.dumps(said))
    done = hosim("diff", tmp_path / "old", tmp_path / "new.json", "--fail-on", "worse")
    assert done.code == 1
    assert "expectation fails now: static: step_ns is at most 2.00 ms" in done.out
    assert "0 of 3 rows moved" in done.out
    assert "1 expectation turned" in done.out


def _text(old):
    return (old / "summary.json").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "a summary is JSON to its end"),
        (lambda text: text.replace("hosim-summary/2", "hosim-summary/3"),
         "the schema is hosim-summary/2, found 'hosim-summary/3'; run again with this version of hosim"),
        (lambda text: "{}", "the schema is hosim-summary/2, found none"),
        (lambda text: text.replace('"expectations"', '"other"'), "expectations: a summary of a run is as"),
        (lambda text: text.replace('"sha256"', '"digest"'), "provenance, inputs, 0, sha256: a summary of a run is as"),
        (lambda text: text.replace('"policy": "reactive"', '"policy": "static"', 1), "a row has a label of its own"),
        (lambda text: text.replace('"compute_ns": 1300000', '"compute_ns": 1200000', 1), "fill its step"),
    ],
)  # fmt: skip
def test_what_is_no_result_is_one_clear_message_and_exit_code_2(hosim, folders, tmp_path, change, message):
    changed = change(_text(folders / "old"))
    assert changed != _text(folders / "old")
    (tmp_path / "summary.json").write_text(changed)
    done = hosim("diff", tmp_path, folders / "old")
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_folders_that_are_missing_half_written_or_of_another_command_are_exit_code_2(hosim, folders, tmp_path):
    (tmp_path / "half").mkdir()
    missing = hosim("diff", tmp_path / "none", folders / "old")
    assert (missing.code, missing.out) == (2, "")
    assert "found no such file" in missing.err
    half = hosim("diff", folders / "old", tmp_path / "half")
    assert half.code == 2
    assert "found a folder without summary.json, which is written last" in half.err
    assert hosim("plan", chain.write(tmp_path), "--out", tmp_path / "plan").code == 0
    assert "expectations: a summary of a run is as" in hosim("diff", tmp_path / "plan", folders / "old").err
    assert hosim("diff", folders / "old").code == 2
    bad = hosim("diff", folders / "old", folders / "old", "--tolerance", "much")
    assert (bad.code, "is no list such as 5%,0.1" in bad.err) == (2, True)


def test_python_gives_the_same(folders):
    found = hosim_api.diff(folders / "old", folders / "fast", tolerance=0.01)
    assert (found.moved, found.worse) == (True, False)
    assert json.loads(found.json())["schema"] == "hosim-diff/1"
    assert found.markdown().startswith("### hosim: 2 of 3 rows moved")
    with pytest.raises(hosim_api.ConfigError, match="a tolerance is a share"):
        hosim_api.diff(folders / "old", folders / "fast", tolerance=2)


def test_of_several_ranks_the_slowest_is_compared(hosim, tmp_path):
    """Also what it waits for collectives on its own stream, which has no place, is in the sum."""
    switched = small_job.SCENARIO + "switches: {collectives: compute_stream}\n"
    for name, text in (("old", small_job.SCENARIO), ("new", switched)):
        done = hosim("run", small_job.written(tmp_path, "tensor: 2, pipeline: 2, micro_batches: 2", text), "--json")
        assert done.code == 0, done.err
        (tmp_path / name).write_text(done.out)
    done = hosim("diff", tmp_path / "old", tmp_path / "new", "--json")
    assert done.code == 1, done.err
    found = json.loads(done.out)
    assert {"what": "switches collectives", "old": "own_stream", "new": "compute_stream"} in found["inputs"]
    for row in found["rows"]:
        assert sum(one["difference"] for one in row["spent"]) == row["step"]["difference"]
    assert any(one["column"] == "wait_peer_ns" and one["on"].startswith("rank ") for one in found["rows"][0]["spent"])


@pytest.mark.parametrize("command", ["run", "validate"])
@pytest.mark.parametrize("file", ["/proc/nope/x.xml", "taken/x.xml"])
def test_a_file_that_cannot_be_written_is_told_before_the_run(hosim, tmp_path, command, file):
    (tmp_path / "taken").write_text("a file")
    scenario = chain.write(tmp_path, scenario=chain.SCENARIO + HOLD)
    above = tmp_path / "taken" if file.startswith("taken") else "/proc"
    found = f"that nothing can be made in {above}"
    done = hosim(command, scenario, "--set" if command == "run" else "--scale", "no.such=1", "--junit", tmp_path / file)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"hosim: --junit {tmp_path / file}: the file can be written, found {found}")
    assert "choose another file" in done.err


@pytest.mark.parametrize("command", ["run", "sweep", "serve", "plan"])
def test_a_folder_that_cannot_be_made_is_told_before_anything_is_read(hosim, tmp_path, command):
    done = hosim(command, tmp_path / "no_such.yaml", "--out", "/proc/a")
    assert (done.code, done.out) == (1, "")
    must = "the results get a folder of their own, found that nothing can be made in /proc"
    assert done.err.startswith(f"hosim: --out /proc/a: {must}")
    assert ".partial" not in done.err


def test_a_report_that_is_there_is_kept_until_it_is_replaced(hosim, tmp_path):
    file = tmp_path / "x.xml"
    file.write_text("earlier")
    assert hosim("run", tmp_path / "no_such.yaml", "--junit", file).code == 1
    assert file.read_text() == "earlier"


@pytest.mark.parametrize(
    "line", ["run SCENARIO --junit FILE", "validate SCENARIO --junit FILE", "diff OLD OLD --html FILE",
             "sweep SCENARIO --grid links.*.bandwidth=1..2GB/s:2 --out FILE.csv",
             "import graph GRAPH --force -o FILE.yaml"],
)  # fmt: skip
def test_a_pipe_is_refused_before_anything_runs(hosim, folders, tmp_path, line):
    """Nobody reads from it: opening it would wait for ever."""
    scenario = chain.write(tmp_path, scenario=chain.SCENARIO + HOLD)
    words = {"SCENARIO": scenario, "OLD": folders / "old", "GRAPH": tmp_path / "graph.jsonl"}
    words |= {f"FILE{suffix}": tmp_path / f"pipe{suffix}" for suffix in ("", ".csv", ".yaml")}
    for suffix in ("", ".csv", ".yaml"):
        os.mkfifo(tmp_path / f"pipe{suffix}")
    done = hosim(*(words.get(word, word) for word in line.split()))
    assert (done.code, done.out) == (2 if line.startswith("diff") else 1, "")
    assert re.fullmatch(r"hosim: .*/pipe[.a-z]*: an output is a file, found a device or a pipe; choose .*\n", done.err)


@pytest.mark.parametrize("line", ["run SCENARIO --junit FILE", "diff OLD FAST --html FILE"])
def test_on_a_full_disk_the_earlier_file_stays_and_is_named(hosim, folders, tmp_path, line):
    file = tmp_path / "file"
    file.write_text("earlier")
    scenario = chain.write(tmp_path, scenario=chain.SCENARIO + HOLD)
    words = {"SCENARIO": scenario, "OLD": folders / "old", "FAST": folders / "fast", "FILE": file}
    with small_files(100):
        done = hosim(*(words.get(word, word) for word in line.split()))
    assert done.code == (2 if line.startswith("diff") else 1)
    assert f" {file}: the file can be written, found File too large; make room" in done.err
    assert file.read_text() == "earlier"
    assert not list(tmp_path.glob(".*"))


def test_a_case_takes_the_time_of_its_row(hosim, tmp_path, monkeypatch):
    """The first check of a row takes what the row took; a row that no check is about counts for the first of all."""
    now_s = iter(range(100))
    monkeypatch.setattr(rows, "monotonic", lambda: next(now_s) ** 2)
    scenario = chain.SCENARIO + "expect: [{row: static, at_most: 1 s}, {row: static, column: status, equals: ok}]\n"
    hosim_api.run(chain.write(tmp_path, scenario=scenario))
    now_s = iter(range(100))
    checks = hosim_api.run(chain.write(tmp_path, scenario=scenario)).checks
    assert [check.seconds for check in checks] == [1 + 5, 9, 0]
    write_junit({"chain": checks}, tmp_path / "x.xml")
    root = junit_grammar.read(tmp_path / "x.xml")
    assert [case.get("time") for case in root.iter("testcase")] == ["6.000", "9.000", "0.000"]
    assert root.get("time") == "15.000"


def test_times_are_told_of_rows_in_forks_and_of_claims(hosim, tmp_path):
    scenario = chain.write(tmp_path, scenario=chain.SCENARIO + HOLD)
    for command in ("run", "validate"):
        assert hosim(command, scenario, "--junit", tmp_path / "x.xml").code == 0
        assert float(junit_grammar.read(tmp_path / "x.xml").get("time")) > 0


@pytest.mark.parametrize(
    ("column", "value", "must"),
    [("peak_ddr_bytes", "5", "a whole number"), ("peak_ddr_bytes", 5.5, "a whole number"),
     ("hidden_fraction", "most", "a number"), ("notes", 5, "text"), ("bounded_by", 1, "text")],
)  # fmt: skip
def test_a_summary_with_another_type_is_one_message(hosim, folders, tmp_path, column, value, must):
    changed = json.loads((folders / "old" / "summary.json").read_bytes())
    changed["rows"][-1][column] = value
    (tmp_path / "new.json").write_text(json.dumps(changed))
    for pair in ((folders / "old", tmp_path / "new.json"), (tmp_path / "new.json", folders / "old")):
        done = hosim("diff", *pair)
        assert (done.code, done.out) == (2, "")
        assert f"new.json, row 'static': {column} is {must}, found {value!r}; run again" in done.err


@pytest.mark.parametrize(
    ("expectation", "key", "said"),
    [
        ("column: compactions, equals: .nan", "equals", "compactions is a number, found '.nan'; write a finite number"),
        ("column: compactions, equals: inf", "equals", "compactions is a number, found 'inf'; write a finite number"),
        ("column: gap_fraction, equals: low", "equals", "gap_fraction is a number, found 'low'"),
        ("column: gap_fraction, at_most: inf", "at_most", "found 'inf'; write a finite number"),
        ("column: gap_fraction, at_least: inf", "at_least", "found 'inf'; write a finite number"),
        ("column: status, equals: .nan", "equals", "status is a word that rows have, found '.nan'; use one of ok, inf"),
        ("column: status, equals: okay", "equals", "found 'okay'; use one of ok, .*did you mean 'ok'"),
        ("column: bounded_by, equals: 7", "equals", "bounded_by is a word that rows have, found 7.0"),
        ("column: status, at_most: 5", "at_most", "status is a text, which only equals compares, found at_most"),
        ("column: status, over: reactive, at_most: 2x", "over", "status is a text, which only equals compares"),
    ],
)
def test_an_expectation_that_can_never_hold_is_refused(hosim, tmp_path, expectation, key, said):
    path = chain.write(tmp_path, scenario=f"{chain.SCENARIO}expect:\n  - {{row: static, {expectation}}}\n")
    for command in ("check", "run"):
        done = hosim(command, path)
        assert (done.code, done.out) == (1, "")
        assert re.search(rf"scenario.yaml:\d+, expect.0.{key}: .*{said}", done.err), done.err


@pytest.mark.parametrize(
    ("condition", "said"),
    [("status <= 5", "a condition is on a number"), ("stall <= inf", "finite"), ("gap <= nan", "finite")],
)
def test_a_condition_that_can_never_hold_is_refused(hosim, tmp_path, condition, said):
    done = hosim("frontier", chain.write(tmp_path), "--of", "links.*.bandwidth", "--such-that", condition)
    assert (done.code, done.out) == (1, "")
    assert re.fullmatch(rf"hosim: --such-that: .*{said}.*\n", done.err)
