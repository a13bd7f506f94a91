"""Names of folders and files for what people have called as they liked."""

from __future__ import annotations

import re
from collections.abc import Sequence

COMPARISON = "comparison.png"
"""Name of the picture of the table."""
_DOCUMENTS = ("scenario.yaml", "hardware.yaml", "workload.yaml")
_FILES = ("report.html", COMPARISON, "summary.csv", "summary.json", *_DOCUMENTS)
"""Names in the output folder that no row's folder may have."""


def folder_names(labels: Sequence[str]) -> dict[str, str]:
    """Choose a folder name for each row: its label, plain, with a number where it is taken.

    Parameters
    ----------
    labels
        Row labels, all different.
    """
    chosen: dict[str, str] = {}
    taken = set(_FILES)
    for label in labels:
        plain = re.sub(r"[^A-Za-z0-9._+-]+", "-", label).strip("-.") or "row"
        name, number = plain, 1
        while name.lower() in taken:
            number += 1
            name = f"{plain}-{number}"
        chosen[label] = name
        taken.add(name.lower())
    return chosen


def plan_names(programs: Sequence[str]) -> list[str]:
    """Choose a file name for the plan of each program: ``plan.jsonl`` if there is one, else with the program's name.

    Parameters
    ----------
    programs
        Their names, all different.
    """
    if len(programs) == 1:
        return ["plan.jsonl"]
    return [f"plan-{name}.jsonl" for name in folder_names(programs).values()]
