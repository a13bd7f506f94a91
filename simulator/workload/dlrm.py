"""The dimensions of recommenders: tables of rows of which each sample looks some up, and two perceptrons."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from simulator.document import Count, CountOrNone, Few, Part
from simulator.units import require
from simulator.workload.models import DecoderModel, LlamaModel, family

Widths = Annotated[tuple[Count, ...], Field(min_length=2, max_length=100)]
"""Widths of a perceptron: of its input, and of what each layer makes."""


class RowCache(Part):
    """The rows of each table that the compute tier holds; the others are at home elsewhere.

    Attributes
    ----------
    share
        Share of a table's rows that the cache has room for.
    by
        Choice of these rows: the hottest, chosen before the run (``static``) or by how often they were used (``lfu``,
        the same once it has settled); or those that were used last (``lru``).
    block
        Number of neighbouring rows that come and go together. The rows of a table are in the order of their popularity.
    """

    share: Annotated[float, Field(gt=0, lt=1)]
    by: Literal["static", "lfu", "lru"] = "static"
    block: Count = 1


class EmbeddingTable(Part):
    """A table of embeddings, or several alike.

    Attributes
    ----------
    rows
        Rows of the table.
    lookups
        Mean number of rows that a sample looks up and adds up (pooling).
    count
        Number of such tables.
    """

    rows: Count
    lookups: Annotated[float, Field(gt=0, le=10**6)]
    count: Few = 1


class DlrmModel(Part):
    """The dimensions of a deep learning recommendation model (DLRM, arXiv 1906.00091).

    Attributes
    ----------
    family
        Names this family of models.
    dim
        Width of all embeddings (``--arch-sparse-feature-size``).
    bottom
        Widths of the perceptron for dense features; the last is `dim` (``--arch-mlp-bot``).
    top
        Widths of the layers that take the products of all pairs of vectors (``--arch-mlp-top``).
    tables
        The tables.
    skew
        Skew of the popularity of rows: the r-th most popular row has a share of the lookups that is proportional to r
        to the power of minus this (Zipf); 0: all are alike.
    cache
        What the compute tier holds of a table; default: all of it.
    rows_in
        Data type of the rows.
    row_state_bytes
        Optimizer state of each row [B]; default: row-wise Adagrad, one fp32 number (FBGEMM, EXACT_ROWWISE_ADAGRAD).
    sharding
        What a rank has: whole tables (``tables``), or an equal part of the rows of each (``rows``).
    """

    family: Literal["dlrm"]
    dim: Count
    bottom: Widths
    top: Widths
    tables: Annotated[tuple[EmbeddingTable, ...], Field(min_length=1, max_length=1000)]
    skew: Annotated[float, Field(ge=0, le=4)]
    cache: RowCache | None = None
    rows_in: Literal["fp32", "bf16", "fp16"] = "fp32"
    row_state_bytes: CountOrNone = 4
    sharding: Literal["tables", "rows"] = "tables"

    def _check(self) -> None:
        must, found = "the bottom perceptron ends in an embedding", f"{self.bottom[-1]:,} and {self.dim:,}"
        require(self.bottom[-1] == self.dim, must, found, "bottom", do="end it with dim")

    @property
    def vectors(self) -> int:
        """How many vectors of a sample come together: one of each table, and that of its dense features."""
        return 1 + sum(table.count for table in self.tables)

    @property
    def row_bytes(self) -> int:
        """Size of a row with its optimizer state [B]."""
        return self.dim * (4 if self.rows_in == "fp32" else 2) + self.row_state_bytes

    @property
    def layers(self) -> dict[str, tuple[int, int]]:
        """Layer of a perceptron -> its inputs and outputs; those of the top begin with products of pairs of vectors."""
        pairs = self.vectors * (self.vectors - 1) // 2 + self.dim
        widths = {"bottom": self.bottom, "top": (pairs, *self.top)}
        return {f"{name}.{i}": pair for name, whole in widths.items() for i, pair in enumerate(pairwise(whole))}

    @property
    def layer_parameters(self) -> dict[str, int]:
        """Layer -> its parameters, biases included."""
        return {name: (inputs + 1) * outputs for name, (inputs, outputs) in self.layers.items()}

    @property
    def parameters(self) -> int:
        """Parameters of all tables and layers."""
        return sum(self.layer_parameters.values()) + sum(table.count * table.rows * self.dim for table in self.tables)


_OfText = Annotated[LlamaModel, Tag("llama")] | Annotated[DecoderModel, Tag("decoder")]
AnyModel = Annotated[_OfText | Annotated[DlrmModel, Tag("dlrm")], Discriminator(family)]
"""The dimensions of a model of any family; ``llama`` if none is named."""
