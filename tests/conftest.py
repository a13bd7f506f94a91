"""What all tests share: how often Python looks for garbage."""

import gc


def pytest_collection_finish() -> None:
    """As seldom as the command does, and never among what was there before the first test."""
    gc.set_threshold(20_000)
    gc.collect()
    gc.freeze()
