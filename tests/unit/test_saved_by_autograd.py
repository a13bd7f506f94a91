"""What PyTorch's autograd saves of layers of Hugging Face models is what hosim says that is saved."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
import saved_by_autograd
from examples import some


@pytest.mark.parametrize("case", some([(case,) for case in saved_by_autograd.CASES], 3), ids=" ".join)
def test_saved_bytes_agree_within_two_percent(case: saved_by_autograd.Case) -> None:
    """The rest are numbers of one element a row: statistics of norms, indices and weights of routers."""
    found, expected = saved_by_autograd.saved_by_hosim(case), saved_by_autograd.saved_by_torch(case)
    assert found == pytest.approx(expected, rel=0.02)


COUNTED = [case for case in saved_by_autograd.CASES if case.norms == "eager" and case.option != "checkpoint"]


@pytest.mark.parametrize("case", some([(case,) for case in COUNTED], 3), ids=" ".join)
def test_matrix_products_are_those_that_pytorch_counts(case: saved_by_autograd.Case) -> None:
    """Forward and backward, to the last FLOP."""
    assert saved_by_autograd.products_by_hosim(case) == saved_by_autograd.products_by_torch(case)
