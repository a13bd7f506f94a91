"""``hosim``, and ``python -m simulator``: an interrupt ends it in one line, also while modules are being imported.

Until the handler is set, nothing is imported that Python has not loaded already; that is why `_signal` stands here, the
module in C that `signal` wraps. What remains is the start of Python itself, before it knows of hosim.
"""

import _signal  # type: ignore[import-not-found]
import os
import sys

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import NoReturn


def main() -> "NoReturn":
    """Run the command line and exit."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _leave)
    _open()
    try:
        from simulator.cli import main as command_line  # noqa: PLC0415 - what takes time is imported under that handler
    except ModuleNotFoundError as missing:
        sys.exit(f"hosim: it needs the package {missing.name}, found none; install hosim: pip install -e .")

    try:
        command_line()
    finally:  # the exit code stands: what comes while Python itself ends changes nothing
        from simulator.interrupts import INTERRUPTS  # noqa: PLC0415 - has long been imported

        for signum in INTERRUPTS:
            _signal.signal(signum, _signal.SIG_IGN)


def _open() -> None:
    """Open onto nothing what a shell has closed (``>&-``): else a file gets its descriptor, and what is printed."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, "r" if descriptor == 0 else "w", closefd=False))  # noqa: SIM115


def _leave(signum: int, frame: object) -> "NoReturn":
    """End at once: an exception would be lost in some imports, and there is nothing to clean up yet."""
    os.write(2, b"hosim: stopped; nothing was written\n")
    os._exit(130)


if __name__ == "__main__":
    main()
