"""Every shipped scenario does what it says: its expectations are the guard over the published figures."""

from __future__ import annotations

import pytest

import simulator as hosim
from simulator import catalog

WITH_EXPECTATIONS = [name for name in catalog.names("scenario") if catalog.read_scenario(name).expect]
RUN_ELSEWHERE = {"cloudmatrix384_pool", "llama3_8b_2x2x2", "llama3_8b_16_replicas", "moe_experts_on_demand"}
"""`test_many_ranks` and `test_experts` run each once, for its expectations and for what the README says."""
SLOW = {"deepseek_v3_nsa_kv_offload", "kimi_k2_on_one_node", "prefill_decode_pools"}


def test_the_claims_are_among_them():
    assert {"llama3_8b_train_910c", "llama3_8b_train_910c_40gbps", "llama3_8b_train_910c_70gbps"} <= {
        name.rsplit("/", 1)[-1] for name in WITH_EXPECTATIONS
    }


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name in WITH_EXPECTATIONS
        if name not in RUN_ELSEWHERE
    ],
)
def test_every_expectation_of_a_shipped_scenario_holds(name):
    results = hosim.run(name)
    missed = [str(e) for e in results.expectations if not e.holds]
    assert results.expectations
    assert missed == []
