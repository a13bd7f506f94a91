"""Arguments in, text and an exit code out; a command imports what it needs when it runs."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from io import RawIOBase, TextIOWrapper
from typing import Any, NoReturn

import click

from simulator import __version__, interrupts, retired
from simulator.cli.asking import crossover, frontier, layout, limits
from simulator.cli.documents import calibrate, check, diff, graph, import_, list_, schema
from simulator.cli.plans import export, lint
from simulator.cli.run import plan, run, serve, sweep, validate
from simulator.cli.torch_steps import torch

_SEARCHES = 50_000, 20, 20
"""After how many new objects Python searches them for garbage, and after how many such searches older ones."""
_FAILED, _USAGE, _BY_SIGNAL, _INTERRUPTED, _BROKEN_PIPE = 1, 2, 128, 130, 141
_LATER_S = 0.01
"""Delay after which an interrupt that could not be raised is raised again [s]: too short for a person to notice, long
enough for the object to be freed."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    Parameters
    ----------
    arguments
        The arguments; default: those of the process.
    """
    try:
        code = _run(arguments)
    except _Interrupt as last:  # came while the end of the command was being reported
        code = _BY_SIGNAL + last.args[0]
    sys.exit(code)


def _run(arguments: Sequence[str] | None) -> int:
    """Run the command line, report how it ended, and return the exit code."""
    _prepare()
    _Interrupt.came = False
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _raise_later
    interrupts.complete.clear()
    for signal_number in interrupts.INTERRUPTS:
        if signal.getsignal(signal_number) != signal.SIG_IGN:
            signal.signal(signal_number, _interrupt)
    if wanted := os.environ.get("_HOSIM_COMPLETE"):
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(hosim, {}, "hosim", "_HOSIM_COMPLETE", wanted))
    code: int | str
    try:
        given = sys.argv[1:] if arguments is None else list(arguments)
        with hosim.make_context("hosim", [*given], obj=given) as context:
            code = hosim.invoke(context) or 0
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        code = done.exit_code
    except click.ClickException as error:
        error.show()
        code = _USAGE
    except (KeyboardInterrupt, click.Abort):
        code = _stopped()
    except BrokenPipeError:
        code = _BROKEN_PIPE
    except Exception as error:
        code = _stopped() if _Interrupt.came else _explained(error)
    if isinstance(code, str):  # printed here, once the error's objects are freed: memory may be short
        click.echo(f"hosim: {code}", err=True)
        code = _FAILED
    try:
        sys.stdout.flush()
    except OSError:  # nobody reads the rest, and Python would flush again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _prepare() -> None:
    """Set up the process.

    Print characters that the terminal lacks as escapes. Keep matplotlib from reading settings and from logging. Keep
    OpenBLAS, which comes with numpy, from starting threads: if it has no memory for them, it interrupts the process.
    Let Python search for garbage less often: it finds hardly any, and took a twentieth of the time of a run.
    """
    import logging

    gc.set_threshold(max(gc.get_threshold()[0], _SEARCHES[0]), *_SEARCHES[1:])
    logging.getLogger("matplotlib").setLevel(logging.CRITICAL)
    os.environ.pop("MPLBACKEND", None)
    os.environ["MATPLOTLIBRC"] = os.devnull
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    if isinstance(sys.stdout, TextIOWrapper):
        if isinstance(sys.stdout.buffer, RawIOBase):  # unbuffered, where Python loses what cannot be written at once
            sys.stdout = open(sys.stdout.fileno(), "w", encoding=sys.stdout.encoding, closefd=False)  # noqa: SIM115
        sys.stdout.reconfigure(errors="backslashreplace")


def _stopped() -> int:
    whole = " and ".join(interrupts.complete)
    click.echo(f"hosim: stopped; {f'{whole} is complete' if whole else 'nothing was written'}", err=True)
    return _INTERRUPTED


class _Interrupt(KeyboardInterrupt):
    """Ctrl-C, or a signal that ends a command in the same way.

    It is not a plain KeyboardInterrupt: if one passes through a module's import, Python ends the process by the signal,
    even if the exception is caught later.
    """

    came = False
    """Whether a signal came: an interrupt in an import or a callback may surface as any other error."""


def _interrupt(signal_number: int, frame: object) -> NoReturn:
    """Treat every signal as Ctrl-C, so that nothing is left half written."""
    _Interrupt.came = True
    raise _Interrupt(signal_number)


def _raise_later(unraisable: sys.UnraisableHookArgs) -> None:
    """Raise an interrupt a little later if Python cannot raise it now, as while an object is freed."""
    if isinstance(unraisable.exc_value, _Interrupt):
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, _LATER_S)
    else:
        sys.__unraisablehook__(unraisable)


def _explained(error: Exception) -> str:
    """Return the message of an error; raise an unforeseen one again, for its traceback.

    Failures of the system are first: they may also prevent the imports that the other messages need.
    """
    if _is_of_memory(error):
        return f"memory: the run fits in memory, found {str(error) or 'no more'}; {_LESS}"
    if isinstance(error, OSError):
        where = "the working directory: " if isinstance(error, FileNotFoundError) else ""  # has no name any more
        where = f"{error.filename}: " if error.filename else where
        return f"{where}the system lets hosim read and write, found {error.strerror or error}"
    cause = error.__cause__ or error
    if isinstance(cause, ImportError) and (cause.path or "").endswith(tuple(EXTENSION_SUFFIXES)):
        return f"{cause.path}: the system loads it, found {cause}; {_LESS}; or install hosim anew"

    from concurrent.futures.process import BrokenProcessPool

    from simulator.errors import HosimError

    if isinstance(error, HosimError):
        return str(error)
    if isinstance(error, BrokenProcessPool):
        return f"a process: processes of hosim last until their work is done, found {error}; {_LESS}"
    raise error


def _is_of_memory(error: BaseException | None) -> bool:
    """Return whether an error, or one that led to it, says that memory is short; C code may raise SystemError then."""
    is_short = isinstance(error, MemoryError | SystemError) or "out of memory" in str(error)
    return error is not None and (is_short or _is_of_memory(error.__cause__ or error.__context__))


_LESS = "see whether memory is short, and give more of it, or run less at once: --policy, --workers 1"


_COMMANDS = {
    "Run": (list_, run, serve, plan, sweep, torch, diff),
    "Ask back": (frontier, crossover, limits, layout),
    "Bring your own": (import_, calibrate, check, lint, graph, export, schema),
    "Compare with published figures": (validate,),
}


class _Grouped(click.Group):
    """Groups commands by what people want, and says of a command that is gone what to say in its place."""

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, each group under its heading."""
        for heading, commands in _COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl([(str(command.name), command.get_short_help_str(80)) for command in commands])

    def resolve_command(self, context: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, Any]:
        """Find the command that is named first."""
        if args and args[0] in retired.COMMANDS:
            context.fail(f"No such command {args[0]!r}: {retired.COMMANDS[args[0]]}.")
        return super().resolve_command(context, args)


def _version(context: click.Context, parameter: click.Parameter, is_asked: bool) -> None:
    """Print the version, and which engine is used."""
    if is_asked:
        from simulator.engine import hint, in_use

        line = hint()
        click.echo(f"hosim {__version__} (engine: {in_use()}){line and f'; {line}'}")
        context.exit()


@click.group(
    cls=_Grouped,
    commands=[command for group in _COMMANDS.values() for command in group],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit."
)
def hosim() -> None:
    """Replay an LLM operator graph on a memory hierarchy, and explain every stall.

    \b
    Start here:
      hosim run tiny_train_910c                     seven policies in a table, and the findings in words
      hosim run tiny_train_910c --out results/tiny  the same as a page, with pictures and timelines
      hosim list scenarios                          everything that is ready to run
      hosim run --hardware h100_sxm --workload llama31_8b_decode
                                                    a machine and a model of your choice
      hosim COMMAND --help                          options and examples of a command
    """  # noqa: D301 - click reads the backspace as "do not wrap"
