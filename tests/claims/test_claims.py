"""Every claim does what it says: its expectations are the guard over the published figures.

Those of other shipped scenarios are held where their rows are (`tests/golden/test_digests_rows.py`).
"""

from __future__ import annotations

import re
from functools import cache

import digests
import pytest
from pages import PAGES, README, ROOT, VERDICTS
from pages import verdicts as table
from sensitivity import held_to_printed, sensitivity
from shipped import happened
from stated import CLAIMS, SCENARIOS
from unstated import names, open_claim, opened

import simulator as hosim
from simulator import catalog
from simulator import claims as room
from simulator.catalog import Axis
from simulator.catalog.settings import fields
from simulator.claims import claims, claims_view
from simulator.report.expectations import verdicts

TRUST = ROOT / "docs/evidence/trust.md"
SLOW = {
    "agentic_rl_colocated",
    "agentic_rl_disjoint",
    "deepseek_v3_nsa_decode",
    "deepseek_v3_nsa_deployment_least_peak",
    "deepseek_v3_nsa_deployments_123k",
    "deepseek_v3_nsa_deployments_chunked",
    "deepseek_v3_nsa_deployments_compactions",
    "deepseek_v3_nsa_deployments_decode",
    "deepseek_v3_nsa_least_peak",
    "deepseek_v3_nsa_longest",
    "deepseek_v3_nsa_peak",
    "deepseek_v3_nsa_prefill",
    "deepseek_v3_nsa_prefill_short",
    "deepseek_v3_train_baseline",
    "deepseek_v3_train_offload",
    "deepnvme_70b_gds",
    "kv_fragmentation",
    "kv_longest_calibrated",
    "llama3_8b_2x2x2",
    "llama3_8b_least_peak",
    "llama3_8b_no1_910c",
    "llama3_8b_offload_bandwidths",
    "llama3_8b_offload_fused",
    "llama3_8b_runtime_910c",
    "llama3_8b_runtime_pinned_910c",
    "moe_exchange_masked",
    "omni_modal",
    "paddle_npu_optimizer_state",
    "recommender_1t2",
    "recommender_1t2_placed",
    "scaling_loose_cluster",
    "scaling_supernode",
    "text_mpipe",
    "vilt_train_pool",
    "vision_language_mpipe",
}
"""They take longer than a third of a second; each runs once for this and for its digests."""


def some(names):
    return [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in names]


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """What `hosim validate` finds of a scenario; what digests are compared of, too, runs once for both."""

    @cache
    def judged(name):
        if name not in {*SLOW, *digests.SMALL}:
            return hosim.validate([name]).judged
        rows = happened(name, tmp_path_factory).summaries
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(room, "judged", lambda loaded, expected, **_: verdicts(expected, rows, _source(loaded)))
            return hosim.validate([name]).judged

    return judged


def _source(loaded):
    return loaded.scenario.claim.source


def test_the_claims_are_among_them():
    assert {"llama3_8b_2x2x2", "llama3_8b_offload_bandwidths", "llama3_8b_runtime_910c"} <= set(claims())
    assert sorted(claims()) == sorted(CLAIMS)


@pytest.mark.parametrize("name", some(CLAIMS))
def test_a_claim_holds_as_far_as_it_says(checked, name):
    verdicts = [one.verdict for one in checked(name)]
    assert verdicts
    assert [str(verdict) for verdict in verdicts if verdict.is_broken] == []
    assert [str(verdict) for verdict in verdicts if verdict.holds and verdict.missed] == []


SHOWN = re.findall(r"<!-- output of: hosim validate ([^,\n-]+) -->\n```text\n(.*?)```", PAGES, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(("names", "shown"), SHOWN)
def test_the_readme_shows_what_is_printed(checked, names, shown):
    assert f"{claims_view([one for name in names.split() for one in checked(name)])}\n" == shown


TOLD = VERDICTS.findall(PAGES)


def test_the_pages_tell_the_verdict_of_each_scenario_of_hyperoffload_once():
    named = [name for names, _ in TOLD for name in names.split()]
    assert len(named) == len(set(named)) == 20
    assert set(named) <= set(claims())


@pytest.mark.slow
@pytest.mark.parametrize(("names", "told"), TOLD)
def test_the_pages_tell_each_printed_figure_with_ours_and_the_verdict(checked, names, told):
    assert table(one for name in names.split() for one in checked(name)) == told


def _of_claims():
    return [(name, one) for name in CLAIMS for one in SCENARIOS[name].expect if one.printed is not None]


def test_no_scenario_predicts_what_something_in_it_was_fitted_to():
    for name in CLAIMS:
        loaded = catalog.resolve(name)
        documents = (loaded.scenario, loaded.hardware, loaded.workload)
        fitted = {fit.figure for document in documents for fit in document.fitted.values()}
        assert fitted.isdisjoint(one.figure for one in loaded.scenario.expect if one.kind == "predicted")


HELD = {
    "cosmos3_shards_block": 0.25,
    "deepnvme_bounce_4_drives": 0.25,
    "deepnvme_gds_4_drives": 0.25,
    "olmoe_dequantize_token": 0.25,
    "olmoe_gemv_token": 0.25,
    "paddle_optimizer_state": 0.25,
    "step_at_33gbps": 0.05,
    "step_at_40gbps": 0.05,
    "step_no2": 0.05,
    "torchtune_peak": 0.25,
    "torchtune_peak_change": 0.02,
    "torchtune_peak_offloaded": 0.25,
    "torchtune_step": 0.25,
    "vllm_gh200_70b_token": 0.25,
}
"""What is held against a printed figure, and by how much. A new entry is a tolerance that was stated before its run."""


def test_what_is_held_and_by_how_much_does_not_grow_unseen():
    held = [one for _, one in _of_claims() if one.kind == "predicted" and not one.missed]
    assert {one.figure: one.within for one in held} == HELD
    assert len(held) == len(HELD)
    assert all(one.is_close_to_printed for one in held)


def test_no_headline_figure_is_predicted_and_the_readme_says_so():
    headlines = [one for _, one in _of_claims() if one.headline]
    assert {one.figure: "missed" if one.missed else one.kind for one in headlines} == {
        "saving_at_71k": "shown",
        "step_with_nothing_hidden": "shown",
        "runtime_slowdown": "missed",
    }
    assert "**None of their headline figures is predicted.**" in " ".join(README.read_text(encoding="utf-8").split())


def test_counts_that_pages_tell_are_those_that_were_recorded():
    """Each with the settings that can be, and beside it how often chance would have done as well."""
    deployments, runtimes = (
        " ".join(SCENARIOS[name].claim.counted) for name in ("deepseek_v3_nsa_deployments", "llama3_8b_runtime_910c")
    )
    both, fit, listed = re.search(
        r": (\d+) of (\d+) settings that fit the device \(.*?; ([\d,]+) are", deployments
    ).groups()
    (chance,) = re.findall(r"Placebo: for (\d+ %)", deployments)
    times, ran = re.search(r": (\d+) of (\d+) settings that ran", runtimes).groups()
    (ratio,) = re.findall(rf"of all, for (\d+) of {ran}", runtimes)
    readme, trust = (" ".join(path.read_text(encoding="utf-8").split()) for path in (README, TRUST))
    assert f"{both} of the {fit} deployments that fit a die (of {listed} listed) have both printed peaks" in readme
    assert f"{times} of {ran} runtimes have both printed times ({ratio} the ratio alone)" in readme
    for page in (readme, trust):
        assert f"for {chance} of other pairs of peaks some deployment matches, too" in page
    assert set(re.findall(r"(\d+ %) of other pairs of peaks", " ".join(PAGES.split()))) == {chance}


def test_what_holds_by_construction_is_told_apart():
    assert {one.figure for _, one in _of_claims() if one.kind == "by construction"} == {
        "compactions_with_cache_offloaded"
    }


def test_what_was_chosen_to_explain_the_training_claims_is_said_by_each_of_them():
    claims_of_training = [SCENARIOS[name].claim for name in CLAIMS if name.startswith("llama3_8b_")]
    assert len(claims_of_training) == 7
    assert all("sequence length 8,192" in one.chosen for one in claims_of_training)


def test_what_is_shown_or_missed_has_our_own_figure_guarded():
    for name in CLAIMS:
        expected = SCENARIOS[name].expect
        guards = [one for one in expected if not one.missed and (one.about, one.equals) != (None, None)]
        guards += [one for one in expected if one.kind != "shown" and not one.missed and one.is_close_to_printed]
        loose = {one.row for one in expected if one.kind == "shown" or one.missed}
        assert loose <= {one.row for one in guards}, name


def test_a_printed_figure_has_one_name_and_a_name_one_figure():
    figures, names = {}, {}
    for name, one in _of_claims():
        claim = SCENARIOS[name].claim
        printed = (one.source or claim.source, one.printed)
        assert figures.setdefault(one.figure, printed) == printed
        assert names.setdefault(printed, one.figure) == one.figure


def test_a_figure_that_is_shown_is_not_listed_as_one_that_no_row_can_test():
    """A row of HyperParallel moves by one edit: its entry under ``untested`` goes when a scenario shows it."""
    untested = [one.figure for name in CLAIMS for one in SCENARIOS[name].claim.untested]
    assert len(untested) == len(set(untested))
    assert set(untested).isdisjoint(one.figure for _, one in _of_claims())


def test_what_is_shown_in_a_setting_of_ours_states_it_and_its_range():
    """Where no source prints a setting, a number alone would say nothing."""
    for name, one in _of_claims():
        claim = SCENARIOS[name].claim
        if one.agrees_if:
            assert claim.setting, name
            assert one.range or not one.ends("printed"), f"{name}: {one.figure} has no range"


RANGES = [name for name in CLAIMS if any(one.range for one in SCENARIOS[name].expect)]


@pytest.mark.slow
@pytest.mark.parametrize("name", RANGES)
def test_a_range_is_what_sensitivity_finds(name):
    found = sensitivity([name]).table.to_dict("records")
    for one in (one for one in SCENARIOS[name].expect if one.range):
        shares = [1 + row["error"] for row in found if (row["figure"], row["row"]) == (one.figure, one.row)]
        ends = [share * one.ends("printed")[0] for share in (min(shares), max(shares))]
        assert one.ends("range") == pytest.approx(ends, rel=0.01), one.figure


def _with_choices():
    return [name for name in names() if open_claim(name).choices]


def taken(loaded, base=None):
    """The value of each choice, of a scenario or of one that predicts it, that its documents have."""
    found = {}
    for choice in opened(base or loaded).claim.choices:
        for name in choice.options:
            axis = Axis(choice.choice, choice.fields, "a test", values=choice.options)
            changed = catalog.at(loaded, {axis: name})
            same = [stated(changed, path) == stated(loaded, path) for path in choice.fields]
            if all(same):
                found[choice.choice] = name
    return found


def stated(loaded, path):
    """What documents state at a path."""
    document, _, key = path.partition(".")
    found = {"workload": loaded.workload, "scenario": loaded.scenario}.get(document, loaded.hardware)
    return [value for _, value in fields(found, key if document in ("workload", "scenario") else path)]


SAYS = {
    "deepseek_v3_nsa_deployments": {
        "expert ranks": ("32", "32 expert ranks"),
        "all other weights": ("cut by 4", "all other weights cut by 4"),
        "weights": ("one byte", "one byte"),
        "sequences a die": ("1", "1 sequence a die"),
        "keys and values of the three views": ("own", "own keys and values"),
        "experts of a layer": ("three kernels", "three kernels"),
        "rows on their way": ("apart", "rows apart"),
    },
    "deepseek_v3_train_baseline": {
        "layers": ("11", "11 layers"),
        "routed experts": ("32", "32 routed experts"),
        "dense layers": ("3", "3 dense layers"),
        "tokens of a sample": ("4096", "samples of 4,096 tokens"),
        "SwiGLU": ("fused", "fused SwiGLU"),
    },
}
"""Scenario -> by choice, the value that is recorded as chosen, and how the scenario says it."""


@pytest.mark.parametrize(
    ("base", "name"),
    [
        ("deepseek_v3_nsa_deployments", "deepseek_v3_nsa_deployments"),
        ("deepseek_v3_nsa_deployments", "deepseek_v3_nsa_deployments_123k"),
        ("deepseek_v3_nsa_deployments", "deepseek_v3_nsa_deployments_compactions"),
        ("deepseek_v3_nsa_deployments", "deepseek_v3_nsa_deployment_least_peak"),
        ("deepseek_v3_train_baseline", "deepseek_v3_train_baseline"),
        ("deepseek_v3_train_baseline", "deepseek_v3_train_offload"),
    ],
)
def test_what_was_chosen_is_what_the_documents_have_and_what_the_scenario_says(base, name):
    (said,) = SCENARIOS[name].claim.chosen.values()
    found = taken(catalog.resolve(name), catalog.resolve(base))
    if name == "deepseek_v3_train_offload":
        assert found.keys() == SAYS[base].keys()
    assert found == {choice: value for choice, (value, _) in SAYS[base].items()}
    assert [words for _, words in SAYS[base].values() if words not in " ".join(said.split())] == []


def test_whatever_lists_choices_or_is_predicted_by_them_says_what_it_chose():
    predicted = {name for one in _with_choices() for name in open_claim(one).predicts}
    selecting = {name for name in _with_choices() if open_claim(name).selects}
    assert {name for name in predicted | selecting if not SCENARIOS[name].claim.chosen} == set()


def test_what_was_counted_stands_in_what_the_command_printed():
    """Enumerations take up to half an hour: what scenarios record of them is what the pages show, word by word."""
    for name in _with_choices():
        claim = SCENARIOS[name].claim
        if open_claim(name).selects:
            assert claim.counted, name
        command = rf"<!-- measured by: python tests/choices.py [^\n]*\b{name}\b[^\n]* -->\n.*?```text\n(.*?)```"
        for line in claim.counted:
            (shown,) = re.findall(command, PAGES, re.DOTALL)
            assert line in shown.splitlines()


def test_a_printed_figure_has_one_tolerance():
    """By it what is shown is held in sensitivities and choices, and what is predicted in its own scenario."""
    held = {}
    for _, one in _of_claims():
        if one.kind == "shown" and len(one.ends("printed")) != 1:
            continue
        if one.kind in ("shown", "predicted"):
            ours = held_to_printed(one) if one.kind == "shown" else one
            held.setdefault(one.figure, set()).add(ours.within)
    assert {figure: within for figure, within in held.items() if len(within) > 1} == {}


def test_a_printed_change_is_held_to_its_sign():
    changes = [one for _, one in _of_claims() if "%" in str(one.printed) and one.kind == "predicted" and not one.missed]
    assert {one.figure for one in changes} == {
        "step_at_40gbps",
        "torchtune_peak_change",
    }
