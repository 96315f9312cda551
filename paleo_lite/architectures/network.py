"""`Network`: layers in execution order, with the properties of the whole network; and options for sequences."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ..counting import GENERATION_PHASES, Layer, Shape
from ..counting.kinds import is_expert_layer
from ..errors import UnknownName

if TYPE_CHECKING:
    from .gguf_file import StoredTensor
    from .stored_weights import StoredWeights


class SequenceLengths(NamedTuple):
    """Number of tokens that one pass processes.

    Attributes
    ----------
    queries : int
        Tokens per sequence that are computed.
    keys : int
        Tokens per sequence that are attended to: the computed ones and those in the KV cache.
    uses_cache : bool
        Whether keys and values are written to a KV cache and only the logits of the last token are computed.
    longest : int or None
        Positions that the model knows; None if it has no limit, or it is unknown.
    """

    queries: int
    keys: int
    uses_cache: bool = False
    longest: int | None = None


class SequenceOptions(NamedTuple):
    """Options of a network that reads sequences: lengths, phase and degrees of parallelism.

    Attributes
    ----------
    length : int or None
        Tokens per sequence; in the ``prefill`` phase, tokens of the prompt.
    context : int or None
        Tokens already in the KV cache, in the ``decode`` phase.
    phase : str
        Phases in `GENERATION_PHASES` fill the KV cache and compute the logits of the last token only.
    tensor_parallel : int
        Tensor-parallel degree (Shoeybi et al. 2019, Megatron-LM); the layers are those of one device.
    sequence_parallel : bool
        Whether activations outside the tensor-parallel regions are split along the sequence (Korthikanti et al. 2022).
    context_parallel : int
        Context-parallel degree: devices that split each sequence and pass keys and values around a ring (Liu et al.
        2023).
    expert_parallel : int
        Expert-parallel degree: devices that split the experts of a mixture (Lepikhin et al. 2021, GShard).
    expert_tensor_parallel : int
        Devices that divide every expert's matrices, under sequence parallelism.
    expert_load : float
        Rows of the experts of this device over their mean.
    blocks : int, tuple of int or None
        Transformer blocks to build: the first so many, or those with these indices; all by default.
    fused_attention : bool or None
        Whether attention is one fused kernel; None takes the config's setting.
    """

    length: int | None = None
    context: int | None = None
    phase: str = "inference"
    tensor_parallel: int = 1
    sequence_parallel: bool = False
    context_parallel: int = 1
    expert_parallel: int = 1
    expert_tensor_parallel: int = 1
    expert_load: float = 1.0
    blocks: int | tuple[int, ...] | None = None
    fused_attention: bool | None = None

    @property
    def needs_sequences(self) -> bool:
        """Whether an option is set that only a network that reads sequences supports."""
        return self.length is not None or self.context is not None or self.phase in GENERATION_PHASES


LANGUAGE_MODELS = "language models"
"""Group of the decoders of text."""

TEXT_ENCODERS = "text encoders"
"""Group of the encoders of text, such as BERT."""

SPEECH_MODELS = "speech models"
"""Group of the networks whose encoder reads sound, and whose decoder writes what is said, such as Whisper."""

DECODER_ALONE = "the decoder alone: the encoder runs with the prompt, and its weights are not included"
"""Note on a step of decoding of a network with an encoder."""

MODEL_CARDS = "https://huggingface.co/"
"""Start of the addresses of model cards on the Hugging Face Hub, before the repository."""


class Publication(msgspec.Struct, frozen=True):
    """Figures that the publisher of a shipped network states.

    Attributes
    ----------
    publisher : str
        Company or group that published the weights.
    year : int
        Year in which it did.
    card : str
        Address of the model card.
    parameters : int
        Published number of parameters.
    active_parameters : int or None
        Published number of parameters that one token uses, of a mixture of experts.
    active_excludes_embedding : bool
        Whether the publisher leaves the embedding of the inputs out of the active parameters, as only one of its rows
        is read.
    definition : str
        Definition of the published count, if it is not all parameters of the decoder.
    weights : str
        Format in which the checkpoint stores its matrices, or those of its experts, one of
        `paleo_lite.formats.FORMATS`; empty for 16 bits.
    """

    publisher: str
    year: int
    card: str
    parameters: int
    active_parameters: int | None = None
    active_excludes_embedding: bool = False
    definition: str = ""
    weights: str = ""


class Network(NamedTuple):
    """Layers of a network at batch size 1.

    Attributes
    ----------
    name : str
        Name of the network.
    inputs : tuple of shapes
        Shapes of the inputs, starting with the batch dimension of 1.
    layers : tuple of Layer
        Layers in execution order.
    parameters : int
        Number of parameters; shared ones are counted once, unused ones are included.
    source : str
        Origin of the layers, such as ``torchvision 0.28.0`` or the name of a factory.
    notes : tuple of str
        Remarks that apply to every result computed from this network.
    lengths : SequenceLengths or None
        Tokens per pass; None for a network that does not read sequences.
    blocks : int
        Number of blocks; 0 where it is unknown.
    block_types : tuple of int
        For each block, the index of the first block that is equal to it; empty if all blocks are equal.
    rebuild : callable or None
        Function from `SequenceOptions` to the same network with these options; None where the layers are fixed.
    group : str
        Group in which the network is listed.
    publication : Publication or None
        Figures that the publisher states, of shipped language models.
    tower_parameters : int
        Number of parameters of a vision tower, which the tokens of a text do not use.
    embedding_is_active : bool
        Whether the publisher of such models counts the embedding of the inputs as active.
    left_out_parameters : int
        Number of parameters of the checkpoint that are not in the layers: those of multi-token prediction layers.
    stored_weights : StoredWeights or None
        How the checkpoint stores its weight matrices; None for one that is not quantized.
    stored_tensors : tuple of StoredTensor or None
        Tensors of the GGUF file that the network was read from; None for any other source.
    """

    name: str
    inputs: tuple[Shape, ...]
    layers: tuple[Layer, ...]
    parameters: int
    source: str = ""
    notes: tuple[str, ...] = ()
    lengths: SequenceLengths | None = None
    blocks: int = 0
    block_types: tuple[int, ...] = ()
    rebuild: Callable[[SequenceOptions], Network] | None = None
    group: str = "image networks"
    publication: Publication | None = None
    tower_parameters: int = 0
    embedding_is_active: bool = True
    left_out_parameters: int = 0
    stored_weights: StoredWeights | None = None
    stored_tensors: tuple[StoredTensor, ...] | None = None

    def __repr__(self) -> str:
        return f"<Network {self.name}: {len(self.layers)} layers, {self.parameters:,} parameters>"

    @property
    def is_language_model(self) -> bool:
        """Whether the network is a decoder of text."""
        return self.group == LANGUAGE_MODELS

    @property
    def is_speech_model(self) -> bool:
        """Whether the network writes what is said in the sound that its encoder reads."""
        return self.group == SPEECH_MODELS

    @property
    def is_mixture(self) -> bool:
        """Whether each token uses only some of the experts of a layer."""
        return any(is_expert_layer(layer) for layer in self.layers)

    @property
    def is_text_encoder(self) -> bool:
        """Whether the network is an encoder of text, such as BERT."""
        return self.group == TEXT_ENCODERS

    @property
    def input_elements(self) -> int:
        """Elements of all inputs of one sample."""
        return sum(prod(shape) for shape in self.inputs)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: all but those of the experts that are not chosen.

        Of a mixture of experts, a vision tower is left out, too, as publishers do. The embedding of the inputs is left
        out where the publisher of the network leaves it out.
        """
        inactive = 0
        for layer in self.layers:
            if is_expert_layer(layer):  # a grouped product of the chosen experts
                experts, active = layer.weights[0][0], layer.attributes["active"]
                inactive += sum(prod(weight) for weight in layer.weights) * (experts - active) // experts
        if inactive:
            inactive += self.tower_parameters
        is_active = self.embedding_is_active
        if self.publication is not None and self.publication.active_parameters is not None:
            is_active = not self.publication.active_excludes_embedding
        if inactive and not is_active:
            embeddings = (layer for layer in self.layers if layer.kind == "embedding" and -1 in layer.parents)
            inactive += sum(prod(weight) for layer in embeddings for weight in layer.weights)
        return self.parameters - inactive

    @property
    def tokens(self) -> int | None:
        """Tokens per sample of a language model; None for a network without an embedding of its inputs."""
        if self.lengths is not None:
            return self.lengths.queries if self.lengths.keys > 1 else None
        embedded_shapes = [
            layer.inputs[0] for layer in self.layers if layer.kind == "embedding" and -1 in layer.parents
        ]
        return max((prod(shape) for shape in embedded_shapes), default=None)

    def layer(self, name: str) -> Layer:
        """Return the layer with the given name.

        Raises
        ------
        UnknownName
            If no layer has this name.
        """
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise UnknownName(f"layer of {self.name}", name, [layer.name for layer in self.layers])
