"""Arguments in, text and an exit code out; what a command needs is imported when it runs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from io import RawIOBase, TextIOWrapper
from typing import NoReturn

import click

from simulator import __version__, interrupts
from simulator.cli.asking import crossover, frontier, largest, least, limits
from simulator.cli.documents import check, diff, graph, import_, layout, list_, schema
from simulator.cli.run import plan, robust, run, scaling, sensitivity, serve, sweep, validate

_FAILED, _USAGE, _BY_SIGNAL, _INTERRUPTED, _BROKEN_PIPE = 1, 2, 128, 130, 141
_LATER_S = 0.01


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    Parameters
    ----------
    arguments
        Default: those of the process.
    """
    try:
        code = _run(arguments)
    except _Interrupt as last:  # while it was told how the command ended, which says enough
        code = _BY_SIGNAL + last.args[0]
    sys.exit(code)


def _run(arguments: Sequence[str] | None) -> int:
    """Run the command line, tell how it ended, and return the exit code."""
    _prepare()
    _Interrupt.came = False
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _not_raised
    interrupts.complete.clear()
    for number in interrupts.INTERRUPTS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)
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
    if isinstance(code, str):  # with the error all is gone that it held, so that there is room to say so
        click.echo(f"hosim: {code}", err=True)
        code = _FAILED
    try:
        sys.stdout.flush()
    except OSError:  # nobody takes the rest, and Python would try again as it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _prepare() -> None:
    """Make this process hosim's own.

    All can be printed. Matplotlib listens to nobody, and says nothing. OpenBLAS, which comes with numpy and has nothing
    to do here, starts no threads: where memory is short it would end the process for them, and by an interrupt.
    """
    import logging

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
    """Ctrl-C, or what ends a command as it does, in a class of its own.

    If Python's own passes through code that a module runs while it is imported, Python ends the process by the signal,
    whoever catches it later.
    """

    came = False
    """Whether there was one: what is raised in an import or a callback may come back as any other error."""


def _interrupt(number: int, frame: object) -> NoReturn:
    """End on every interrupt as on Ctrl-C, so that nothing is left half written."""
    _Interrupt.came = True
    raise _Interrupt(number)


def _not_raised(what: sys.UnraisableHookArgs) -> None:
    """Try again a little later where nothing can be raised at the moment, as while an object is freed."""
    if isinstance(what.exc_value, _Interrupt):
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, _LATER_S)
    else:
        sys.__unraisablehook__(what)


def _explained(error: Exception) -> str:
    """Tell in one message what is wrong; what hosim did not foresee is raised again, for its traceback.

    First comes what the system refuses: it may refuse to import what else there is to know.
    """
    if isinstance(error, MemoryError):
        return f"memory: there is room for what runs, found no more; {_LESS}"
    if isinstance(error, SystemError):  # code in C that found no room for its own error
        return f"memory: there is room for what runs, found {error}; {_LESS}"
    if isinstance(error, OSError):
        what = "the working directory: " if isinstance(error, FileNotFoundError) else ""  # has no name any more
        what = f"{error.filename}: " if error.filename else what
        return f"{what}the system lets hosim read and write, found {error.strerror or error}"
    cause = error.__cause__ or error
    if isinstance(cause, ImportError) and (cause.path or "").endswith(tuple(EXTENSION_SUFFIXES)):
        return f"{cause.path}: the system loads it, found {cause}; {_LESS}; or install hosim anew"

    from concurrent.futures.process import BrokenProcessPool

    from simulator.errors import HosimError

    if isinstance(error, HosimError):
        return str(error)
    if isinstance(error, BrokenProcessPool):
        return f"a process: what hosim starts lasts until its work is done, found {error}; {_LESS}"
    raise error


_LESS = "see whether memory is short, and give more of it, or run less at once: --policy, --no-trace, --workers 1"


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(message="hosim %(version)s", version=__version__)
def hosim() -> None:
    """Replay an LLM operator graph on a memory hierarchy, and explain every stall.

    \b
    Examples:
      hosim list                                     what is there to run
      hosim run tiny_train_910c                      a first table, in a second or two
      hosim run llama3_8b_train_910c --out results/llama3_8b
    """  # noqa: D301 - click reads the backspace as "do not wrap"


for command in (run, plan, sweep, frontier, crossover, largest, least, limits, scaling, robust, serve, diff):
    hosim.add_command(command)
for command in (validate, sensitivity):
    hosim.add_command(command)
for command in (list_, import_, check, graph, layout, schema):
    hosim.add_command(command)
