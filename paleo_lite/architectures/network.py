"""`Network`: layers in order, and what holds for all of them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple

from ..counting import GENERATING, Layer, Shape
from ..errors import UnknownName


class Lengths(NamedTuple):
    """How many tokens a pass takes.

    Attributes
    ----------
    queries : int
        Tokens of a sequence that are computed.
    keys : int
        Tokens that they attend to: those before them that are in the cache, and themselves.
    cached : bool
        Whether keys and values are kept for the tokens to come, and only the last token's logits are computed.
    """

    queries: int
    keys: int
    cached: bool = False


class Tokens(NamedTuple):
    """What is asked of a network that reads sequences.

    Attributes
    ----------
    length : int or None
        Tokens of a sequence; in ``prefill`` those of the prompt.
    context : int or None
        In ``decode`` the tokens that are in the cache already.
    phase : str
        Those of `GENERATING` keep keys and values and compute the logits of the last token only.
    tensor : int
        Devices that share every matrix (Shoeybi et al. 2019, Megatron-LM): the layers are those of one of them.
    sequence : bool
        Whether those devices also share the sequence outside of the matrices (Korthikanti et al. 2022).
    ring : int
        Devices that share every sequence, keys and values going around a ring of them (Liu et al. 2023).
    experts : int
        Devices that share the experts of a mixture, to which tokens are sent (Lepikhin et al. 2021, GShard).
    blocks : int or None
        Only so many of the model's equal blocks.
    fused : bool or None
        Whether attention is one kernel; None: as the config says.
    """

    length: int | None = None
    context: int | None = None
    phase: str = "inference"
    tensor: int = 1
    sequence: bool = False
    ring: int = 1
    experts: int = 1
    blocks: int | None = None
    fused: bool | None = None

    @property
    def asked(self) -> bool:
        """Whether anything is asked that only a network that reads sequences has."""
        return self.length is not None or self.context is not None or self.phase in GENERATING


class Network(NamedTuple):
    """What is computed, at batch 1.

    Attributes
    ----------
    inputs : tuple of shapes
        What the network is given, the batch dimension of 1 first.
    layers : tuple of Layer
        In order of execution.
    parameters : int
        Elements of all the module's parameters, shared ones once, those it never uses included.
    source : str
        Where the layers come from: ``torchvision 0.28.0`` or the factory's name.
    notes : tuple of str
        What somebody who reads a number of this network should know.
    lengths : Lengths or None
        How many tokens a pass takes, of a network that reads sequences.
    blocks : int
        Equal blocks that it has one after another; 0 where nobody says.
    remade : callable or None
        Makes the same network for other `Tokens`; None where it is not made from a config.
    """

    name: str
    inputs: tuple[Shape, ...]
    layers: tuple[Layer, ...]
    parameters: int
    source: str = ""
    notes: tuple[str, ...] = ()
    lengths: Lengths | None = None
    blocks: int = 0
    remade: Callable[[Tokens], Network] | None = None

    @property
    def input_elements(self) -> int:
        """Elements of all inputs of one sample."""
        return sum(prod(shape) for shape in self.inputs)

    @property
    def tokens(self) -> int | None:
        """Numbers of one sample that embeddings look up, as language models do; None where there is no embedding."""
        if self.lengths is not None:
            return self.lengths.queries if self.lengths.keys > 1 else None
        looked_up = {layer.inputs[0] for layer in self.layers if layer.kind == "embedding" and -1 in layer.parents}
        return max(map(prod, looked_up)) if looked_up else None

    def layer(self, name: str) -> Layer:
        """The layer of that name.

        Raises
        ------
        UnknownName
            If there is none.
        """
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise UnknownName(f"layer of {self.name}", name, [layer.name for layer in self.layers])
