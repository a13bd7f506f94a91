"""The inference claims: what the PAGES says of them is what comes out, and what each of them stands for."""

from __future__ import annotations

import re

import pytest
from pages import PAGES
from unstated import open_claim

import simulator as hosim
from simulator import catalog
from simulator.builders import build_job
from simulator.catalog import Axis
from simulator.errors import ConfigError
from simulator.run import prepare, run_case
from simulator.units import human


def test_published_dimensions_are_what_the_cache_takes():
    """576 elements of a token and layer in 61 layers, and a 16th of that for compressed tokens."""
    workload = catalog.read_workload("deepseek_v3_nsa_decode_71k")
    token_bytes = workload.model.kv_elements * workload.dtypes.kv_bytes
    assert token_bytes == 576 * 61 * 2
    assert 71_000 * token_bytes * 17 // 16 == pytest.approx(5.30e9, rel=1e-3)


def test_the_calibrated_decoder_takes_what_the_printed_figures_imply():
    """61.2 and 45.0 GB at 71k tokens, 61.2 GB at 123k: three equations with three unknowns."""
    model = catalog.read_workload("kv_as_printed_prefill").model
    cache = model.kv_elements * 2
    assert cache == pytest.approx((61.2e9 - 45.0e9) / 71_000, rel=2e-3)
    other = 2 * model.hidden + 6 * model.feed_forward.width
    assert other == pytest.approx((61.2e9 - 45.0e9) / (123_000 - 71_000), rel=2e-3)


@pytest.mark.slow
def test_a_static_layout_needs_no_compaction_and_allocators_at_run_time_do():
    found = hosim.run("kv_fragmentation")
    assert {label: row.summary["compactions"] for label, row in found.items()} == {
        "caching": 11,
        "best fit": 6,
        "fixed": 0,
        "offloaded": 0,
    }
    assert found["offloaded"].summary["step_ns"] == found["fixed"].summary["step_ns"]


@pytest.mark.slow
def test_a_host_that_finds_and_copies_blocks_for_nothing_turns_decode_red_and_nothing_else():
    names = ["deepseek_v3_nsa_decode", "kv_peak_calibrated", "kv_fragmentation"]
    found = hosim.validate(names, scale={"host.reactive.select": 0.1, "host.reactive.copy": 0.1})
    red = [one.verdict.why for one in found.judged if one.verdict.is_broken]
    assert red == ["our own decode step with the cache offloaded, over without"]


@pytest.mark.slow
def test_answers_slow_down_where_the_readme_says():
    """Means of the tokens that share a block [ms]: the first counts none, as it begins with the step."""
    found = hosim.run("llama31_8b_answers_a100")

    def means(time_of_tokens):
        return [round(time_of_tokens[first:last].mean(), 1) for first, last in ((1, 8), (8, 24), (24, 40), (40, 48))]

    def tokens(row):
        spans = found[row].spans
        spans = spans[spans["kind"] == "compute"]
        return spans.groupby(spans["name"].str.extract(r"(t\d+)/", expand=False))

    computed = tokens("static").apply(lambda ops: (ops["end_ns"] - ops["start_ns"]).sum()) / 1e6
    assert means(computed) == [68.5, 69.0, 69.5, 70.0]
    assert means(tokens("reactive")["end_ns"].max().diff() / 1e6) == [68.5, 70.4, 71.3, 111.2]
    assert means(tokens("static")["end_ns"].max().diff() / 1e6) == [68.5, 69.0, 69.5, 97.7]
    said = "2.51 GB short at op t40/head/decode/lm; hbm fills up at op t08/L17/decode/ffn.up"
    assert f"{said}, after L17/kv/s0/b0064 is allocated" in " ".join(found.sentences)


SHORT = "deepseek_v3_nsa_prefill_short"


@pytest.mark.slow
def test_short_prompts_take_as_long_down_to_the_bandwidth_that_the_page_tells_and_no_further():
    (table,) = re.findall(r"^\| prompt \| holds from \| does not with \|\n\|[-|]+\n((?:\|.*\n)+)", PAGES, re.MULTILINE)
    assert [int(line.split()[1].replace(",", "")) for line in table.splitlines()] == [2048, 4096, 8192, 16384]
    for line in table.splitlines():
        length, holds, fails = (cell.strip() for cell in line.strip("|").split("|"))
        base = at(SHORT, sequence=int(length.split()[0].replace(",", "")))

        def slowdown(rate, base=base):
            axis = Axis("rate", ("links.*.bandwidth",), "a test")
            rows = run_case(prepare(catalog.at(base, {axis: rate}), with_bounds=False)).summaries
            return rows["offloaded"]["step_ns"] / rows["resident"]["step_ns"]

        assert slowdown(holds) <= 1.01 < slowdown(fails), length


@pytest.mark.slow
def test_a_short_prompt_turns_red_where_its_links_are_too_slow():
    found = hosim.validate([SHORT], scale={"links.*.bandwidth": 0.002})
    red = [one.verdict.why for one in found.judged if one.verdict.is_broken]
    assert "prefill of a short prompt, offloaded over resident" in red


@pytest.mark.slow
def test_123k_tokens_fill_with_the_cache_offloaded_what_the_page_says():
    loaded = catalog.resolve("deepseek_v3_nsa_deployments_123k")
    (row,) = run_case(prepare(loaded, with_bounds=False)).summaries.values()
    assert f"123,008 tokens fill {human(row['peak_hbm_bytes'], 'B')} there" in " ".join(PAGES.split())


@pytest.mark.parametrize("name", ["deepseek_v3_nsa_deployments", "deepseek_v3_nsa_deployments_chunked"])
def test_choices_of_deployments_can_be_stated_and_so_can_those_that_they_predict(name):
    """The whole enumeration takes half an hour; its first and its last setting stand for it here."""
    base = open_claim(name)
    for scenario in (name, *base.predicts):
        other, choices = catalog.resolve(scenario), base.choices
        for end in (0, -1):
            axes = {Axis(one.choice, one.fields, "a test", values=one.options): [*one.options][end] for one in choices}
            if scenario.endswith("_decode"):  # one token is not cut into sixteen
                axes = {axis: value for axis, value in axes.items() if axis.name != "all other weights"}
            assert catalog.at(other, axes).workload != other.workload


def at(name, **values):
    """A scenario with other values of fields of its workload; dots of paths are written as two underscores."""
    axes = {Axis(key, (f"workload.{key.replace('__', '.')}",), "a test"): value for key, value in values.items()}
    return catalog.at(catalog.resolve(name), axes)


@pytest.mark.parametrize(("ranks", "alike"), [(128, 160), pytest.param(256, 320, marks=pytest.mark.slow)])
def test_ranks_that_hold_copies_are_the_case_of_fewer_ranks(ranks, alike):
    """64 copies beside 256 experts: a die of 160 ranks holds two, as one of 128, and its graph is the same."""
    few = at("deepseek_v3_nsa_deployments", model__feed_forward__ranks=ranks)
    many = at("deepseek_v3_nsa_deployments", model__feed_forward__ranks=alike, model__feed_forward__copies=64)
    more = at("deepseek_v3_nsa_deployments", model__feed_forward__ranks=32, model__feed_forward__copies=32)
    assert build_job(few.workload) == build_job(many.workload)
    assert build_job(more.workload) != build_job(many.workload)
    with pytest.raises(ConfigError, match="ranks divides routed"):
        at("deepseek_v3_nsa_deployments", model__feed_forward__ranks=alike)


def test_what_a_deployment_predicts_was_not_used_to_select_it():
    claim = open_claim("deepseek_v3_nsa_deployments")
    figures = {one.figure for name in claim.predicts for one in catalog.read_scenario(name).expect if one.printed}
    assert figures
    assert figures.isdisjoint(claim.selects)
