"""What the PAGES says beside the claims of training: what could still be gained, and where a runtime's time goes."""

import re

import pytest
from pages import PAGES

import simulator as hosim
from simulator.report.words import quantity
from simulator.units import counted, parse

pytestmark = pytest.mark.slow


def seconds(ns):
    return f"{ns / 1e9:.2f} s"


@pytest.fixture(scope="module")
def results():
    return {name: hosim.run(name) for name in ("llama3_8b_offload_bandwidths", "llama3_8b_runtime_910c")}


@pytest.fixture(scope="module")
def sweep(results):
    return results["llama3_8b_offload_bandwidths"].summary


@pytest.fixture(scope="module")
def runtime(results):
    return results["llama3_8b_runtime_910c"].summary


def test_the_sweep_is_bounded_as_the_page_says(sweep):
    for rate in (33.6, 40, 50, 60, 70):
        best = sweep.loc[f"static {rate:g}"]
        assert best["gap_fraction"] < 0.0005
        assert sweep.loc[f"mixed {rate:g}", "step_ns"] <= best["step_ns"] <= sweep.loc[f"offload {rate:g}", "step_ns"]


def test_what_is_left_to_gain(sweep):
    steps = sweep["step_ns"]
    moved, kept, mixed = (steps[f"{plan} 33.6"] for plan in ("offload", "static", "mixed"))
    text = " ".join(PAGES.split())
    assert f"in which everything saved for backward moves, {seconds(moved)}." in text
    assert f"takes {1 - kept / moved:.0%} less, {seconds(kept)}, whoever".replace("%", " %") in text
    assert f"run cheap ops again {1 - mixed / moved:.0%} less, {seconds(mixed)}.".replace("%", " %") in text


def test_compactions_leap_as_the_page_says(runtime):
    counts = runtime["compactions"]
    assert (counts["runtime 64 GB"], counts["runtime 62 GB"]) == (1, 21)
    assert "two gigabytes are the difference between 1 and 21 compactions" in " ".join(PAGES.split())


def test_where_the_time_of_the_runtime_goes(runtime):
    row = runtime.loc["runtime 58 GB"]
    parts = row["compute_ns"] + row["wait_transfer_ns"] + row["wait_host_ns"] + row["wait_compaction_ns"]
    assert parts == row["step_ns"]
    assert row["wait_host_ns"] / 1e6 == pytest.approx(5, abs=0.5)
    assert row["wait_compaction_ns"] / row["compactions"] / 1e9 == pytest.approx(0.5, abs=0.05)
    assert seconds(row["compute_ns"] + row["wait_transfer_ns"]) == "8.83 s"
    fixed = runtime.loc["static at fixed offsets"]
    assert fixed["compactions"] == 0
    assert f"`static at fixed offsets` takes {seconds(fixed['step_ns'])} (" in " ".join(PAGES.split())
    assert runtime.loc["at once 58 GB", "compactions"] == 0
    assert f"(`at once 58 GB`) takes {seconds(runtime.loc['at once 58 GB', 'step_ns'])}." in " ".join(PAGES.split())
    assert (
        f"makes the step {runtime.loc['nothing hidden', 'step_ns'] / runtime.loc['compiled', 'step_ns']:.2f} times"
        in (" ".join(PAGES.split()))
    )
    assert re.search(r"\b13 of them\b", PAGES)
    assert 6.7e9 / (row["wait_compaction_ns"] / row["compactions"]) == pytest.approx(13, abs=1)


def test_tell_us_and_we_say(runtime):
    """Each line of the table is a row that was run, or follows from one: what no compaction is, and so many of them."""
    (table,) = re.findall(r"^\| tell us \| if it is \| we say \|\n\|[-|]+\n((?:\|.*\n)+)", PAGES, re.MULTILINE)
    told, said = "", {}
    for line in table.splitlines():
        about, value, answer = (cell.strip() for cell in line.strip("|").split("|"))
        told = about or told
        said.setdefault(told, {})[value] = answer
    lengths, memories, counts = said.values()
    for length, answer in lengths.items():
        at = {"workload.sequence": int(length.replace(",", ""))}
        rows = hosim.run("llama3_8b_runtime_910c", set=at, policies=["compiled", "nothing hidden"]).summary["step_ns"]
        compiled, open_ = (quantity(rows[name], "ns") for name in ("compiled", "nothing hidden"))
        assert answer == f"{compiled} compiled, {open_} with nothing hidden"
    for memory, answer in memories.items():
        row = runtime.loc[f"runtime {memory}"]
        assert answer == f"{quantity(row['step_ns'], 'ns')}, {counted(int(row['compactions']), 'compaction')}"
    row = runtime.loc["runtime 58 GB"]
    each_ns = row["wait_compaction_ns"] / row["compactions"]
    assert f"A compaction is {each_ns / 1e9:.3f} s at table 4's price" in " ".join(PAGES.split())
    for count, answer in counts.items():
        ns = row["step_ns"] - row["wait_compaction_ns"] + int(count) * each_ns
        assert answer == quantity(round(ns), "ns")


MOVED = {"allocator.compaction": {"per_page": "20.9 us", "pages": "moved"}}


def test_what_is_selected_of_all_settings_explains_nothing_else():
    """The page shows rows of a sweep of minutes: one of them, and what refutes it, are run here."""
    setting = MOVED | {"tiers.hbm.capacity": "64 GiB"}
    row = hosim.run("llama3_8b_runtime_910c", set=setting, policies=["lru 64 GB"]).summary.loc["lru 64 GB"]
    management, rest = row["wait_compaction_ns"] + row["wait_host_ns"], row["compute_ns"] + row["wait_transfer_ns"]
    (shown,) = re.findall(r"^activations +lru +at need +best fit +64 GiB +waits .*", PAGES, re.MULTILINE)
    assert re.split(r"  +", shown)[-2:] == [quantity(ns, "ns") for ns in (management, row["step_ns"])]
    text = " ".join(PAGES.split())
    assert (
        f"{row['step_ns'] / 5.5e9:.2f} times the baseline. Their compute and copies take {seconds(rest)} at most"
        in text
    )
    no1 = hosim.run("llama3_8b_no1_910c", set=setting, policies=["recompute"]).summary.loc["recompute"]
    assert no1["compactions"] == 0
    assert f"No.1 takes {seconds(no1['step_ns'])} and compacts nothing" in text
    long = hosim.run("kv_fragmentation", set=MOVED, policies=["best fit"]).summary.loc["best fit"]
    assert f"Best fit compacts {long['compactions']} times in the long prefill of table 4" in text
    assert f"a compaction takes {seconds(long['wait_compaction_ns'] / long['compactions'])} and not the 0.525 s" in text


def test_what_else_a_runtime_pays(results):
    found = results["llama3_8b_runtime_910c"]["runtime 58 GB"]
    step = found.spans[found.spans["step"] == 1]
    out, ops = step[step["track"] == "d2h"], len(found.graph.ops)
    copies = (step["kind"] == "transfer").sum()
    counts = {"for each op and copy in": ops + copies - len(out), "op and copy": ops + copies, "each copy": copies}
    counts |= {"each op": ops, "whole op": ops, "each GB": round(out["size_bytes"].sum() / 1e9, 1)}
    (table,) = re.findall(r"^\| what \| price \| calls of a step .*\n\|[-|]+\n((?:\|.*\n)+)", PAGES, re.MULTILINE)
    for line in table.splitlines():
        what, price, calls, total, enough = (cell.strip() for cell in line.strip("|").split("|"))
        count = next(number for words, number in counts.items() if words in what)
        cost = parse(price, "ns") if "." not in price else float(price.split()[0]) * {"us": 1e3, "ms": 1e6}[price[-2:]]
        assert float(calls.replace(",", "")) == count, what
        assert total == quantity(cost * count, "ns"), what
        assert float(enough.replace(",", "")) == pytest.approx(6.7e9 / cost, abs=0.5 if count != 79.9 else 0.05), what
    assert round(7956.8 / (33.38 * 1.073741824)) == 222
