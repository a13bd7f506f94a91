"""What a reader understood of a file of other people: hosim's own documents, and what was kept, derived and dropped."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from simulator import catalog
from simulator.builders import build_job
from simulator.errors import ConfigError, insist, quotable, system_message
from simulator.formats import graph_jsonl
from simulator.graph import Graph, Job
from simulator.inputs import shown
from simulator.interrupts import complete, waiting
from simulator.report import files
from simulator.report.card import Card, model_card
from simulator.units import counted
from simulator.workload import Workload

# So many lines of a part of what is told: all of it is one screen.
_MOST_TOLD = 12
_WORKLOAD = ".yaml"


@dataclass(frozen=True, eq=False)
class Imported:
    """What a reader understood.

    Attributes
    ----------
    files
        How the name of a file ends -> what is written there: ``.yaml`` a workload, ``.jsonl`` (or ``.jsonl.gz``) a
        graph, ``.csv`` requests. Where the workload names another one of them by its ending (``graph=".jsonl"``), the
        name of that file is written.
    kept
        What it is -> how much of it was understood, with a unit, in the order in which it is told: ``{"nodes":
        "27,156"}``. The card of the model (parameters, bytes of weights, ops) is counted and told by the command.
    derived
        What was worked out, and from what, a sentence each.
    dropped
        What the file holds and is not used -> how often.
    recorded_ns
        What the step took where it was recorded [ns]; 0 if nothing says so.
    """

    files: Mapping[str, bytes | Graph | Workload]
    kept: Mapping[str, str] = field(default_factory=dict)
    derived: tuple[str, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    recorded_ns: int = 0

    @property
    def workload(self) -> Workload:
        """The workload, which names no file yet."""
        return cast(Workload, self.files[_WORKLOAD])

    @property
    def graph(self) -> Graph | None:
        """The graph; None of a model, or of requests."""
        return next((one for one in self.files.values() if isinstance(one, Graph)), None)

    def __str__(self) -> str:
        parts = {
            "model": [f"{name}: {much}" for name, much in self.card.items()],
            "kept": [f"{name}: {much}" for name, much in self.kept.items()],
            "derived": list(self.derived),
            "dropped": [f"{name}, {counted(often, 'time')}" for name, often in self.dropped.items()],
        }
        return "\n".join(_part(name, lines) for name, lines in parts.items() if lines)

    @property
    def card(self) -> Card:
        """What the model, or the graph, is: see `simulator.report.card.model_card`."""
        work = self.workload
        if self.graph is not None:
            return model_card(work, Job.of(self.graph))
        return model_card(work, None if work.requests is not None else build_job(work))

    def json(self) -> dict[str, Any]:
        """What was kept, derived and dropped, in full, and the card."""
        return {"card": self.card, "kept": dict(self.kept), "derived": [*self.derived], "dropped": dict(self.dropped)}

    def write(self, out: str | Path, *, force: bool = False, source: str | Path = "") -> tuple[Path, ...]:
        """Write all files, or none: beside their places first, then renamed.

        Parameters
        ----------
        out
            The workload document, whose name ends in ``.yaml``; the other files lie beside it, with its stem.
        force
            Whether what is there already is replaced.
        source
            What was read; it is not replaced in any case.

        Returns
        -------
        tuple of Path
            The files, the workload first.

        Raises
        ------
        ConfigError
            If one of them is there already, or cannot be written.
        """
        path = Path(out)
        must = "what is written begins with a workload, whose name ends in .yaml"
        insist(path.suffix == _WORKLOAD and path.stem, f"-o {path}", must, repr(path.name), "write such as mine.yaml")
        stem = path.name.removesuffix(_WORKLOAD)
        places = {end: path.with_name(stem + end) for end in sorted(self.files, key=_WORKLOAD.__ne__)}
        for place in places.values():
            is_source = os.path.exists(place) and os.path.exists(source) and os.path.samefile(place, source)
            insist(not is_source, f"-o {path}", "what is read is not written over", shown(place), "choose another name")
            must, do = "a file that is there is kept", "choose another name, or say --force"
            insist(force or not os.path.lexists(place), f"-o {path}", must, shown(place), do)
            files.check_file("-o", place)
        parts = {place: place.with_name(f".part-{os.getpid()}-{place.name}") for place in places.values()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for end, what in self.files.items():
                part = parts[places[end]]
                if isinstance(what, Graph):
                    graph_jsonl.write(what, part)
                else:
                    part.write_bytes(self._document(what, places) if isinstance(what, Workload) else what)
            with waiting():
                for place, part in parts.items():
                    part.replace(place)
                complete.append(str(path))
        except OSError as error:
            raise ConfigError(f"-o {path}", "the files can be written", system_message(error), "make room") from None
        finally:
            for part in parts.values():
                part.unlink(missing_ok=True)
        return tuple(places.values())

    def _document(self, workload: Workload, places: Mapping[str, Path]) -> bytes:
        """The workload as YAML, with what was derived as comments above it."""
        named: dict[str, Any] = {"graph": places[workload.graph or ""].name} if workload.graph in places else {}
        if (requests := workload.requests) is not None and requests.file in places:
            named["requests"] = requests.model_copy(update={"file": places[requests.file or ""].name})
        said = "".join(f"# {_shown(line)}\n" for line in self.derived)
        return (said + catalog.dump(workload.model_copy(update=named))).encode()


def _part(name: str, lines: list[str]) -> str:
    """A part of what is told, at most so many lines of it."""
    more = [f"and {len(lines) - _MOST_TOLD + 1:,} more (--json tells all)"] if len(lines) > _MOST_TOLD else []
    told = lines[: _MOST_TOLD - len(more)] + more
    return "\n".join((f"{name}:", *(f"  {_shown(line)}" for line in told)))


def _shown(line: str) -> str:
    """A line that may quote a file, as terminals and YAML take it."""
    return quotable(" ".join(line.split()), 300)


def named(text: str) -> str:
    """Make a name of a document of any text, such as the stem of a file."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-._")[:100] or "imported"
