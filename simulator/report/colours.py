"""Colours that colour-blind readers can tell apart, and how text and lines look; the same in pictures and pages.

Tensor kinds take the light fills, causes of a stall the vibrant tones and compute the greys of Paul Tol's schemes.
"""

from __future__ import annotations

from typing import Any

KIND = {
    "weight": "#77aadd",
    "gradient": "#ee8866",
    "optimizer_state": "#aaaa00",
    "activation": "#44bb99",
    "kv_cache": "#eedd88",
    "expert": "#ffaabb",
    "workspace": "#dddddd",
    "input": "#99ddff",
}
"""Tensor kind -> colour of its memory and of its transfers."""

CAUSE = {
    "capacity": "#ee7733",
    "transfer": "#cc3311",
    "host": "#ee3377",
    "compaction": "#663333",
    "peer": "#33bbee",
    "order": "#0077bb",
    "collective": "#ccbb44",
}
"""Cause of a wait -> colour of the stall."""

PHASE = {"forward": "#8d99a6", "backward": "#5d6b7a", "update": "#2f3b47", "prefill": "#8d99a6", "decode": "#5d6b7a"}
"""Phase of an op -> colour of its compute."""
COMPUTE = "#75828f"
"""Compute of an op without a phase."""
RECOMPUTE = "#aa4499"
"""Compute that runs again, in any phase."""
DRAIN = "#bfc6cd"
"""Copies that end after the last op of a run of one step."""
PEAK = "#b4c4d4"
"""The peak of a memory."""

GROUPS = ("#332288", "#117733", "#882255", "#88ccee", "#999933", "#44aa99")
"""Groups of ranks -> colours of their collectives, in turn."""

INK, FAINT = "#222222", "#8a8a8a"
TEXT: dict[str, Any] = {"fontsize": 9, "color": INK, "parse_math": False}
SMALL: dict[str, Any] = TEXT | {"fontsize": 8}
LIMIT: dict[str, Any] = {"color": INK, "linewidth": 1.1, "linestyle": (0, (5, 2))}
"""The line of a limit, such as a budget."""
