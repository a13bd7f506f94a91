"""What a plan's own lines tell: which steps cannot act, whatever the graph and the machine are.

A tensor is where its home or a copy puts it, until a detach takes it from there. An op may write any tensor, but in the
compute tier only, which no line names: the first place that only an op can have filled tells which tier that is.
"""

from __future__ import annotations

from simulator.errors import ConfigError
from simulator.formats import jsonl
from simulator.units import suggestion

Place = tuple[str, str]
"""A tensor and a tier."""


class PlanAlone:
    """Follows places from line to line.

    Parameters
    ----------
    path
        What messages call the file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._homes: dict[str, str] = {}
        self._valid: dict[Place, int] = {}
        self._gone: dict[Place, tuple[int, int]] = {}
        self._computes, self._step, self._line = 0, -1, 0
        self._compute_tier: tuple[str, str] | None = None

    def take(self, line: jsonl.Line) -> None:
        """Take a home or a step that is well-formed.

        Raises
        ------
        ConfigError
            If a step cannot act.
        """
        record, self._line = line.record, line.number
        if "home" in record:
            self._homes[record["home"]] = record["tier"]
            self._valid[record["home"], record["tier"]] = 0
            return
        self._step += 1
        if "compute" in record:
            self._computes += 1
        elif "copy" in record:
            self._copy(record["copy"], record["from"], record["to"])
        elif "detach" in record:
            self._detach(record["detach"], record["tier"])

    def _detach(self, tensor: str, tier: str) -> None:
        self._find(f"detach {tensor} from {tier}", (tensor, tier), "what is detached is there")
        del self._valid[tensor, tier]
        self._gone[tensor, tier] = self._computes, self._step

    def _copy(self, tensor: str, source: str, target: str) -> None:
        said = f"copy {tensor} {source} -> {target}"
        if source == target:
            raise self._error(said, "a copy goes from one tier to another", f"{source!r} twice", "correct one of them")
        self._find(said, (tensor, source), "what is copied is valid at its source")
        if self._valid.get((tensor, target)) == self._computes:
            found = f"{tensor!r} valid in {target} already"
            raise self._error(said, "a copy has work to do: its target is absent or stale", found, "drop this copy")
        self._valid[tensor, source] = self._valid[tensor, target] = self._computes

    def _find(self, said: str, place: Place, must: str) -> None:
        """Check that a step may find the tensor there; where only an op can have put it, there is the compute tier."""
        if place in self._valid:
            return
        tensor, tier = place
        computes, step = self._gone.get(place, (0, -1))
        if computes == self._computes:
            raise self._error(said, must, self._absence(place, step), self._advice(tensor))
        if self._compute_tier is None:
            self._compute_tier = tier, f"step {self._step:,} takes {tensor!r} from there"
        here, why = self._compute_tier
        if here != tier:
            found = f"{self._absence(place, step)}, and ops write in {here} only ({why})"
            raise self._error(said, must, found, self._advice(tensor))
        self._valid[place] = self._computes

    def _absence(self, place: Place, step: int) -> str:
        tensor, tier = place
        if step >= 0:
            return f"{tensor!r} absent from {tier} (detached by step {step:,})"
        if tensor in self._homes:
            return f"{tensor!r}, whose home is {self._homes[tensor]}, never copied into {tier}"
        before = "" if self._computes else ", and no op that could have written it"
        return f"{tensor!r} without a home or a copy into {tier}{before}"

    def _advice(self, tensor: str) -> str:
        near = "" if tensor in self._homes else suggestion(tensor, self._homes)
        return f"copy it there before, correct the step or drop it{near}"

    def _error(self, said: str, must: str, found: str, do: str) -> ConfigError:
        return ConfigError(f"{self._path}:{self._line}, step {self._step:,} ({said})", must, found, do)

    def end(self, repeats: int) -> None:
        """Check that the plan ends as a training step must.

        Parameters
        ----------
        repeats
            How many times the steps run; more than once, so that they must end as they began.

        Raises
        ------
        ConfigError
            If a tensor is where it may not be.
        """
        where, do = f"{self._path}, end of the plan", "copy it home if it has changed, and detach its other copies"
        for tensor, tier in self._valid:
            home = self._homes.get(tensor)
            if home is None:
                must = "what has no home is detached everywhere when a training step ends"
                raise ConfigError(where, must, f"{tensor!r} held in {tier}", "detach it after its last use")
            if home != tier:
                must = "what has a home ends a training step there, and nowhere else"
                raise ConfigError(where, must, f"{tensor!r} (home {home}) held in {tier}", do)
        for tensor, home in self._homes.items():
            place = tensor, home
            gone = place not in self._valid and self._gone[place][0] == self._computes
            if repeats > 1 and gone:
                must = "what has a home is there again when the steps are repeated"
                raise ConfigError(where, must, f"{tensor!r} absent from {home}", "leave it there, or copy it back")
