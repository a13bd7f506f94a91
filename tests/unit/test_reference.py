"""The reference pages are what the program says of itself."""

import importlib.util
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def build():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        spec = importlib.util.spec_from_file_location("build_docs", DOCS / "build.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        yield module


def test_the_pages_that_are_made_are_what_the_program_says(build):
    pages = {page: (DOCS / page).read_text(encoding="utf-8") == text() for page, text in build.PAGES.items()}
    assert [page for page, is_current in pages.items() if not is_current] == []
    assert {f"reference/{name}.md" for name in ("commands", "columns", "policies")} < pages.keys()


def test_every_key_of_a_document_says_what_it_means(build):
    lines = (DOCS / "reference" / "documents.md").read_text(encoding="utf-8").splitlines()
    keys = [line for line in lines if line.startswith("| `")]
    without = [line for line in keys if line.rstrip("| ").endswith(("required", "`"))]
    assert len(keys) > 200
    assert {line.split("`")[1] for line in without} <= {"schema", "kind", "family", "fraction"}
