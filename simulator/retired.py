"""What hosim once took, and what to write in its place: who writes an old word is told the new one."""

from __future__ import annotations

_OPEN = "of the claims of a checkout `python tests/{}.py NAME` tells; of a scenario of yours `hosim sweep --grid` does"
_BESIDE = "write it in a document beside the scenario, NAME.open.yaml, which tests/{}.py of a checkout reads"

COMMANDS = {
    "sensitivity": _OPEN.format("sensitivity"),
}
"""Command that is gone -> what to say in its place."""
FUNCTIONS = {
    "enumerate_choices": _OPEN.format("choices"),
    "sensitivity": _OPEN.format("sensitivity"),
}
"""Function of the package that is gone -> what to call in its place."""
OPTIONS: dict[str, str] = {}
"""Option that is gone, where no option has its name -> the one to say."""
KEYS = {
    "Claim": {
        "choices": _BESIDE.format("choices"),
        "predicts": _BESIDE.format("choices"),
        "screens": _BESIDE.format("choices"),
        "selects": _BESIDE.format("choices"),
        "unstated": _BESIDE.format("sensitivity"),
    },
    "Scenario": {"fold": "drop it: ranks that run the same stand for one another wherever that changes nothing"},
}
"""Class of a part of a document -> key that is gone -> what to do."""
