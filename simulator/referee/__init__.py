"""Laws that every plan and every trace obeys, checked without a line of the engine's code.

`check_plan` walks a plan in issue order before it runs; `check_trace` holds what happened against the laws after it
ran. The one speaks to whoever made the plan (`PlanError`), the other to whoever made the engine (`InvariantError`).
"""

from simulator.referee.findings import Findings
from simulator.referee.plan import check_plan
from simulator.referee.trace import check_trace

__all__ = ["Findings", "check_plan", "check_trace"]
