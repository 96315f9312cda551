"""Options of a training step, the cost of its update, and recipes of training with narrow matrix products.

The recipes are those of Transformer Engine: which tensors they quantize, and the bytes that this moves. Weights,
activations and gradients of the products in blocks are quantized; attention, norms, routers, embedding and output head,
and everything else, stay in bf16, and master weights and optimizer state in fp32. A quantizing kernel reads a 16-bit
tensor and writes it twice: along its rows for one product, and along its columns for the product of the other pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from ..counting import Layer, Work
from ..counting.work import COLUMNS, PASSES
from ..errors import BadValue, UnknownName
from ..machines import Device
from ..units import PRECISION_BYTES, check_integer, element_bytes, is_integer
from .optimizers import MASTER_BYTES, OPTIMIZERS, embedding_shapes, update_cost

if TYPE_CHECKING:
    from .fine_tuning import FineTuning


OFFLOADS = ("none", "cpu", "nvme")
"""Where optimizer state and gradients are kept: in the device's memory, in the host's, or on NVMe drives."""

NARROW_PRODUCTS = ("fp8", "fp4")
"""Precisions of matrix products in mixed precision that are narrower than the tensors."""

CHECKPOINTING = ("none", "sqrt", "block", "all")
"""Activation recomputation: of no activations, of those inside about sqrt(n) segments, of those inside every block, or
of those between all possible cuts (in a transformer two per block)."""

CUT_LOSS = {"fused_loss": True, "loss_chunks": 4096}
"""Fields of `TrainingOptions` of cut cross-entropy (Wijmans et al. 2024): parts of the logits, of which it holds one in
fast memory."""


class TrainingOptions(msgspec.Struct, frozen=True):
    """Options of a training step.

    Attributes
    ----------
    optimizer : str
        Update rule, one of `paleo_lite.timing.optimizers.OPTIMIZERS`.
    mixed_precision : bool
        Whether weights, gradients and activations are in fp16 or bf16, with master weights and optimizer state in fp32.
    checkpointing : {"none", "sqrt", "block", "all"}
        Activation recomputation; see `CHECKPOINTING`.
    accumulation : int
        Micro-batches per step, whose gradients are accumulated before one update.
    products : {"fp8", "fp4"} or None
        Narrower precision of matrix products. It requires mixed precision and applies to layers with weights except the
        last one, which computes the logits (Micikevicius et al. 2022, FP8 formats for deep learning; NVIDIA 2025,
        Pretraining large language models with NVFP4).
    recipe : str or None
        Recipe of the narrower products, one of `TRAINING_RECIPES`; None for none.
    fused_loss : bool or None
        Whether the cross entropy of a language model is one kernel, which reads the logits as they are (flash-attn,
        Liger, Transformer Engine), instead of several kernels in fp32; None for the default of the stack.
    loss_chunks : int
        Parts of the tokens for which head and loss are computed one after another, so that only the logits of one part
        are in memory (torchtune, Liger's fused linear cross entropy).
    fp32_gradients : bool
        Whether gradients are kept in fp32 in mixed precision, as Megatron-LM accumulates them.
    gradient_release : bool
        Whether every parameter is updated as soon as its gradient is known, so that only the gradients of one layer are
        in memory (torchtune's ``optimizer_in_bwd``; Lv et al. 2023, LOMO).
    lora_rank : int
        Rank of LoRA adapters; 0 without adapters. All other parameters are frozen.
    lora_modules : tuple of str
        Names of the layers with adapters, such as ``("q_proj", "v_proj")``; empty for all linear layers except the
        output head.
    lora_dropout : float
        Probability with which an adapter drops numbers of its input, below 1.
    fused_adapters : bool
        Whether the second product of an adapter multiplies by the scale and adds to the result of the frozen product
        (Unsloth, Axolotl, Transformer Engine), instead of kernels of their own (PEFT, torchtune).
    freeze : tuple of str
        Names or patterns of layers that are not trained, such as ``("model.embed_tokens", "model.layers.[0-9].*")``.
    train_only : tuple of str
        Names or patterns of the only layers that are trained; ``"last"`` is the last layer with weights.
    offload : {"none", "cpu", "nvme"}
        Where gradients and optimizer state are kept, and where the update takes place: on the device, in the memory of
        the host (ZeRO-Offload), or on NVMe drives (ZeRO-Infinity).

    Raises
    ------
    UnknownName
        If there is no such optimizer, kind of checkpointing or destination of offloading.
    BadValue
        If the accumulation is not an integer >= 1, the rank not an integer >= 0, modules are named without a rank, or
        `products` or `fp32_gradients` is set without mixed precision.
    """

    optimizer: str = "momentum"
    mixed_precision: bool = False
    checkpointing: str = "none"
    accumulation: int = 1
    products: str | None = None
    recipe: str | None = None
    fused_loss: bool | None = None
    loss_chunks: int = 1
    fp32_gradients: bool = False
    gradient_release: bool = False
    lora_rank: int = 0
    lora_modules: tuple[str, ...] = ()
    lora_dropout: float = 0.0
    fused_adapters: bool = True
    freeze: tuple[str, ...] = ()
    train_only: tuple[str, ...] = ()
    offload: str = "none"

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise UnknownName("optimizer", self.optimizer, OPTIMIZERS)
        if self.offload not in OFFLOADS:
            raise UnknownName("offload", self.offload, OFFLOADS)
        if self.checkpointing not in CHECKPOINTING:
            raise UnknownName("checkpointing", self.checkpointing, CHECKPOINTING)
        check_integer("the accumulation", self.accumulation, 1)
        check_integer("the parts of the loss", self.loss_chunks, 1)
        if self.products is not None and (self.products not in NARROW_PRODUCTS or not self.mixed_precision):
            names = " or ".join(map(repr, NARROW_PRODUCTS))
            raise BadValue(f"`products` must be {names}, with mixed precision (got {self.products!r})")
        if self.fp32_gradients and not self.mixed_precision:
            raise BadValue(
                "`--training-settings gradients=fp32` is for `--mixed-precision`: otherwise gradients have the "
                "precision of the weights"
            )
        if not is_integer(self.lora_rank) or self.lora_rank < 0:
            raise BadValue(f"`--lora` must be an integer >= 1 (got {self.lora_rank!r})")
        if self.lora_modules and not self.lora_rank:
            raise BadValue("`--trainable adapters` needs the rank of the adapters: give `--lora RANK`, such as 16")
        if not 0 <= self.lora_dropout < 1:
            raise BadValue(f"`--trainable dropout` must be a probability >= 0 and < 1 (got {self.lora_dropout:g})")
        if self.lora_dropout and not self.lora_rank:
            raise BadValue("`--trainable dropout` is of adapters: give `--lora RANK`, such as 16")
        if not self.fused_adapters and not self.lora_rank:
            raise BadValue("`--trainable kernels` is of adapters: give `--lora RANK`, such as 16")
        if self.gradient_release and (self.accumulation > 1 or self.offload != "none"):
            other = "--accumulation" if self.accumulation > 1 else "--offload"
            raise BadValue(
                f"`--training-settings gradients=released` updates in the backward pass, which keeps no gradients for "
                f"`{other}`: give one of them"
            )

    @property
    def fine_tuning(self) -> FineTuning | None:
        """Which parameters are trained; None for all."""
        if not (self.lora_rank or self.freeze or self.train_only):
            return None
        from .fine_tuning import FineTuning

        adapters = (self.lora_rank, self.lora_modules, self.lora_dropout, self.fused_adapters)
        return FineTuning(*adapters, self.freeze, self.train_only)

    def micro_batch(self, batch_size: int) -> int:
        """Return the samples per micro-batch.

        Raises
        ------
        BadValue
            If the batch size is not divisible by the number of micro-batches.
        """
        if batch_size % self.accumulation:
            raise BadValue(
                f"a batch of {batch_size} cannot be divided into {self.accumulation} micro-batches: "
                f"choose a batch size divisible by {self.accumulation}"
            )
        return batch_size // self.accumulation

    def split_precision(self, precision: str) -> tuple[str, TrainingOptions]:
        """Return the precision of tensors, and the options with the precision of products.

        Training in fp8, mxfp8, fp4 or nvfp4 is a recipe of mixed precision: it stores tensors in bf16 and multiplies in
        fp8 or fp4.
        """
        recipe = find_recipe(precision)
        if recipe is None:
            return precision, self
        products = TRAINING_RECIPES[recipe].products
        return "bf16", msgspec.structs.replace(self, mixed_precision=True, products=products, recipe=recipe)


def with_update(work: Work, layers: Sequence[Layer], precision: str, options: TrainingOptions) -> Work:
    """Return the work with the update of the chosen optimizer.

    A fused update reads weight, gradient and state of each parameter once, and writes weight and state. In mixed
    precision it reads and writes the fp32 master weight, and writes the 16-bit weight. In fp16 the gradients are
    divided by the loss scale and checked for overflow in a separate pass (Micikevicius et al. 2018). The given work has
    the counts with the update of plain gradient descent, and the precision is that of the weights.
    """
    optimizer = OPTIMIZERS[options.optimizer]
    update = PASSES.index("update")
    flops, macs, read, written = (COLUMNS.index(name) for name in ("flops", "macs", "bytes_read", "bytes_written"))
    fixed = work.fixed.copy()
    parameters = fixed[flops, update] // 2  # plain gradient descent takes 2 FLOPs per parameter
    state_elements = parameters * optimizer.state_per_parameter
    update_flops = parameters * optimizer.flops_per_parameter
    if optimizer.matrix_rule:
        tables = embedding_shapes(layers)
        for index in map(int, np.flatnonzero(parameters)):
            cost = update_cost(optimizer, layers[index], tables)
            state_elements[index] = cost.state_elements
            update_flops[index] = cost.flops + cost.product_flops
            fixed[macs, update, index] = cost.product_flops // 2  # the only multiply-accumulates of an update
    number_bytes = element_bytes(precision)
    state_bytes = state_elements * bytes_per_state(options, precision)
    gradient_bytes = number_bytes
    if options.mixed_precision:
        gradient_bytes = MASTER_BYTES if options.fp32_gradients else number_bytes
        read_bytes = parameters * (gradient_bytes + MASTER_BYTES) + state_bytes
        written_bytes = parameters * (number_bytes + MASTER_BYTES) + state_bytes
        if precision == "fp16":
            update_flops = update_flops + 2 * parameters
            read_bytes = read_bytes + parameters * gradient_bytes
            written_bytes = written_bytes + parameters * gradient_bytes
            fixed[COLUMNS.index("kernels"), update] *= 2
    else:
        read_bytes = parameters * 2 * number_bytes + state_bytes
        written_bytes = parameters * number_bytes + state_bytes
    fixed[flops, update] = update_flops
    fixed[read, update] = read_bytes
    fixed[written, update] = written_bytes
    return msgspec.structs.replace(work, fixed=fixed)


def bytes_per_state(options: TrainingOptions, precision: str) -> float:
    """Return the bytes of each element of optimizer state."""
    own_bytes = OPTIMIZERS[options.optimizer].state_bytes
    if own_bytes is not None:
        return own_bytes
    return MASTER_BYTES if options.mixed_precision else element_bytes(precision)


QUANTIZATION_BANDWIDTH_SHARE = 0.8
"""Share of the memory bandwidth that quantizing kernels reach: that of norms, which read and write as regularly (6.4 of
8 TB/s on a GB200; NVIDIA/cudnn-frontend, benchmarks of norms)."""


class TrainingRecipe(NamedTuple):
    """Number format of matrix products in training."""

    products: str  # precision whose peak the products have
    # Bytes moved per element of an input, or of a gradient, of a product to quantize it for all its uses.
    quantized_bytes: float
    maximum_bytes: float  # part of them that finding the largest number of a tensor moves
    saved_bytes: float  # bytes per element of an input that is saved for the gradient of the weight
    # Beginnings of the compute capabilities of the devices whose products read one copy of a weight along its rows and
    # along its columns; others keep a copy for each pass.
    one_copy_capabilities: tuple[str, ...]
    # Kernels that a product of one expert launches: the product, one that quantizes, and one for each block-
    # scaled input that brings its scales into the order of the matrix units (Transformer Engine's ``swizzle``).
    expert_kernels: int
    # Beginnings of the compute capabilities of the devices that multiply such numbers; empty for all with the
    # peak.
    capabilities: tuple[str, ...]
    description: str
    source: str

    def frozen_bytes(self, device: Device) -> float:
        """Return the bytes per number of a frozen weight, which is quantized once and has no other copy."""
        has_one_copy = bool(self.one_copy_capabilities) and device.capability.startswith(self.one_copy_capabilities)
        return self.saved_bytes if has_one_copy else 2 * self.saved_bytes

    @property
    def once_quantized_share(self) -> float:
        """Bytes that a tensor read by one product takes to quantize, over those of one that is read by two."""
        return 1 - self.saved_bytes / self.quantized_bytes


TRAINING_RECIPES = {
    "fp8": TrainingRecipe(
        products="fp8",
        quantized_bytes=2 + 2 + 2 * 1,  # maximum, read, written twice
        maximum_bytes=2,
        saved_bytes=1,
        one_copy_capabilities=("10.",),
        expert_kernels=2,
        capabilities=(),
        description="E4M3 and E5M2 with a scale per tensor, from its maximum",
        source="Micikevicius et al. 2022, FP8 formats for deep learning; Transformer Engine, Float8CurrentScaling",
    ),
    "mxfp8": TrainingRecipe(
        products="fp8",
        quantized_bytes=2 + 2 * (1 + 1 / 32),
        maximum_bytes=0,
        saved_bytes=1 + 1 / 32,
        one_copy_capabilities=(),
        expert_kernels=4,
        capabilities=("10.", "12.", "gfx95"),
        description="E4M3 with an 8-bit exponent per 32 numbers, for weights, activations and gradients",
        source="Mishra et al. 2025, Recipes for pre-training LLMs with MXFP8; Transformer Engine, MXFP8BlockScaling",
    ),
    "nvfp4": TrainingRecipe(
        products="fp4",
        quantized_bytes=2 + 2 + 2 * (1 / 2 + 1 / 16),
        maximum_bytes=2,
        saved_bytes=1 / 2 + 1 / 16,
        one_copy_capabilities=(),
        expert_kernels=4,
        capabilities=("10.", "12."),
        description="E2M1 with an E4M3 scale per 16 numbers and a scale per tensor",
        source="NVIDIA 2025, Pretraining large language models with NVFP4; Transformer Engine, NVFP4BlockScaling",
    ),
}
"""Recipes by the name that ``--precision`` takes with ``--mixed-precision``."""

RECIPE_ALIASES = {"fp4": "nvfp4"}

TRAINING_PRECISIONS = (*PRECISION_BYTES, *(name for name in TRAINING_RECIPES if name not in PRECISION_BYTES))
"""Names of ``--precision`` where training is possible."""


def find_recipe(precision: str) -> str | None:
    """Return the name in `TRAINING_RECIPES` for a precision of mixed-precision training; None for other precisions."""
    name = RECIPE_ALIASES.get(precision, precision)
    return name if name in TRAINING_RECIPES else None


def check_recipe(name: str, device: Device) -> None:
    """Raise BadValue if a device does not multiply the numbers of a recipe."""
    capabilities = TRAINING_RECIPES[name].capabilities
    if capabilities and not device.capability.startswith(capabilities):
        raise BadValue(
            f"training in {name} needs matrix units for it, as Blackwell has: {device.name} has none; "
            "use `--precision bf16` or, if it has them, fp8"
        )
