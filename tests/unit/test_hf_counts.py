"""All families of transformers: what is read is exact or says what is left out, as the page of evidence shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from hf_counts import STATED, Row, report, rows

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "families.md"


@pytest.fixture(scope="module")
def found() -> list[Row]:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    if transformers.__version__ != "5.24.0":
        pytest.skip("the families are those of transformers 5.24.0")
    return rows()


@pytest.mark.slow
def test_no_family_is_read_as_another_model_without_a_word(found: list[Row]) -> None:
    assert [row.name for row in found if row.verdict == "differs" and not row.note] == []


@pytest.mark.slow
def test_the_page_shows_what_is_read_and_what_is_refused(found: list[Row]) -> None:
    assert report(found) in PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
def test_defaults_are_those_of_the_class_that_reads_the_file() -> None:
    """No family takes a size from the defaults of another one."""
    transformers = pytest.importorskip("transformers")
    if transformers.__version__ != "5.24.0":
        pytest.skip("the defaults are those of transformers 5.24.0")
    from simulator.importers.hf_keys import FAMILIES, SETS

    wrong = []
    for name, family in FAMILIES.items():
        if name in transformers.CONFIG_MAPPING:
            own = transformers.CONFIG_MAPPING[name]().to_dict()
            stated = {key: value for key, value in family.defaults.items() if key in own and key not in SETS["rules"]}
            derived = (None, 0, "auto")  # left to a rule, or absent
            wrong += [
                f"{name}.{key}"
                for key, value in stated.items()
                if own[key] != value and own[key] not in derived and value not in derived
            ]
    assert wrong == ["bailing_hybrid.head_dim"]  # which its published files state of another part


NOT_RUN = "n_group topk_group num_experts num_shared_experts num_local_experts moe_num_experts moe_num_shared_experts"
NOT_RUN += " first_k_dense_replace num_dense_layers head_dim v_head_dim num_key_value_heads moe_intermediate_size"
NOT_RUN += " moe_layer_start_index moe_layer_interval mamba_n_groups mamba_d_state mamba_d_conv mamba_chunk_size"
NOT_RUN += " num_experts_per_tok n_heads n_layers max_seq_len d_model encoder_layers decoder_layers encoder_ffn_dim"
NOT_RUN += " decoder_ffn_dim encoder_attention_heads decoder_attention_heads"
"""Keys that a class takes as null, of which then no module can be made, or none that runs."""


@pytest.mark.slow
def test_null_is_read_where_the_class_that_reads_the_file_has_it() -> None:
    """And nowhere else: what a class refuses has no default here in its stead."""
    transformers = pytest.importorskip("transformers")
    if transformers.__version__ != "5.24.0":
        pytest.skip("the classes are those of transformers 5.24.0")
    from simulator.importers.hf_keys import _NULLS, FAMILIES

    wrong, only_there = [], set()
    for name, family in FAMILIES.items():
        if name not in transformers.CONFIG_MAPPING:
            continue
        own = transformers.CONFIG_MAPPING[name](**STATED.get(name, {})).to_dict()
        for key in (key for key in family.defaults if own.get(key) is not None):
            try:
                transformers.CONFIG_MAPPING[name].from_dict(own | {key: None})
                is_taken = True
            except Exception:  # of many kinds
                is_taken = False
            is_read = family.config.removesuffix("Config") in _NULLS.get(key, ())
            wrong += [f"{name}.{key}"] if is_read and not is_taken else []
            only_there |= {key} if is_taken and not is_read else set()
    assert wrong == []
    assert only_there <= {*NOT_RUN.split()}, only_there
