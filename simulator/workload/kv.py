"""How the KV cache is cut into tensors."""

from __future__ import annotations

from typing import Literal

from simulator.document import Count, Part
from simulator.units import FieldError, would_divide
from simulator.workload.attention import Gqa, Mla

MOST = 500_000
"""Most blocks of a KV cache: about 1 GB of memory for a run."""
MOST_READS = 10_000_000
"""Most blocks that the tokens or chunks of a step read, all together: 80 MB, and some seconds to list them."""


class KvBlocks(Part):
    """A KV cache in blocks, each a tensor with a home of its own (paged attention, arXiv 2309.06180).

    Attributes
    ----------
    block
        Tokens of a sequence in a block.
    sequences
        How many sequences have a block in the same tensor, or ``all``.
    left
        What becomes of a block that a window has passed: it is ``dropped``, as no token of its sequence sees it again,
        or ``stored``, for others that may (a prompt that shares only what is before it): it goes home, and stays there.
    new
        With phase ``decode``, whether the blocks of later new tokens are ``reserved`` from the start, at home, or come
        ``as_needed``: with their first token, until the step ends, so that the cache grows as decode proceeds. If their
        home is another tier, they have room there from the start, and end the step there.
    """

    block: Count
    sequences: Count | Literal["all"] = 1
    left: Literal["dropped", "stored"] = "dropped"
    new: Literal["reserved", "as_needed"] = "reserved"

    def together(self, batch: int) -> int:
        """How many of `batch` sequences have a block in the same tensor."""
        return batch if self.sequences == "all" else self.sequences

    def check(self, part: Gqa | Mla, chunk: int | None) -> None:
        """Refuse blocks that do not suit the attention, the length of sequences, or the chunks of prompts.

        Raises
        ------
        FieldError
            If there are such; the message says what does.
        """
        if chunk is not None and chunk % self.block:
            must, found = "a chunk fills whole blocks", f"chunks of {chunk:,} and blocks of {self.block:,} tokens"
            raise FieldError(must, found, would_divide("kv.block", chunk, self.block), ("kv", "block"))
        if self.left == "stored" and part.sparse is not None:
            must, found = "sparse attention leaves no block behind, as any may be selected again", "left: stored"
            raise FieldError(must, found, "remove left", ("kv", "left"))
        if self.left == "stored" and part.window is None:
            must, found = "blocks leave where attention has a window", "left: stored without one"
            raise FieldError(must, found, "remove left, or add attention.window", ("kv", "left"))
        if part.sparse is None:
            return
        if part.sparse.select.block != self.block:
            must, size = "a block that is selected is a block of the cache", part.sparse.select.block
            raise FieldError(must, f"{size} and {self.block}", f"set kv.block to {size}", ("kv", "block"))
        if self.sequences != 1:
            must, found = "each sequence selects blocks of its own", f"{self.sequences} in a tensor"
            raise FieldError(must, found, "remove sequences", ("kv", "sequences"))

    def check_count(self, layers: int, batch: int, tokens: int, times: int) -> None:
        """Refuse more blocks than `MOST`, or more than `MOST_READS` reads if all are read so many times.

        Raises
        ------
        FieldError
            If there are; or if more sequences were to have a block in a tensor than there are.
        """
        if self.sequences != "all" and self.sequences > batch:
            must, do = "no more sequences have a block in a tensor than a batch has", f"write at most {batch:,}, or all"
            raise FieldError(must, f"{self.sequences:,} of {batch:,}", do, ("kv", "sequences"))
        found = layers * -(-batch // self.together(batch)) * -(-tokens // self.block)
        if found > MOST:
            do = "raise kv.block or kv.sequences, or lower batch or sequence"
            raise FieldError(f"a KV cache has at most {MOST:,} blocks", f"{found:,}", do, ("kv", "block"))
        if found * times > MOST_READS:
            must = f"the tokens of a step read at most {MOST_READS:,} blocks"
            do = "raise kv.block or chunk, or lower new_tokens"
            raise FieldError(must, f"{found:,} blocks, {times:,} times", do, ("kv", "block"))
