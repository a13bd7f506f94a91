"""What runs the parts of a step: the accelerator, or the cores of its host."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from typing import Literal, Self

from pydantic import StrictBool

from simulator.document import FewOrNone, Layers, Part, Share
from simulator.units import decimal, require
from simulator.workload.feed_forwards import Experts
from simulator.workload.models import DecoderModel
from simulator.workload.sharding import Optimizer

ADAM_FLOPS = 15
"""Arithmetic of AdamW for a parameter on the host: four products, four fused products and sums, a root and a division,
with weight decay (DeepSpeed, csrc/adam/cpu_adam.cpp, Step_AVX) [FLOP]. A device does it beside its traffic; there it is
not counted."""


class HostShare(Part):
    """The part of the updates that the host runs, as in Twin-Flow of ZeRO-Offload++ (DeepSpeed).

    Attributes
    ----------
    host
        The share of all trained parameters, as close as whole weights allow; which ones is evenly spread.
    waits
        Whether the next step starts once all updates of the host have ended, as where a framework calls its optimizer;
        else each of its ops waits only for the weights that it reads.
    """

    host: Share
    waits: StrictBool = True


class HostExperts(Part):
    """The experts of each layer that the host runs; the accelerator runs the others, as in KTransformers.

    Attributes
    ----------
    host
        The share of the routed experts that the host runs, rounded to whole ones.
    choices
        The share of all choices of the router that fall on these experts, less than `host` if they are the cold ones;
        default: as if all experts were equally likely.
    layers
        How many layers, the first ones, have experts on the host, as with ``--n-cpu-moe`` of llama.cpp; default: all.
    """

    host: Share
    choices: Share | None = None
    layers: Layers | None = None


Side = Literal["accelerator", "host", "any"]
"""What runs something; ``any``: whichever a policy chooses."""


class Sides(Part):
    """What runs parts of a step: ``accelerator``, or ``host``, whose cores the machine states as its `host_compute`.

    What the host alone uses has its home in the tier of these cores, unless the scenario says another. Only what the
    other side needs is copied. ``any`` leaves it to the policy: compilers plan each way and take the one with the
    shortest step, all others take the accelerator, or else the first way that fits.

    Attributes
    ----------
    optimizer
        In training, the updates of weights by ``adamw``, as in DeepSpeed's ZeRO-Offload with CPU Adam: states and the
        master weight stay with the host, gradients come down, and updated weights go up. Or a share of them: ``{host:
        0.7}``.
    attention
        With phase ``decode``, attention to the KV cache, which stays with the host (``cpu_cache_compute`` of FlexGen):
        queries and the new keys and values come down, and outputs go up.
    experts
        With phases ``prefill`` and ``decode``, the routed experts, in kernels that keep intermediate results to
        themselves: the hidden states of all tokens and their choices come down, and the sum of each token's experts
        goes up. Or a share of the experts, or those of some layers: ``{host: 0.9, choices: 0.5, layers: 12}``.
    layers
        With phases ``prefill`` and ``decode``, how many layers the host runs, the first ones, whole and with their
        caches, as llama.cpp does with those that ``-ngl`` leaves it. The hidden states of all tokens go up behind them.
    tables
        Of a recommender, lookups in its tables and their updates: names of rows come down, sums of rows go up, and
        gradients of these sums come down.
    """

    optimizer: Side | HostShare = "accelerator"
    attention: Side = "accelerator"
    experts: Side | HostExperts = "accelerator"
    layers: FewOrNone = 0
    tables: Side = "accelerator"

    @property
    def settled(self) -> tuple[Self, ...]:
        """Each way to say one side where a policy may choose; the accelerator first."""
        left_open = [key for key in type(self).model_fields if getattr(self, key) == "any"]
        ways = product(("accelerator", "host"), repeat=len(left_open))
        return tuple(self.model_copy(update=dict(zip(left_open, way, strict=True))) for way in ways)

    def share(self, part: str) -> Fraction:
        """Return how much of a part the host runs at most, as a document states it in decimals."""
        side = getattr(self, part)
        return Fraction(side != "accelerator") if isinstance(side, str) else decimal(side.host)

    def blocks(self, part: str, layers: Sequence[str]) -> frozenset[str]:
        """Return those layers, of all in order, of which the host runs ``layers`` (all of each) or ``experts``."""
        stated = self.layers if part == "layers" else getattr(self.experts, "layers", None)
        return frozenset(layers[:stated] if part == "layers" or self.share(part) else ())

    def host_experts(self, part: Experts) -> tuple[int, Fraction]:
        """Return how many experts of a layer the host runs, and how many of each token's choices fall on them."""
        experts = round(self.share("experts") * part.routed)
        likely = self.experts.choices if isinstance(self.experts, HostExperts) else None
        return experts, Fraction(part.top_k * experts, part.routed) if likely is None else part.top_k * decimal(likely)

    def check_optimizer(self, optimizer: Optimizer, *, has_master: bool) -> None:
        """Refuse an update that no host does here: of another optimizer, or without a master weight.

        Raises
        ------
        FieldError
            If it is one of these; the message says which, and what the host does.
        """
        if not self.share("optimizer"):
            return
        path, must = ("on", "optimizer"), "the host updates by adamw"
        require(optimizer.kind == "adamw", must, optimizer.kind, *path, do="choose adamw, or run it on the accelerator")
        must, do = "the host updates a master weight of its own, so that none comes down", "set optimizer.master: true"
        require(has_master, must, "none", *path, do=do)

    def check_layers(self, decoder: DecoderModel, tensor: int, experts: str | None) -> None:
        """Refuse attention that runs in several ops, experts that are not on one rank, and shares of no whole expert.

        Parameters
        ----------
        decoder, tensor
            The model, and the ranks that share each of its layers.
        experts
            How experts are read, if that is stated.

        Raises
        ------
        FieldError
            If the host cannot run a layer of the model so; the message says what it can.
        """
        most = {"layers": decoder.layers - (not (decoder.causal and decoder.head)), "experts.layers": decoder.layers}
        for key, count in (("layers", self.layers), ("experts.layers", getattr(self.experts, "layers", None) or 0)):
            must = f"the host runs at most {most[key]:,} of the model's layers, and the accelerator what comes last"
            require(count <= most[key], must, f"{count:,}", "on", *key.split("."), do="lower it")
        must, do = "layers of the host are whole, and read no expert for itself", "run them on the accelerator"
        fits, found = tensor == 1 and experts != "each", f"{tensor} ranks" if tensor > 1 else "experts: each"
        require(fits or not self.layers, must, found, "on", "layers", do=do)
        kinds, path = [*decoder.kinds], ["on", "attention"]
        for attention, _ in kinds if self.share("attention") else ():
            is_whole = attention.kv_elements > 0 and attention.compress is None
            is_whole &= not getattr(attention, "indexer", None)
            must, do = "the host attends to all cached tokens, or to a window of them", "run it on the accelerator"
            require(is_whole, must, "a state, sparse or chosen attention", *path, do=do)
        of_layers = [part for _, part in kinds if isinstance(part, Experts)]
        must, do = "experts that are chosen one by one all have weights", "say together or grouped, and the accelerator"
        is_each = experts == "each" or self.share("experts")
        require(not (is_each and any(part.zero for part in of_layers)), must, "zero", "model", do=do)
        if not self.share("experts"):
            return
        path, do = ["on", "experts"], "run them on the accelerator"
        require(of_layers, "the host runs a model's experts", "a model without experts", *path, do=do)
        must = "the host runs experts that take rows of the residual"
        require(not any(part.latent for part in of_layers), must, "latent", *path, do=do)
        must = "the host runs the experts of one rank, which has all of them, without buffers apart"
        is_alone = tensor == 1 and all(part.ranks == 1 and part.buffers == "fused" for part in of_layers)
        require(is_alone, must, "several ranks, or buffers apart", *path, do=do)
        must, do = "experts on the host are grouped", "remove the key experts, or say grouped"
        require(experts in (None, "grouped"), must, str(experts), *path, do=do)
        for part in of_layers:
            count, choices = self.host_experts(part)
            fits = choices <= count and part.top_k - choices <= part.routed - count and count > 0
            must, do = "each side has enough experts for the choices that fall on it", "correct host or choices"
            found = f"{count} of {part.routed} on the host, for {float(choices):g} of {part.top_k} choices"
            require(fits, must, found, *path, do=do)
