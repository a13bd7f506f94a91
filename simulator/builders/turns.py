"""Stages of a pipeline: the layers of each, and in which turns it runs its micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress, pairwise

from simulator.errors import insist
from simulator.workload import Parallel, Workload

Turn = tuple[str, int, int]
"""What a stage runs at a time: ``forward`` or ``backward``, and which micro-batch through which chunk of its layers."""


def stage_layers(workload: Workload, layers: int, where: str) -> tuple[int, ...]:
    """Return the layers of each stage of the pipeline, or of each virtual stage, in the order of the model.

    Raises
    ------
    ConfigError
        If the stages have more or fewer layers than the model, or one has none.
    """
    parallel, stated = workload.parallel, workload.parallel.layers
    stages = parallel.pipeline * parallel.chunks
    few, more = divmod(layers, stages)
    must, do = f"each stage has some of the model's {layers} layers", f"set pipeline to at most {layers}"
    if parallel.chunks > 1:
        must = f"the virtual stages have equally many of the model's {layers} layers"
        do, few = "correct chunks, or say layers", 0 if more else few
    of_stage, found = tuple(few + (stage < more) for stage in range(stages)), f"{stages} stages"
    if stated:
        must, do = f"the stages have the {layers} layers of the model, and one at least", "correct parallel.layers"
        of_stage, found = stated, ", ".join(map(str, stated))
    insist(sum(of_stage) == layers and 0 not in of_stage, f"{where}, parallel.pipeline", must, found, do)
    return of_stage


def turns(parallel: Parallel, stage: int) -> Iterator[Turn]:
    """Yield the turns of a stage in their order.

    ``gpipe``: all forward, then all backward, the last first (Huang et al. 2019). ``1f1b``: as many forward as there
    are stages behind, then one forward and one backward in turn (PipeDream-Flush, Narayanan et al. 2021).
    ``interleaved``: likewise, as many micro-batches as there are stages going through a chunk before the next chunk
    has them; twice as many are ahead, and a group for each further chunk (arXiv 2104.04473, section 2.2). Twice as many
    are ahead as well where turns are woven: else a forward that begins beside a backward needs what that ends with.

    Parameters
    ----------
    parallel
        Schedule, stages, micro-batches and chunks.
    stage
        Index of this stage.
    """
    micros, stages, chunks = parallel.micro_batches, parallel.pipeline, parallel.chunks
    is_gpipe, total = parallel.schedule == "gpipe", micros * chunks
    ahead = (stages - stage - 1) * (1 + (chunks > 1 or parallel.woven)) + (chunks - 1) * stages
    ahead = total if is_gpipe else min(ahead, total)
    each = stages if chunks > 1 else micros  # how many micro-batches a chunk has before the next one
    forward = [
        (first + micro, chunk) for first in range(0, micros, each) for chunk in range(chunks) for micro in range(each)
    ]
    backward = [(micro, chunks - 1 - chunk) for micro, chunk in (reversed(forward) if is_gpipe else forward)]
    yield from (("forward", *part) for part in forward[:ahead])
    for ahead_of_it, back in zip(forward[ahead:], backward, strict=False):
        yield "forward", *ahead_of_it
        yield "backward", *back
    yield from (("backward", *part) for part in backward[total - ahead :])


def pairs(order: Sequence[Turn], parallel: Parallel) -> list[int]:
    """Return which turns are woven with the one behind: a backward before a forward; in GPipe, each second one."""
    phases = pairwise(phase for phase, *_ in order)
    is_gpipe = parallel.schedule == "gpipe"
    is_first = [turn % 2 == 0 if is_gpipe else pair == ("backward", "forward") for turn, pair in enumerate(phases)]
    return [*compress(range(len(is_first)), is_first)]
