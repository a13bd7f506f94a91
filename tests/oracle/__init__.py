"""A second simulator, slow and plain, written from docs/reference/semantics.md (rules 1 to 11, 14, 15 and 17).

It looks at every action at every instant, and keeps the work left of every flow. It knows ranks that meet and share
tiers and buses, fixed plans and runtimes, staged links, shared queues, dynamic reads, and places with addresses by best
fit. It does not know kernels that copies slow down, folding, and the other allocators. No line of the engine's is used,
nor of the costs. What it reads of the project are documents and plans: graphs, a machine, the actions of a plan, and
what dynamic reads choose. Its premises are the duration of each op as the graph states it, and the table of
collectives (`oracle/meetings.py`).
"""

from oracle.instants import Oracle as Oracle
from oracle.instants import Told as Told
from oracle.order import Given as Given
