"""The workload of a prediction: everything that determines the computations of a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from ..architectures import Network
from ..counting import GENERATION_PHASES, PHASES, Convention, Layer, Work, count, find_convention
from ..counting.kinds import class_of, is_expert_layer
from ..counting.layer import empty_flow
from ..counting.work import COLUMNS, MIXED_EXECUTIONS, PASSES, check_batch_size, check_execution, passes_of
from ..errors import BadValue, UnknownName, UnsupportedPhase
from ..formats import FORMATS, Format, bytes_per_number, format_of_weights
from ..units import element_bytes
from .activity import NARROW_PRECISIONS
from .quantization import has_stored_weights, quantize_inputs, read_quantized_inputs, read_stored_weights
from .training_options import TrainingOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..architectures.stored_weights import StoredWeights


GIVEN = Convention("given", "FLOP", "a FLOP count given by the user", lambda op: None)
"""Convention of a workload without layers; see `Workload.from_flops`."""

_DEFAULTS_OF_LAYER_OPTIONS: dict[str, Any] = {
    "phase": "inference",
    "execution": "eager",
    "convention": "flops",
    "training": None,
    "image_size": None,
    "inputs": (),
    "sequence_length": None,
    "context": None,
    "weights": None,
}
"""Options that require the layers of a network, and their defaults."""


class UnderEngine(msgspec.Struct, frozen=True):
    """Inference engine whose kernels a device launches for text, instead of the layers one by one."""

    name: str  # of the engine and its version, one of `paleo_lite.engines.records.SERVERS`
    kv_cache: str  # storage format of the KV cache, one of `paleo_lite.formats.FORMATS`
    # Exponent of the popularity of experts, 0 for the uniform distribution (`paleo_lite.engines.routing`).
    expert_load: float = 0.0


class Workload(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A network with everything that determines its computations.

    Attributes
    ----------
    network : Network
        The network.
    precision : str
        Precision of the tensors.
    batch_size : int
        Samples per step on one device.
    phase : str
        One of `paleo_lite.counting.PHASES`, or of `GENERATION_PHASES` for a network with a KV cache.
    execution : str
        One of `paleo_lite.counting.fusion.EXECUTIONS`, which determines casts and fused kernels.
    convention : str
        Convention of FLOP counts.
    training : TrainingOptions or None
        Options of a training step; None for plain gradient descent.
    has_layers : bool
        False if a bare FLOP count replaces the network; see `from_flops`.
    attention : str or None
        Implementation of attention, one of `paleo_lite.timing.attention.ATTENTION_NAMES`; None for the default.
    weights : str or None
        Storage format of the weight matrices at inference, or of the frozen ones in training (QLoRA), one of
        `paleo_lite.formats.FORMATS`; None for `precision`.
    engine : UnderEngine or None
        Engine whose kernels are timed in prefill and decode; None: the layers of the network.
    products : str or None
        Precision of the products with quantized weights at inference, whose activations are quantized before, one of
        `NARROW_PRECISIONS`; attention and what is between products keep `precision`. None for `precision`.
    int8_kernels : bool
        Whether eager PyTorch multiplies integers where weights are in int8, as bitsandbytes does on a device with a
        peak in int8; otherwise it converts the weights.

    Raises
    ------
    UnknownName
        If there is no such precision, phase, convention or execution.
    BadValue
        If the batch size is not an integer >= 1, or options do not belong to the phase or precision.
    UnsupportedPhase
        If narrower weights are combined with a phase other than inference and training, or fused layers with a phase
        other than inference.
    """

    network: Network
    precision: str = "fp32"
    batch_size: int = 1
    phase: str = "inference"
    execution: str = "eager"
    convention: str = "flops"
    training: TrainingOptions | None = None
    has_layers: bool = True
    weights: str | None = None
    attention: str | None = None
    engine: UnderEngine | None = None
    products: str | None = None
    int8_kernels: bool = False

    def __post_init__(self) -> None:
        element_bytes(self.precision)
        if self.phase not in (*PHASES, *GENERATION_PHASES):
            raise UnknownName("phase", self.phase, (*PHASES, *GENERATION_PHASES))
        self._check_cache()
        check_batch_size(self.batch_size)
        if self.has_layers:
            find_convention(self.convention)
        if self.training is not None:
            if self.phase != "training":
                raise BadValue(
                    "optimizers, checkpointing, accumulation, mixed precision, adapters and frozen layers are options "
                    f"of `--phase training`, not of {self.phase}"
                )
            if self.training.mixed_precision and self.precision not in ("fp16", "bf16"):
                raise BadValue(
                    f"mixed precision multiplies in fp16 or bf16, not in {self.precision}: "
                    "use --precision fp16, for example"
                )
        check_execution(self.execution, self.phase, self.precision)
        if self.weights is not None:
            if self.weights not in FORMATS:
                raise UnknownName("format of weights", self.weights, FORMATS)
            self._check_weights()
        if self.products is not None:
            if self.products not in NARROW_PRECISIONS:
                raise UnknownName("precision of quantized products", self.products, NARROW_PRECISIONS)
            if self.stored_format is None:
                raise BadValue(f"products in {self.products} need quantized weights and a phase without gradients")

    def _check_cache(self) -> None:
        """Check that a network has a KV cache if and only if the phase generates text."""
        has_cache = self.network.lengths is not None and self.network.lengths.uses_cache
        generates = self.phase in GENERATION_PHASES
        if generates and not has_cache:
            raise BadValue(
                f"{self.phase} needs a language model built with a KV cache: "
                "a config of Hugging Face's, or a shipped one"
            )
        if has_cache and not generates:
            phases = " and ".join(GENERATION_PHASES)
            raise BadValue(f"a network with a KV cache supports the phases {phases}, not {self.phase}")

    def _check_weights(self) -> None:
        """Check that narrower weights are used at inference, or for the frozen weights of a training step."""
        if passes_of(self.phase) == ("inference",):
            return
        if self.phase != "training":
            raise UnsupportedPhase(
                f"narrower weights are supported for inference and training only: omit --weights for {self.phase}"
            )
        if self.options.fine_tuning is None:
            raise BadValue(
                f"`--weights {self.weights}` cannot be trained: gradients need at least 16 bits; "
                "add `--lora RANK` to train adapters on quantized weights (QLoRA)"
            )
        if self.execution in MIXED_EXECUTIONS:
            raise BadValue(
                f"`--weights {self.weights}` in training needs `--execution eager` and 16-bit numbers, such as "
                f"`--precision bf16` (got `--execution {self.execution}`)"
            )

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Layers of the network, with what training adds to them and with the casts of the execution."""
        layers = self.trained_layers
        if self._has_loss:
            from .fine_tuning import append_loss

            number_bytes = element_bytes(self.precision)
            casts = self.execution not in MIXED_EXECUTIONS
            layers = cached_for_layers(append_loss, layers, number_bytes, casts, bool(self.options.fused_loss))
        if self.multiplies_int8:
            from .bitsandbytes import insert_int8_kernels

            has_gradients = self.phase == "training"
            layers = cached_for_layers(
                insert_int8_kernels, layers, self._int8_layers(layers), self.precision, has_gradients
            )
        elif self.multiplies_nf4:
            from .bitsandbytes import insert_nf4_kernels

            how = self.stored_format, self.reads_tokens, element_bytes(self.precision), self.batch_size == 1
            layers = cached_for_layers(insert_nf4_kernels, layers, *how)
        elif self.phase == "training" and self.weights is not None:
            from .fine_tuning import insert_dequantization

            stored_bytes, number_bytes = bytes_per_number(self.weights), element_bytes(self.precision)
            layers = cached_for_layers(insert_dequantization, layers, stored_bytes, number_bytes)
        if self.products is not None:
            widths = element_bytes(self.precision), bytes_per_number(self.products)
            layers = cached_for_layers(quantize_inputs, layers, self.stored_format, self.reads_tokens, widths)
        if self.execution not in MIXED_EXECUTIONS:
            return layers
        from ..counting.autocast import insert_casts

        return cached_for_layers(insert_casts, layers)

    @cached_property
    def trained_layers(self) -> tuple[Layer, ...]:
        """Layers of the network, with the adapters and the frozen weights of fine-tuning."""
        tuning = self.options.fine_tuning
        if self.phase != "training" or tuning is None:
            return self.network.layers
        from .fine_tuning import adapt_layers

        return cached_for_layers(adapt_layers, self.network.layers, tuning)

    @property
    def saving_layers(self) -> tuple[Layer, ...]:
        """Layers whose tensors are in memory; in training, int8 products of bitsandbytes save their inputs."""
        if self.phase != "training" or not self.multiplies_int8:
            return self.trained_layers
        from .bitsandbytes import save_inputs

        return cached_for_layers(save_inputs, self.trained_layers, self._int8_layers(self.trained_layers))

    @property
    def trainable_parameters(self) -> int:
        """Number of trained parameters; adapters of fine-tuning count, frozen parameters do not."""
        return cached_for_layers(_count_trainable, self.trained_layers)

    @property
    def stored_format(self) -> Format | StoredWeights | None:
        """Format of the weight matrices at inference; None if all parameters have the numbers of the precision.

        The formats of a quantized checkpoint hold unless `weights` names another.
        """
        if passes_of(self.phase) != ("inference",):
            return None
        if self.weights is None and self.network.stored_weights is not None:
            return self.network.stored_weights
        return format_of_weights(self.weights, self.precision)

    @property
    def reads_tokens(self) -> bool:
        """Whether the network reads tokens."""
        return self.network.lengths is not None

    @property
    def options(self) -> TrainingOptions:
        """Options of a training step, also for phases without them."""
        return self.training or TrainingOptions("sgd")

    @property
    def execution_or_engine(self) -> str:
        """Execution of the kernels, or the name of the engine that launches them."""
        return self.execution if self.engine is None else self.engine.name

    @property
    def product_precision(self) -> str:
        """Precision of the products that `narrow_products_in` names; that of the workload without any."""
        narrow = "int8" if self.multiplies_int8 else None
        return self.options.products or self.products or narrow or self.precision

    @property
    def multiplies_int8(self) -> bool:
        """Whether weights in int8 are multiplied as bitsandbytes does."""
        return self.int8_kernels and self.weights == "int8" and self.execution == "eager" and self.products is None

    @property
    def multiplies_nf4(self) -> bool:
        """Whether weights in nf4 are multiplied at inference as bitsandbytes does."""
        stored = self.stored_format
        if stored is None or self.execution != "eager" or self.products is not None:
            return False
        from .bitsandbytes import is_nf4

        return is_nf4(stored)

    def _int8_layers(self, layers: tuple[Layer, ...]) -> tuple[bool, ...]:
        """Return which layers have weights in int8."""
        if self.phase == "training":
            from .fine_tuning import is_quantized

            return tuple(cached_for_layers(is_quantized, layers))
        return tuple(cached_for_layers(has_stored_weights, layers, self.stored_format, self.reads_tokens))

    def narrow_products_in(self, passes: Sequence[str]) -> NDArray[np.bool_]:
        """Return which layers have products in the narrower precision in each pass, shape (passes, layers).

        Those of bitsandbytes have none in the passes of gradients.
        """
        if not self.multiplies_int8:
            return np.repeat(self.uses_narrow_products[np.newaxis], len(passes), axis=0)
        from .bitsandbytes import is_int8_product

        has_no_gradient = np.array([not name.startswith("backward") for name in passes])
        return has_no_gradient[:, np.newaxis] & cached_for_layers(is_int8_product, self.layers)

    @cached_property
    def uses_narrow_products(self) -> NDArray[np.bool_]:
        """Layers with products in the narrower precision, boolean of shape (layers,): those with quantized weights.

        In training the products of adapters and the last one, which computes the logits, keep the precision of the
        workload.
        """
        if self.products is not None:
            return np.array(cached_for_layers(has_stored_weights, self.layers, self.stored_format, self.reads_tokens))
        has_narrow_products = self.options.products is not None
        is_narrow = np.array(
            [
                has_narrow_products and matrix_elements(layer) > 0 and "adapter" not in layer.attributes
                for layer in self.layers
            ]
        )
        if is_narrow.any():
            logits = np.flatnonzero(is_narrow)[-1]
            is_narrow[logits] = False
        return is_narrow

    @cached_property
    def unfused_work(self) -> Work:
        """Counts of each layer as a kernel of its own, for any batch size; computed once."""
        work = cached_for_layers(count, self.layers, self.precision, self.convention)
        if self.phase == "training" and self.weights is not None and not self.multiplies_int8:
            from .fine_tuning import repeat_dequantization

            work = repeat_dequantization(work, self.layers)
        elif self.stored_format is not None or self._selects_experts:
            work = read_stored_weights(work, self.layers, self.stored_format, self.reads_tokens, self.batch_size)
        if self.products is not None:
            saved_bytes = element_bytes(self.precision) - bytes_per_number(self.products)
            work = read_quantized_inputs(work, self.layers, self.uses_narrow_products, saved_bytes)
        if self.multiplies_int8:
            from .bitsandbytes import count_int8_products

            work = count_int8_products(work, self.layers)
        return work

    @cached_property
    def work(self) -> Work:
        """Counts of each layer, for any batch size, as its execution fuses them; computed once."""
        work = self.unfused_work
        if self.execution == "eager":
            return work
        if work is cached_for_layers(count, self.layers, self.precision, self.convention):
            # Whatever the device, the batch size and the weights.
            return cached_for_layers(_fuse_counted, self.layers, self.precision, self.convention, self.execution)
        from ..counting.fusion import fuse  # imported on demand, to keep cold starts fast

        return fuse(self.layers, work, self.execution)

    def with_changes(self, **changes: Any) -> Workload:
        """Return a copy with changed attributes; counts are shared where they do not depend on the changes."""
        changed: Workload = msgspec.structs.replace(self, **changes)
        independent = {"training"}
        if not self._selects_experts and not changed._selects_experts:
            independent |= {"phase", "batch_size"}
        if changes.keys() <= independent and changed._counted_network == self._counted_network:
            changed.__dict__["unfused_work"] = self.unfused_work
            if self.engine is None:
                changed.__dict__["work"] = self.work
        return changed

    @property
    def _counted_network(self) -> tuple[Any, ...]:
        """What the phase and the training options change in the counted layers."""
        if self.phase != "training":
            is_single = self.multiplies_nf4 and self.batch_size == 1
            return (None, is_single, self._has_loss, self.stored_format)
        fuses_loss = self._has_loss and bool(self.options.fused_loss)
        return (self.options.fine_tuning, fuses_loss, self._has_loss, self.weights)

    @property
    def _has_loss(self) -> bool:
        """Whether the passes belong to the training of a network that reads tokens."""
        return self.reads_tokens and passes_of(self.phase) != ("inference",)

    @cached_property
    def has_experts(self) -> bool:
        """Whether the network is a mixture of experts."""
        return cached_for_layers(_has_experts, self.layers)

    @property
    def _selects_experts(self) -> bool:
        """Whether the number of experts read depends on the number of tokens, so that counts hold for one batch
        size."""
        return self.has_experts and passes_of(self.phase) == ("inference",)

    def with_work(self, work: Work) -> Workload:
        """Return a copy with other counts, such as counts with an optimizer's update, or of several launches."""
        changed: Workload = msgspec.structs.replace(self)
        changed.__dict__["unfused_work"] = changed.__dict__["work"] = work
        return changed

    @classmethod
    def from_flops(
        cls, flops: float, precision: str = "fp32", batch_size: int = 1, notes: tuple[str, ...] = (), **options: Any
    ) -> Workload:
        """Return a workload with a bare FLOP count per sample instead of a network.

        Parameters
        ----------
        flops : float
            FLOPs per sample.
        precision : str
            Precision of the arithmetic.
        batch_size : int
            Samples per step.
        notes : tuple of str
            Notes for every prediction.
        **options
            Options that require layers; only their defaults are accepted.

        Raises
        ------
        BadValue
            If the count is below 1 or overflows, or an option requires layers.
        """
        unexpected = options.keys() - _DEFAULTS_OF_LAYER_OPTIONS.keys()
        if unexpected:
            raise TypeError(f"unexpected keyword argument {min(unexpected)!r}")
        for name, value in options.items():
            if value and value != _DEFAULTS_OF_LAYER_OPTIONS[name]:
                label = name.replace("_", " ")
                raise BadValue(f"a bare FLOP count supports inference only: {label} needs the layers of a network")
        check_batch_size(batch_size)
        if not (np.isfinite(flops) and flops >= 1 and flops * batch_size < 2.0**62):
            raise BadValue(f"the FLOP count must be a number >= 1 and below 2^62 per batch (got {flops!r})")
        per_sample = np.zeros((len(COLUMNS), len(PASSES), 1), dtype=np.int64)
        per_sample[COLUMNS.index("flops"), PASSES.index("inference")] = int(flops)
        zero = np.zeros(1, dtype=np.int64)
        work = Work(
            names=(),
            kinds=(),
            convention=GIVEN,
            precision=precision,
            per_sample=per_sample,
            fixed=np.zeros_like(per_sample),
            count_per_sample=per_sample[0, 0],
            count_fixed=zero,
            counted=np.ones(1, dtype=bool),
            parameters=zero,
            activations_per_sample=zero,
            matrix=np.ones(1, dtype=bool),
            unknown=(),
            flow=empty_flow(),
        )
        network = Network(f"{int(flops)} FLOPs", (), (), 0, notes=notes)
        return cls(network, precision, batch_size, convention="given", has_layers=False).with_work(work)


def matrix_elements(layer: Layer) -> int:
    """Return the number of elements of a layer's weight matrices; 0 for layers other than matrix products."""
    return prod(layer.weights[0]) if layer.weights and class_of(layer) == "gemm" else 0


CACHE_SIZE = 48
"""Number of cached counts and memory plans: the same network is used with many devices and batch sizes in turn."""

_CACHE: dict[tuple[Any, ...], tuple[Any, Any]] = {}

Cached = TypeVar("Cached")


def cached_for_layers(function: Callable[..., Cached], layers: tuple[Layer, ...], *arguments: Any) -> Cached:
    """Return ``function(layers, *arguments)``, cached by the identity of `layers`, as a comparison would be slow.

    The arguments must be hashable.
    """
    key = (function, id(layers), *arguments)
    entry = _CACHE.get(key)
    if entry is None:
        for oldest in [*_CACHE][: 1 - CACHE_SIZE]:
            _CACHE.pop(oldest, None)
        entry = layers, function(layers, *arguments)
        _CACHE[key] = entry  # keeps the layers alive, so that no other object gets their id
    result: Cached = entry[1]
    return result


def _has_experts(layers: tuple[Layer, ...]) -> bool:
    """Return whether any layer belongs to experts."""
    return any(is_expert_layer(layer) for layer in layers)


def _count_trainable(layers: tuple[Layer, ...]) -> int:
    """Return the number of parameters of layers that are not frozen."""
    return sum(layer.parameters for layer in layers if not layer.is_frozen)


def _fuse_counted(layers: tuple[Layer, ...], precision: str, convention: str, execution: str) -> Work:
    """Return the counts of layers under an execution that fuses them."""
    from ..counting.fusion import fuse  # imported on demand, to keep cold starts fast

    return fuse(layers, cached_for_layers(count, layers, precision, convention), execution)
