"""Which earlier tokens each token attends to (*sees*), where that is no window: chosen ones, compressed ones."""

from __future__ import annotations

from typing import Literal

from pydantic import StrictBool

from simulator.document import Count, Few, FewOrNone, Part
from simulator.units import require


class Compress(Part):
    """Compression of blocks of tokens into one token each; block i starts at i * `stride` (NSA, section 3.3.1).

    Attributes
    ----------
    block
        Tokens that become one.
    stride
        Tokens from the start of one block to the start of the next; divides `block`.
    """

    block: Count
    stride: Count

    def number(self, tokens: int) -> int:
        """Count the compressed tokens of a sequence of `tokens` tokens."""
        return max(0, (tokens - self.block) // self.stride + 1)

    def seen(self, tokens: int) -> int:
        """Sum over the first `tokens` tokens of a sequence how many compressed tokens each sees."""
        whole, left = divmod(max(0, tokens - self.block + 1), self.stride)
        return self.stride * whole * (whole + 1) // 2 + left * (whole + 1)

    def _check(self) -> None:
        self._divides("stride", "block")


def seen_in_blocks(tokens: int, top: int, block: int) -> int:
    """Sum over the first `tokens` tokens how many each sees in `top` blocks, of which its own is one, up to itself."""
    full = min(tokens, top * block)
    whole, left = divmod(tokens - full, block)
    own_blocks = whole * (block * (block + 1) // 2) + left * (left + 1) // 2
    return full * (full + 1) // 2 + (tokens - full) * (top - 1) * block + own_blocks


class Select(Part):
    """Selection of blocks of tokens: each token sees the blocks that score best (NSA, section 3.3.2).

    Attributes
    ----------
    block
        Tokens of a block.
    top
        Blocks that a token sees, its own block among them.
    first
        Number of these that are always the first blocks of the sequence.
    last
        Number of these that are always the last blocks before the token, its own included.
    """

    block: Count
    top: Few
    first: FewOrNone = 1
    last: Few = 2

    @property
    def chosen(self) -> int:
        """Number of blocks that are chosen by score."""
        return self.top - self.first - self.last

    def seen(self, tokens: int) -> int:
        """Sum over the first `tokens` tokens of a sequence how many tokens of selected blocks each sees."""
        return seen_in_blocks(tokens, self.top, self.block)

    def _check(self) -> None:
        found = f"{self.top} with {self.first + self.last} fixed"
        require(self.chosen > 0, "some of the top blocks are chosen by score", found, "top", do="raise it")


class Sparse(Part):
    """Native sparse attention (NSA, arXiv 2502.11089): three views of earlier tokens, weighted by gates and summed.

    Attributes
    ----------
    compress
        The view of all earlier tokens, compressed.
    select
        The view of the blocks that score best.
    window
        The view of the last tokens: how many, the token itself included.
    caches
        Whether all views use one key and value of a token (``shared``), or each has its ``own``, from a projection of
        its own, as in section 3.3.3; then all of these are cached.
    """

    compress: Compress
    select: Select
    window: Count
    caches: Literal["shared", "own"] = "shared"

    def _check(self) -> None:
        found = f"{self.compress.stride} and {self.select.block}"
        divides = self.select.block % self.compress.stride == 0
        require(divides, "compress.stride divides select.block", found, "select", "block")


class Indexer(Part):
    """Scores all earlier tokens with few heads; a token attends to the best ones (DeepSeek-V3.2-Exp, section 1).

    Attributes
    ----------
    heads
        Heads that score; the sum of their scores decides (``index_n_heads`` of the model's ``config.json``).
    head_size
        Width of a query, and of the single key per token, which is cached (``index_head_dim``).
    top
        Tokens, or blocks of them, that each token attends to (``index_topk``).
    block
        Tokens of a block, of which that with the best score decides, the token's own always among them; each head then
        chooses for the heads of queries that share a key (MiniMax-M3). Default: 1, tokens are chosen one by one.
    again
        Whether a token attends to the choice of an earlier layer: then this layer has no weights and no keys for it
        (GLM-5.2). The indices are read again, but no tensor keeps them between the layers.
    """

    heads: Count
    head_size: Count
    top: Count
    block: Count = 1
    again: StrictBool = False

    @property
    def cached(self) -> int:
        """Elements that it caches of a token."""
        return 0 if self.again else self.head_size


class Pool(Part):
    """Tokens that become one by sums of their rows, which a second row of each weights (DeepSeek-V4).

    Attributes
    ----------
    stride
        Tokens that become one; a token sees those that are complete.
    overlap
        Whether the tokens before these join as well, in rows of their own.
    indexer
        Chooses the compressed tokens that each token attends to; default: it attends to all.
    """

    stride: Count
    overlap: StrictBool = False
    indexer: Indexer | None = None

    @property
    def compress(self) -> Compress:
        """The blocks of tokens that become one."""
        return Compress(block=self.stride, stride=self.stride)

    @property
    def reach(self) -> int:
        """Count the tokens whose rows are kept at most: of a block, and of the one before it, if that joins."""
        return self.stride * (1 + self.overlap)

    @property
    def rows(self) -> int:
        """Rows that a token has for sums, and as many that weight them."""
        return 2 if self.overlap else 1

    def _check(self) -> None:
        again = self.indexer is not None and self.indexer.again
        require(not again, "an indexer chooses compressed tokens itself", "again", "indexer", do="remove it")
