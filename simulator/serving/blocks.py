"""KV blocks and their tiers: a block is held, then cached, then stored one tier down, and finally dropped.

A block is named by its tokens, as the i-th block of a shared prefix (in a tree of prefixes, of the one in which the
block ends) or of a request; and by its group of layers, which keep the same tokens of a sequence. The compute tier
holds the blocks of all running sequences. Blocks that they leave are cached there, if that tier keeps blocks. When room
is needed, the least recently used block goes first: it is stored in the next tier down, unless that has it already, and
may in turn push that tier's least recently used block further down. From the last tier blocks are dropped. A block that
is copied in also stays where it was, so it need not be stored again.

So it is by default: tiers are *written back*, and *inclusive*. A tier that is *written through* gets a block once the
tier above has it in full (perhaps only on its n-th use), and none that leaves that tier. From an *exclusive* one a
block that is copied in moves. See `simulator.scenario.KvTier`.

The room for blocks follows from the scenario, and from what the largest iteration holds besides them.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from simulator.builders import CachedLayers, Iteration, cached_layers, decoder_of, iteration, limited_reaches
from simulator.catalog import Loaded
from simulator.errors import ConfigError, insist
from simulator.graph import Graph, Job
from simulator.lifetime import live_bytes
from simulator.plan import FREE
from simulator.reach import Reach
from simulator.run.placement import home_ids, shares
from simulator.scenario import KvTier
from simulator.units import human
from simulator.workload import Request, Requests


class Block(NamedTuple):
    """Name of a block.

    Attributes
    ----------
    is_shared
        Whether it is part of a prefix, with which other prompts may begin; all others are *private*.
    owner, number
        Its prefix or its request, and its position there. A prefix that only request n has, which may be interrupted,
        is -1 - n.
    """

    is_shared: bool
    owner: int
    number: int
    group: int = 0


class Tiers:
    """The KV blocks in each tier.

    Parameters
    ----------
    rooms, block
        The tiers with their room, and the number of tokens per block.

    Attributes
    ----------
    names, rooms, sizes
        The tiers, the room in each [B], and the size of a block for each group of layers [B].
    held_bytes
        Size of the blocks that running sequences hold [B].
    through
        Tiers that are written through -> how many uses of a block it takes.
    stores
        ((source, target), group) -> number of blocks stored since this was last cleared.
    """

    def __init__(self, rooms: Rooms, block: int) -> None:
        self.names, self.rooms, self.sizes, self._keeps = rooms.names, rooms.room_bytes, rooms.sizes(block), rooms.keeps
        self._whole_rooms = [room if room == math.inf else int(room) for room in self.rooms]
        self._held, self._private = dict[Block, int](), 0  # shared blocks and by how many; number of all others
        self._cached: list[OrderedDict[Block, int]] = [OrderedDict() for _ in rooms.names]  # first of a run -> length
        self._counts, self._cached_bytes, self.held_bytes = [0 for _ in rooms.names], [0 for _ in rooms.names], 0
        self.stores: Counter[tuple[tuple[str, str], int]] = Counter()
        below = list(enumerate(rooms.kept, 1))
        self.through = {tier: kept.uses for tier, kept in below if kept.write == "through"}
        self._exclusive = [tier for tier, kept in below if kept.content == "exclusive"]
        self._uses = Counter[Block]()

    def used(self, tier: int) -> int:
        """Count the blocks in a tier."""
        return self._counts[tier] + (0 if tier else self.held)

    @property
    def held(self) -> int:
        """Number of blocks that the running sequences hold."""
        return len(self._held) + self._private

    def where(self, block: Block) -> int:
        """Return the first tier that has a block; -1 if none does."""
        return 0 if block in self._held else next((t for t, blocks in enumerate(self._cached) if block in blocks), -1)

    def fits(self, hit: Sequence[Block], new_bytes: int) -> bool:
        """Tell whether a sequence with these hits and `new_bytes` of new blocks fits beside the running ones."""
        more = sum(self.sizes[block.group] for block in hit if block not in self._held)
        return self.held_bytes + new_bytes + more <= self.rooms[0]

    def admit(self, hit: Sequence[Block], new: Sequence[int]) -> None:
        """Give a sequence its cached blocks and new ones, and store the blocks that have to leave for them.

        Parameters
        ----------
        hit
            Blocks of its prefix that are in some tier.
        new
            Number of new private blocks of each group.
        """
        for block in hit:
            self._hold(block)
            self._drop(block, 0)
            self._touch(block)
        for block in hit if self.through else ():
            self.use(block)
        new_bytes = sum(size * count for size, count in zip(self.sizes, new, strict=True))
        self._make_room(0, new_bytes)
        self._private += sum(new)
        self.held_bytes += new_bytes

    def share_computed(self, block: Block) -> bool:
        """Share a computed private block with others; return False if the compute tier already has the same."""
        if block in self._held or block in self._cached[0]:
            return False
        self._private -= 1
        self.held_bytes -= self.sizes[block.group]
        self._hold(block)
        return True

    def use(self, block: Block) -> None:
        """Count that a block was computed or found, and store it where it is written through."""
        self._uses[block] += 1
        for tier in self.through:
            if tier == 1 or block in self._cached[tier - 1]:
                self._store_ahead(block, tier)

    def _store_ahead(self, block: Block, tier: int) -> None:
        """Store a block that the tier above has, if this one is written through and the block has been used enough."""
        if tier in self.through and self._uses[block] >= self.through[tier] and block not in self._cached[tier]:
            self._store(block, tier)

    def _touch(self, block: Block) -> None:
        """Make a block the most recently used one of the lower tiers that have it."""
        for below in self._cached[1:]:
            if block in below:
                below.move_to_end(block)

    def release(self, block: Block, count: int = 1, *, is_kept: bool, is_swapped: bool = False) -> None:
        """Release a block that a sequence held; if no other holds it and it is to be kept, it stays cached.

        Parameters
        ----------
        block, count
            A shared block; or the first of a run of `count` private ones, each with the number below.
        is_kept
            Whether the tokens of these blocks are cached, and in no other block.
        is_swapped
            Whether they then leave for the next tier at once, however that is written.
        """
        if not block.is_shared:
            self._private -= count
        elif self._held[block] > 1:
            self._held[block] -= 1
            return
        else:
            del self._held[block]
        self.held_bytes -= count * self.sizes[block.group]
        # Where blocks were stored before, those from the beginning of a sequence leave last, too.
        for place in range(count if is_kept and self.through else 0):
            self._touch(block._replace(number=block.number - place))
        if is_kept and is_swapped and block not in self._cached[1]:
            self._store(block, 1)
        elif is_kept and self._keeps and not is_swapped:
            self._cache(block, 0, count)
        elif is_kept and not is_swapped:
            for place in range(count):
                self._push(block._replace(number=block.number - place), 0)

    def _hold(self, block: Block) -> None:
        self.held_bytes += 0 if block in self._held else self.sizes[block.group]
        self._held[block] = self._held.get(block, 0) + 1
        for tier in self._exclusive:
            self._drop(block, tier)

    def _cache(self, block: Block, tier: int, count: int = 1) -> None:
        self._cached[tier][block] = count
        self._counts[tier] += count
        self._cached_bytes[tier] += count * self.sizes[block.group]

    def _drop(self, block: Block, tier: int) -> None:
        count = self._cached[tier].pop(block, 0)
        self._counts[tier] -= count
        self._cached_bytes[tier] -= count * self.sizes[block.group]

    def _make_room(self, tier: int, more_bytes: int) -> None:
        """Let the least recently used blocks go; of a run those that are needless where there is no tier below."""
        cached, other_bytes, is_last = self._cached[tier], more_bytes, tier + 1 == len(self.names)
        other_bytes += 0 if tier else self.held_bytes
        while cached and (excess := other_bytes + self._cached_bytes[tier] - self._whole_rooms[tier]) > 0:
            block, count = next(iter(cached.items()))
            self._drop(block, tier)
            gone = min(count, -int(-excess // self.sizes[block.group])) if is_last else 1
            if gone < count:
                rest = block._replace(number=block.number - gone)
                self._cache(rest, tier, count - gone)
                cached.move_to_end(rest, last=False)
            self._push(block, tier)

    def _push(self, block: Block, source: int) -> None:
        """Let a block leave for the next tier, if there is one that has to get it: see the rules above."""
        target = source + 1
        if target == len(self.names):
            return
        if block in self._cached[target]:
            self._cached[target].move_to_end(block)
        elif target not in self.through and (target not in self._exclusive or self.where(block) < 0):
            self._store(block, target)

    def _store(self, block: Block, target: int) -> None:
        """Store a block in a tier, unless that is too small, from the one above."""
        if self.sizes[block.group] > self.rooms[target]:
            return
        self._make_room(target, self.sizes[block.group])
        self._cache(block, target)
        self.stores[(self.names[target - 1], self.names[target]), block.group] += 1
        self._store_ahead(block, target + 1)


def seen_blocks(reach: Reach, cached: int, size: int) -> Sequence[int]:
    """Return the blocks of `size` tokens that the next token after the cached ones sees, in layers of a reach."""
    sinks, near = reach.near(cached)
    return list(dict.fromkeys([*range(-(-sinks // size)), *range(near // size, -(-cached // size))]))


def blocks_to_hold(reach: Reach, cached: int, request: Request, asked: Requests) -> Sequence[int]:
    """Return the blocks that a sequence holds in layers of a reach, once `cached` of its tokens are cached.

    With a window these are the blocks that the next token sees, and room for the most tokens added at a time, at any
    offset in a block. Later in the sequence the number never grows.
    """
    size, total = asked.block, -(-(request.prompt + request.output) // asked.block)
    if reach.block or reach.window is None:
        return range(1 if reach.block else total)
    sinks, first = -(-reach.sinks // size), reach.near(cached)[1] // size
    ahead = min(asked.max_tokens, max(1, request.prompt - cached))
    stop = min(total, max(sinks, first) + 1 - (1 - reach.window - ahead) // size)
    return list(dict.fromkeys([*range(min(sinks, stop)), *range(first, stop)]))


# room for blocks


def requests_of(loaded: Loaded) -> Requests:
    """Return the requests of a scenario's workload.

    Raises
    ------
    ConfigError
        If the workload has no requests.
    """
    if loaded.workload.requests is None:
        rule, do = "serving needs a workload of requests", "use hosim run, or add 'phase: requests' and requests"
        raise ConfigError(loaded.place("workload"), rule, f"phase {loaded.work.phase}", do)
    return loaded.workload.requests


class Rooms(NamedTuple):
    """Tiers that keep KV blocks, and their room.

    Attributes
    ----------
    names, room_bytes
        The compute tier and the lower tiers that keep blocks; the room for blocks in each [B].
    keeps
        Whether the compute tier keeps blocks that sequences leave.
    groups
        Groups of layers that keep the same tokens of a sequence.
    kept
        How each lower tier keeps blocks; default: all are written back, and inclusive.
    """

    names: tuple[str, ...]
    room_bytes: tuple[float, ...]
    keeps: bool
    groups: tuple[CachedLayers, ...]
    kept: tuple[KvTier, ...] = ()

    def sizes(self, block: int) -> list[int]:
        """Return the size of a block of `block` tokens in each group [B]."""
        return [group.block_bytes(block) for group in self.groups]


def groups_of(loaded: Loaded) -> tuple[CachedLayers, ...]:
    """Return the groups of layers, by the tokens that a rank keeps of a sequence."""
    return cached_layers(decoder_of(loaded.work), loaded.work.dtypes, loaded.work.parallel.tensor)


def rooms(loaded: Loaded, requests: Sequence[Request]) -> Rooms:
    """Compute the room for blocks in each tier that keeps them.

    In the compute tier this is what the scenario states, or else what the budget leaves beside the weights and
    everything that the largest iteration holds at once; in other tiers what the scenario states, or else what the
    weights leave.

    Parameters
    ----------
    loaded, requests
        The scenario, and the requests.

    Raises
    ------
    ConfigError
        If there is less room than the scenario says, or the compute tier cannot hold the longest request.
    """
    asked, groups = requests_of(loaded), groups_of(loaded)
    compute_tier, kept_in = loaded.hardware.compute_tier, loaded.scenario.kv_tiers
    names = (compute_tier, *(tier for tier in kept_in if tier != compute_tier))
    where, first = loaded.place("kv_tiers", compute_tier), next(iter(kept_in), compute_tier)
    rule, do = "tiers that keep blocks are named from the compute tier down", f"name {compute_tier} first"
    insist(first == compute_tier or compute_tier not in kept_in, where, rule, f"{compute_tier} after {first}", do)
    may_preempt = asked.preemption != "never"
    longest_prompt = max(request.prompt + request.output * may_preempt for request in requests)
    decoding = min(asked.max_sequences, len(requests))
    near = ((1, 1, 1),) * len(limited_reaches(decoder_of(loaded.work)))
    fullest = Iteration(decoding, 1, asked.max_tokens - decoding, longest_prompt, longest_prompt, decoding, near)
    graph = iteration(loaded.work, fullest, 0)
    left_bytes = [_left_bytes(loaded, graph, tier) for tier in names]
    keeps, kept = compute_tier in kept_in or not kept_in, tuple(map(loaded.scenario.kv_tier, names))
    room = Rooms(names, tuple(max(0.0, left) for left in left_bytes), keeps, groups, kept[1:])
    for tier, how, has_bytes in zip(names, kept, room.room_bytes, strict=True):
        rule, do = "write, uses and content are of tiers below that have room for a block", "remove it"
        is_below, chosen = has_bytes >= max(room.sizes(asked.block)), sorted(how.model_fields_set - {"room_bytes"})
        where, is_below = loaded.place("kv_tiers", tier, *chosen[:1]), is_below and tier != compute_tier
        insist(is_below or not chosen, where, rule, f"{tier}, {human(has_bytes, 'B')}", do)
    if asked.preemption == "swap":
        _check_swaps(room, loaded.place("requests", "preemption", of="workload"))
    index, longest = max(enumerate(requests), key=lambda pair: pair[1].prompt + pair[1].output)
    where, rows = f"workload {loaded.work.name}, requests", decoder_of(loaded.work).positions
    must, found = "a request is no longer than the table of positions", f"{sum(longest[1:3]):,} tokens of {rows:,}"
    insist(not rows or sum(longest[1:3]) <= rows, where, must, found, "lower the tokens of requests")
    taken = [len(blocks_to_hold(group.reach, 0, longest, asked)) for group in groups]
    needed = sum(size * blocks for size, blocks in zip(room.sizes(asked.block), taken, strict=True))
    short, budget = max(0, needed - left_bytes[0]), loaded.scenario.budget_bytes
    rule = f"each request fits in the compute tier ({compute_tier}) beside weights and the largest iteration"
    lacking = f"request {index} of {longest.prompt:,} and {longest.output:,} tokens, {human(needed, 'B')}"
    lacking += f", where {human(room.room_bytes[0], 'B')} are left for KV blocks: short by {human(short, 'B')}"
    lever, now = f"tiers.{compute_tier}.capacity", loaded.hardware.tiers[compute_tier].capacity_bytes
    lever, now = (lever, now) if budget is None else ("the budget", budget)
    do = f"raise {lever} to {now + short:,.0f} B, lower max_tokens or the tokens of requests, or move weights (homes)"
    if compute_tier in kept_in:
        do = f"raise {compute_tier} of kv_tiers to {needed:,} B, or lower the tokens of requests"
    insist(not short, where, rule, lacking, do)
    return room


def _check_swaps(room: Rooms, where: str) -> None:
    """Refuse to swap what is not cached in blocks, and where no tier below keeps them."""
    rule, has_states = "only KV blocks are swapped", any(group.reach.block for group in room.groups)
    insist(not has_states, where, rule, "layers with a state, which has none", "say recompute")
    rule, do = "swapped blocks go to a tier below that keeps KV blocks", "name one in kv_tiers, or say recompute"
    insist(any(room.room_bytes[1:2]), where, rule, "none", do)


def _left_bytes(loaded: Loaded, graph: Graph, tier: str) -> float:
    """Return what a tier has left for a rank's KV blocks [B]; negative if even the rest does not fit."""
    homes, job = home_ids(loaded, [graph]), Job.of(graph, loaded.work.ranks)
    names, compute_tier = loaded.hardware.tier_names, loaded.hardware.compute_tier
    lasting = Counter[str]()
    for home, tensor in zip(homes[0], graph.tensors, strict=True):
        lasting["free" if home == FREE else names[home]] += tensor.size_bytes if tensor.persistent else 0
    left, stated = shares(job, loaded.hardware, homes)[0][names.index(tier)], loaded.scenario.kv_tier(tier).room_bytes
    left -= lasting[tier]
    if tier == compute_tier:
        budget = loaded.scenario.budget_bytes
        left -= 0 if budget is None else loaded.hardware.tiers[tier].usable_bytes - budget
        left -= int(live_bytes(graph).max()) - lasting.total()
        rule = "with homes of weights in other tiers, the room for KV blocks in the compute tier is stated"
        is_said = stated is not None or lasting.total() == lasting[compute_tier]
        insist(is_said, loaded.place("kv_tiers", tier), rule, "none", "add it")
    if stated is None:
        return left
    sharing = min(job.ranks, loaded.hardware.topology.sharing[loaded.hardware.tiers[tier].scope])
    rule = f"KV blocks fit beside weights and iterations in {tier} ({human(max(0.0, sharing * left), 'B')})"
    do = "lower it, or raise the capacity"
    insist(stated <= sharing * left, loaded.place("kv_tiers", tier), rule, human(stated, "B"), do)
    return stated / sharing
