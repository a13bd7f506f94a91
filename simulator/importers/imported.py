"""The result of an import: hosim's own documents, and a report of what was kept, derived and dropped."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, cast

from simulator import catalog, inputs
from simulator.builders import build_job, largest_size
from simulator.errors import insist, quotable
from simulator.formats import graph_jsonl
from simulator.graph import Graph, Job
from simulator.outputs import written
from simulator.report.card import Amounts, Card, model_amounts, plain, texts
from simulator.units import counted
from simulator.workload import Workload

# Most lines of each part of the report, so that all of it fits on one screen.
_MOST_LINES = 11
# Most ops, and most tensors, of a model that is built only to describe it: they take seconds.
_MOST_BUILT = 50_000
# Most ranks times stages, each of which says who meets: they take seconds, too.
_MOST_MET = 1_000_000
_WORKLOAD = ".yaml"


FACTS = tomllib.loads(Path(__file__).with_name("facts.toml").read_text(encoding="utf-8"))
"""What other programs write, and what hosim takes it for."""


@dataclass(frozen=True, eq=False)
class Imported:
    """A workload that a reader made from a file, with its graph or requests.

    Attributes
    ----------
    files
        File suffix -> content: ``.yaml`` a workload, ``.jsonl`` (or ``.jsonl.gz``) a graph, ``.csv`` requests. Where
        the workload names another of these files by suffix (``graph=".jsonl"``), the full name is written.
    kept
        Name of what was understood -> amount with its unit, in the order of the report: ``{"nodes": "27,156"}``. The
        command adds the model's card (parameters, bytes of weights, ops).
    derived
        Sentences that say what was derived, and from what.
    dropped
        Name of what the file holds but hosim does not use -> number of times.
    recorded_ns, recorded_bytes
        Recorded time of the step [ns], and peak of its memory [B]; 0 if unknown.
    marked_ns
        What the recording itself says that the step took, by marks of the program [ns]; 0 if it has none.
    """

    files: Mapping[str, bytes | Graph | Workload]
    kept: Mapping[str, str] = field(default_factory=dict)
    derived: tuple[str, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    recorded_ns: int = 0
    recorded_bytes: int = 0
    marked_ns: int = 0

    @property
    def workload(self) -> Workload:
        """The workload, before it names its files."""
        return cast(Workload, self.files[_WORKLOAD])

    @property
    def graph(self) -> Graph | None:
        """The graph; None for a model or requests."""
        return next((content for content in self.files.values() if isinstance(content, Graph)), None)

    def __str__(self) -> str:
        facts = {"model": self.card, "kept": self.kept}
        parts = {part: [f"{name}: {amount}" for name, amount in amounts.items()] for part, amounts in facts.items()}
        parts |= {"derived": [*self.derived]}
        parts |= {"dropped": [f"{name}, {counted(times, 'time')}" for name, times in self.dropped.items()]}
        for lines in parts.values():
            more = len(lines) - _MOST_LINES
            lines[_MOST_LINES:] = [f"and {more:,} more (--json tells all)"] * (more > 0)
        return "\n".join("\n  ".join((f"{name}:", *map(_printable, lines))) for name, lines in parts.items() if lines)

    @property
    def card(self) -> Card:
        """The card of the model, or of the graph, for people."""
        return texts(self.amounts)

    @property
    def amounts(self) -> Amounts:
        """What is known of the model, or of the graph: see `simulator.report.card`; a large one is not built."""
        work = self.workload
        if self.graph is not None:
            return model_amounts(work, Job.of(self.graph))
        if work.requests is not None or work.decoder is None:
            return model_amounts(work, None)
        ops, tensors = largest_size(work, work.decoder)
        ranks = prod(work.parallel.device_matrix.values()) if work.parallel.ranks == "all" else 1
        is_met = ranks * work.parallel.pipeline <= _MOST_MET
        if is_met and max(ops, tensors) <= _MOST_BUILT:
            return model_amounts(work, build_job(work))
        size = counted(ops, "op") if ops > tensors else counted(tensors, "tensor")
        spread = "" if is_met else f" on each of {counted(ranks, 'rank')}"
        most = {"most_ops": ops, "most_tensors": tensors, "ranks": ranks}
        return model_amounts(work, None) | {"graph": (f"up to {size}{spread}, not built here", most)}

    def json(self) -> dict[str, Any]:
        """Return the card in numbers, and the full lists of what was kept, derived and dropped."""
        lists = {"kept": dict(self.kept), "derived": [*self.derived], "dropped": dict(self.dropped)}
        return {"card": plain(self.amounts), **lists}

    def write(self, out: str | Path, *, force: bool = False, source: str | Path = "") -> tuple[Path, ...]:
        """Write all files or none: each under a temporary name first, then renamed.

        Parameters
        ----------
        out
            The workload document, whose name ends in ``.yaml``; the other files are written beside it, with the same
            stem, and with ``.imported`` behind it where that is what is read.
        force
            Whether existing files are replaced.
        source
            The file that was read; it is never replaced.

        Returns
        -------
        tuple of Path
            The files, the workload first.

        Raises
        ------
        ConfigError
            If one of them exists already, or cannot be written.
        """
        path, where, must = Path(out), f"-o {Path(out)}", "the output is a workload, whose name ends in .yaml"
        insist(path.suffix == _WORKLOAD, where, must, repr(path.name), "write for example mine.yaml")
        places = {end: path.with_name(path.stem + end) for end in sorted(self.files, key=_WORKLOAD.__ne__)}
        for end, place in places.items():
            if os.path.exists(place) and os.path.exists(source) and os.path.samefile(place, source):
                places[end] = path.with_name(f"{path.stem}.imported{end}")  # what is read is not written over
        for place in places.values():
            found, do, is_free = inputs.shown(place), "choose another name", force or not os.path.lexists(place)
            insist(is_free, where, "a file that is there is kept", found, f"{do}, or say --force")
        with written(*places.values(), option="-o") as parts:
            for end, part in zip(places, parts, strict=True):
                if isinstance(content := self.files[end], Graph):
                    graph_jsonl.write(content, part)
                else:
                    part.write_bytes(self._document(content, places) if isinstance(content, Workload) else content)
        return tuple(places.values())

    def _document(self, workload: Workload, places: Mapping[str, Path]) -> bytes:
        """Return the workload as YAML, preceded by comments that say what was derived."""
        named = {"graph": workload.graph or "", "plan": workload.plan or ""}
        changes: dict[str, Any] = {key: places[end].name for key, end in named.items() if end in places}
        if (requests := workload.requests) is not None and requests.file in places:
            changes["requests"] = requests.model_copy(update={"file": places[requests.file or ""].name})
        comments = "".join(f"# {_printable(line)}\n" for line in self.derived)
        return (comments + catalog.dump(workload.model_copy(update=changes))).encode()


def _printable(line: str) -> str:
    """Make a line that may quote a file safe for terminals and YAML."""
    return quotable(" ".join(line.split()), 300)


def named(text: str) -> str:
    """Make the name of a document from any text, such as the stem of a file."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-._")[:100] or "imported"
