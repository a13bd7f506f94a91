"""The package under the name of its command: ``import hosim``."""

import sys

import simulator

sys.modules[__name__] = simulator
