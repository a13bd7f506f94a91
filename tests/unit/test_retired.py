"""Old words: who writes one is told in one message what to write in its place."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

import simulator as hosim
from simulator import retired
from simulator.catalog import resolve
from simulator.cli import hosim as command
from simulator.errors import ConfigError
from simulator.scenario import Claim, Frontier, Scenario
from simulator.scenario.question import Question
from simulator.units import FieldError
from simulator.workload import DecoderModel

PARTS = {part.__name__: part for part in (Claim, DecoderModel, Frontier, Question, Scenario)}


@pytest.mark.parametrize("name", retired.COMMANDS)
def test_a_command_that_is_gone_says_which_one_to_write(name):
    done = CliRunner().invoke(command, [name, "tiny_train_910c"])
    assert done.exit_code == 2
    assert f"No such command {name!r}: {retired.COMMANDS[name]}." in done.output
    assert name not in command.commands


@pytest.mark.parametrize("name", retired.FUNCTIONS)
def test_a_function_that_is_gone_says_which_one_to_call(name):
    with pytest.raises(AttributeError) as refused:
        getattr(hosim, name)
    assert retired.FUNCTIONS[name] in str(refused.value)
    assert name not in hosim.__all__


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (("layout", "search") if name == "search" else (name,), old, new)
        for name, options in retired.OPTIONS.items()
        for old, new in options.items()
    ],
)
def test_an_option_that_is_gone_says_which_one_to_write(path, old, new):
    done = CliRunner().invoke(command, [*path, "tiny_train_910c", old, "x"])
    assert done.exit_code == 2
    assert f"No such option {old!r}: write {new}." in done.output
    assert f" {new} " in CliRunner().invoke(command, [*path, "--help"]).output


@pytest.mark.parametrize(("part", "key"), [(part, key) for part, keys in retired.KEYS.items() for key in keys])
def test_a_key_that_is_gone_says_which_one_to_write(part, key):
    with pytest.raises(ValueError, match="only known keys stand here") as refused:
        PARTS[part].model_validate({key: "x"})
    assert retired.KEYS[part][key] in str(refused.value)
    assert key not in PARTS[part].model_fields


def test_so_does_a_change_of_such_a_key():
    with pytest.raises((ConfigError, FieldError), match="found 'fold'; drop it"):
        resolve("tiny_train_910c", {"scenario.fold": "never"})
