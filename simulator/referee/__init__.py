"""Laws that every plan and every trace obeys, checked without a line of the engine's code.

Before a run, `check_job` compares the graphs of ranks that meet, `check_plan` walks a plan in issue order, and
`check_order` looks for ranks that wait for one another in a circle; after it, `check_trace` checks the trace. Their
errors are for the author of the job (`ConfigError`), of the plan (`PlanError`), or of the engine (`InvariantError`).
"""

from simulator.referee.facts import Fault, RankPlan, Report, describe, refuse
from simulator.referee.findings import Findings
from simulator.referee.job_laws import check_job, check_order
from simulator.referee.plan_laws import check_plan
from simulator.referee.trace_laws import check_trace

__all__ = [
    "Fault",
    "Findings",
    "RankPlan",
    "Report",
    "check_job",
    "check_order",
    "check_plan",
    "check_trace",
    "describe",
    "refuse",
]
