"""The story of `hosim layout`: what every rank of a workload holds, and what ranks communicate in a step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from json import dumps
from pathlib import Path

from simulator import catalog, formats
from simulator.builders import build_job, layouts
from simulator.graph import Job
from simulator.layout import Weight
from simulator.report import layout_text
from simulator.workload import Workload


@dataclass(frozen=True)
class Spread:
    """A workload over its ranks.

    Attributes
    ----------
    workload
        What runs.
    job
        Its graphs, and which rank runs which.
    weights
        How its weights are cut, where the builder says so.
    """

    workload: Workload
    job: Job
    weights: dict[str, Weight]

    def text(self) -> str:
        """Tell it in tables."""
        return layout_text.told(self.job, self.workload, self.weights)

    def json(self) -> str:
        """The same as JSON, sizes in bytes."""
        return dumps(layout_text.data(self.job, self.weights, self.workload.dtypes.element_bytes), indent=2)


def layout(workload: str | Path) -> Spread:
    """Spread a workload over its ranks.

    Parameters
    ----------
    workload
        A name in the catalogue, or a path that ends in ``.yaml``.

    Raises
    ------
    ConfigError
        If the document is wrong, or the model cannot be spread like that.
    """
    entry = catalog.load(workload, "workload")
    found = entry.document
    job = build_job(found, entry.path.parent, partial(formats.read_graph, views=found.views))
    return Spread(found, job, layouts(found))
