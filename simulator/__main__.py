"""``hosim``, and ``python -m simulator``: an interrupt ends it in one line, also while modules are being imported."""

import os
import signal
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line and exit."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    from simulator.cli import main as command_line  # noqa: PLC0415 - what takes time is imported under that handler

    command_line()


def _leave(number: int, frame: object) -> NoReturn:
    """End at once: an exception would be lost in some imports, and there is nothing to clean up yet."""
    os.write(2, b"hosim: stopped; nothing was written\n")
    os._exit(130)


if __name__ == "__main__":
    main()
