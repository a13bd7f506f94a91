"""How many random cases a law is tried with."""

import os

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "laws")


def examples(most: int) -> int:
    """So many where one looks further, a quarter of them by default."""
    return most // 4 if PROFILE == "laws" else most
