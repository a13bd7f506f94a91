"""Finds and reads documents, in a checkout or in an installed wheel; the only room that knows YAML."""

from simulator.catalog.loaded import Axis as Axis
from simulator.catalog.loaded import BudgetError as BudgetError
from simulator.catalog.loaded import Loaded as Loaded
from simulator.catalog.loaded import at as at
from simulator.catalog.resolved import asked_at as asked_at
from simulator.catalog.resolved import left_open as left_open
from simulator.catalog.resolved import question as question
from simulator.catalog.resolved import resolve as resolve
from simulator.catalog.resolved import scenario_of as scenario_of
from simulator.catalog.resolved import studied as studied
from simulator.catalog.settings import factor as factor
from simulator.catalog.settings import setting as setting
from simulator.catalog.shelf import KINDS as KINDS
from simulator.catalog.shelf import dump as dump
from simulator.catalog.shelf import load as load
from simulator.catalog.shelf import names as names
from simulator.catalog.shelf import path_of as path_of
from simulator.catalog.shelf import read_hardware as read_hardware
from simulator.catalog.shelf import read_scenario as read_scenario
from simulator.catalog.shelf import read_workload as read_workload
from simulator.catalog.shelf import schema as schema
