"""All families of transformers: what is read is exact or says what is left out, as the page of evidence shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from hf_counts import Row, report, rows

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
