"""What hosim once took, and what to write in its place: who writes an old word is told the new one."""

from __future__ import annotations

_OPEN = "of the claims of a checkout `python tests/{}.py NAME` tells; of a scenario of yours `hosim sweep --grid` does"
_BESIDE = "write it in a document beside the scenario, NAME.open.yaml, which tests/{}.py of a checkout reads"

COMMANDS = {
    "largest": "write hosim frontier SCENARIO --of workload.FIELD --at-most VALUE",
    "least": "write hosim frontier SCENARIO --of FIELD --at-most VALUE",
    "robust": "write hosim sweep SCENARIO --plans once --jitter 5%, or --grid 'links.*.bandwidth=1x,0.9x' for --jitter",
    "scaling": "write hosim sweep SCENARIO, if it has the key sweep, or --grid FIELD=VALUE,VALUE",
    "sensitivity": _OPEN.format("sensitivity"),
}
"""Command that is gone -> what to say in its place."""
FUNCTIONS = {
    "largest": "write hosim.frontier(scenario, of='workload.FIELD', at_most=..., slowdown=['inf'])",
    "least": "write hosim.frontier(scenario, of='FIELD', at_most=..., slowdown=['inf'])",
    "enumerate_choices": _OPEN.format("choices"),
    "robustness": "write hosim.sweep(scenario, plans='once'), with jitter=[...], or with a grid of what changes",
    "scaling": "write hosim.sweep(scenario)",
    "sensitivity": _OPEN.format("sensitivity"),
}
"""Function of the package that is gone -> what to call in its place."""
OPTIONS = {
    "frontier": {"--field": "--of"},
    "search": {"--memory": "--budget", "--over": "--grid"},
    "sweep": {"--at-most": "--most-cells"},
}
"""Command -> option that is gone -> the one to say."""
KEYS = {
    "Claim": {
        **dict.fromkeys(("choices", "predicts", "screens", "selects"), _BESIDE.format("choices")),
        "unstated": _BESIDE.format("sensitivity"),
    },
    "DecoderModel": {
        **dict.fromkeys(("stem_bias", "stem_rows", "stem_widths"), "write it in a part of stem: bias, rows or width"),
        "merger": "write mergers: [[{rows: 4, width: 5120, activation: plain}, {width: 3584}]], a list for each output",
    },
    "Frontier": {"field": "write of"},
    "Question": {"field": "write of"},
    "Scenario": {
        "fold": "drop it: ranks that run the same stand for one another wherever that changes nothing",
        "largest": "write frontier: {of: workload.FIELD, at_most: ..., slowdown: [inf]}",
        "least": "write frontier: {of: FIELD, at_most: ..., slowdown: [inf]}",
        "scaling": "write sweep: {workload.FIELD: [...]}",
    },
}
"""Class of a part of a document -> key that is gone -> what to do."""
