"""What hosim once took, and what to write in its place: who writes an old word is told the new one."""

from __future__ import annotations

COMMANDS: dict[str, str] = {}
"""Command that is gone -> what to say in its place."""
FUNCTIONS: dict[str, str] = {}
"""Function of the package that is gone -> what to call in its place."""
OPTIONS: dict[str, str] = {}
"""Option that is gone, where no option has its name -> the one to say."""
KEYS: dict[str, dict[str, str]] = {
    "Scenario": {"fold": "drop it: ranks that run the same stand for one another wherever that changes nothing"},
}
"""Class of a part of a document -> key that is gone -> what to do."""
