"""What the PAGES says of DeepSeek-V3's training: how its cut is chosen, and what its machine could still gain."""

import math
import re

import pytest
from pages import PAGES
from unstated import open_claim

import simulator as hosim
from simulator import catalog
from simulator.builders import build_job
from simulator.lifetime import live_bytes

BASELINE, OFFLOAD = "deepseek_v3_train_baseline", "deepseek_v3_train_offload"


def shown(command):
    (found,) = re.findall(rf"<!-- measured by: {command} -->\n.*?\n\n```text\n(.*?)```", PAGES, re.DOTALL)
    return found


def test_the_cut_of_the_workloads_is_one_that_is_selected_and_the_same_in_both():
    jobs = [catalog.read_workload(f"deepseek_v3_train_{layout}") for layout in ("2x2x2", "8x1x1")]
    models = [job.model for job in jobs]
    assert models[0] == models[1]
    assert [job.batch * job.parallel.data * job.parallel.micro_batches for job in jobs] == [16, 16]
    experts, (dense,) = models[0].feed_forward, models[0].others
    cut = rf"{models[0].layers} +{experts.routed} +{dense.stop} +{jobs[0].sequence} +{jobs[0].swiglu} +2\.58 s\n"
    assert re.search(cut, shown(f"python tests/choices.py {BASELINE}"))


def test_the_page_counts_all_combinations():
    claim = open_claim(BASELINE)
    total = math.prod(len(choice.options) for choice in claim.choices)
    assert f"16 of 201 settings that ran (8.0 %; {total} are listed)" in shown(f"python tests/choices.py {BASELINE}")
    assert f"**16 of the 201 cuts that fit the dies (8.0 %; {total} are listed) have the printed step**" in PAGES
    assert claim.predicts == (OFFLOAD,)


def test_the_ranks_of_a_stage_share_its_experts():
    """EP 4 at 2/2/2: each of the four ranks of a stage has a quarter of its experts, whole ones."""
    stage = build_job(catalog.read_workload("deepseek_v3_train_2x2x2")).graphs[1]
    members = {group.name: group.members for group in stage.groups}
    assert members["expert.tensor"] == ((0, 1, 2, 3), (4, 5, 6, 7))
    sizes = {t.name: t.size_bytes for t in stage.tensors}
    assert sizes["L10/ffn.up.weight"] == 32 // 4 * 7168 * 2048 * 2


@pytest.mark.parametrize(
    ("layers", "experts", "fits"),
    [
        (10, 32, True),
        (10, 64, False),
        *(pytest.param(*one, True, marks=pytest.mark.slow) for one in ((12, 32), (16, 16))),
    ],
)
def test_which_cuts_fit_a_die(layers, experts, fits):
    found = catalog.read_workload("deepseek_v3_train_2x2x2")
    fed = found.model.feed_forward.model_copy(update={"routed": experts})
    model = found.model.model_copy(update={"layers": layers, "feed_forward": fed})
    graphs = build_job(found.model_copy(update={"model": model})).graphs
    assert (max(live_bytes(graph).max() for graph in graphs) <= 64e9) == fits


@pytest.mark.slow
def test_what_the_page_tells_of_offloading():
    found = hosim.run(OFFLOAD).summary
    steps, moved = found["step_ns"], found["moved_d2h_bytes"]
    kept, all_of_it = (f"{steps[f'{plan} 33.6'] / 1e9:.2f} s" for plan in ("static", "offload"))
    told = f"takes {kept} at 33.6 GB/s, where offloading all takes {all_of_it}"
    assert told in " ".join(PAGES.split())
    assert moved["static 33.6"] < 0.75 * moved["offload 33.6"]
    rates = [steps[f"offload {rate}"] for rate in ("33.6", "40", "50", "60", "70")]
    assert rates == sorted(rates, reverse=True)
