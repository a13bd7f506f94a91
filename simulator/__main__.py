"""``python -m simulator`` is ``hosim``."""

from simulator.cli import main

if __name__ == "__main__":
    main()
