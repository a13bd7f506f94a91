"""How a KV cache is cut into tensors."""

from __future__ import annotations

from typing import Literal

from simulator.document import Count, Part
from simulator.units import require, would_divide
from simulator.workload.attention_kinds import Attention

MOST = 500_000
"""Most blocks of a KV cache: a run then takes about 1 GB of memory."""
_MOST_READS = 10_000_000
"""Most block reads by all tokens or chunks of a step: listing them takes 80 MB and some seconds."""


class KvBlocks(Part):
    """A KV cache in blocks, each a tensor with a home of its own (paged attention, arXiv 2309.06180).

    Attributes
    ----------
    block
        Tokens of a sequence in a block.
    sequences
        Number of sequences that share a tensor, each with one block in it; or ``all``.
    new
        With phase ``decode``, when blocks for new tokens are allocated: ``reserved``, at home from the start; or
        ``as_needed``, with their first token and until the step ends, so that the cache grows as decode proceeds. If
        their home is another tier, they have room there from the start, and are there at the end of the step.
    """

    block: Count
    sequences: Count | Literal["all"] = 1
    new: Literal["reserved", "as_needed"] = "reserved"

    def together(self, batch: int) -> int:
        """Return how many of `batch` sequences share a tensor."""
        return batch if self.sequences == "all" else self.sequences

    def check(self, part: Attention, chunk: int | None) -> None:
        """Refuse a size of blocks that does not suit the attention, or the chunks of prompts.

        Raises
        ------
        FieldError
            If it does not; the message says what would.
        """
        must, found = "a chunk fills whole blocks", f"chunks of {chunk} and blocks of {self.block:,} tokens"
        do = would_divide("kv.block", chunk or 1, self.block)
        require(not chunk or chunk % self.block == 0, must, found, "kv", "block", do=do)
        if part.sparse is not None:
            must, size = "a block that is selected is a block of the cache", part.sparse.select.block
            require(size == self.block, must, f"{size} and {self.block}", "kv", "block", do=f"set kv.block to {size}")
            must, found = "each sequence selects blocks of its own", f"{self.sequences} in a tensor"
            require(self.sequences == 1, must, found, "kv", "sequences", do="remove sequences")

    def check_count(self, layers: int, batch: int, tokens: int, times: int) -> None:
        """Refuse more blocks than `MOST`, or more reads than `_MOST_READS` if all are read `times` times.

        Raises
        ------
        FieldError
            If there are more, or if more sequences are to share a tensor than a batch has.
        """
        must = "no more sequences have a block in a tensor than a batch has"
        require(self.together(batch) <= batch, must, f"{self.sequences} of {batch:,}", "kv", "sequences", do="lower it")
        found = layers * -(-batch // self.together(batch)) * -(-tokens // self.block)
        must = f"a KV cache has at most {MOST:,} blocks"
        do = "raise kv.block or kv.sequences, or lower batch or sequence"
        require(found <= MOST, must, f"{found:,}", "kv", "block", do=do)
        must = f"the tokens of a step read at most {_MOST_READS:,} blocks"
        do = "raise kv.block or chunk, or lower new_tokens"
        require(found * times <= _MOST_READS, must, f"{found:,} blocks, {times:,} times", "kv", "block", do=do)
