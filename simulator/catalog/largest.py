"""What a scenario asks under ``largest``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from simulator.catalog.faults import Path, of_validation, to_error
from simulator.catalog.loaded import Loaded
from simulator.errors import ConfigError
from simulator.scenario import Largest


def question(loaded: Loaded, given: Mapping[str, Any]) -> Largest:
    """What is asked of a scenario: up to which value of a field of its workload rows fit.

    Parameters
    ----------
    loaded
        The scenario, with what it asks already.
    given
        What is asked instead; where that is None, the scenario's word holds.

    Raises
    ------
    ConfigError
        If nothing says what is searched, or how far.
    """
    stated = loaded.scenario.largest.model_dump(exclude_unset=True) if loaded.scenario.largest else {}
    asked = {**stated, **{key: value for key, value in given.items() if value is not None}}
    if not {"field", "at_most"} <= asked.keys():
        must = "a search says which field of the workload it is about, and how far it goes"
        do = "add such as 'largest: {field: sequence, at_most: 131072, multiple_of: 1024}', or --field and --at-most"
        raise ConfigError(loaded.place("largest"), must, " and ".join(sorted(asked)) or "neither", do)

    def place(path: Path) -> str:
        return loaded.place("largest", *map(str, path))

    try:
        return Largest.model_validate(asked)
    except ValidationError as error:
        raise to_error(of_validation(error, asked, Largest), "largest", place) from None
