"""LoRA, QLoRA, frozen layers and the loss: published counts, and what torch computes for the same modules."""

from __future__ import annotations

import numpy as np
import pytest

import paleo_lite as pl
from asked import predict_any
from paleo_lite.architectures import find_network
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.counting import count
from paleo_lite.errors import BadValue
from paleo_lite.formats import bytes_per_number
from paleo_lite.timing.fine_tuning import (
    LOSS,
    FineTuning,
    adapt_layers,
    append_loss,
    find_logits,
    is_quantized,
    matches_module,
    original_layers,
    skip_loss_at_inference,
    trained_parameters,
)
from paleo_lite.timing.memory import model_bytes, peak_memory
from paleo_lite.timing.quantization import CONVERSION
from paleo_lite.timing.training import fine_tuning_notes
from paleo_lite.timing.training_options import TrainingOptions
from paleo_lite.timing.workload import Workload


def language_model(name: str, length: int = 256):
    return find_network(name, options=SequenceOptions(length, phase="training"))


def tuned(name: str, weights: str | None = None, precision: str = "bf16", **options) -> Workload:
    training = TrainingOptions("adamw", **options)
    return Workload(language_model(name), precision, phase="training", training=training, weights=weights)


PUBLISHED = [
    # As PEFT's print_trainable_parameters() reports them for these models and modules.
    ("llama-3-8b", 16, (), 41_943_040),
    ("llama-3-8b", 8, ("q_proj", "v_proj"), 3_407_872),
    ("llama-2-7b", 8, ("q_proj", "v_proj"), 4_194_304),
    ("llama-2-7b", 16, (), 39_976_960),
    ("gpt2", 8, ("c_attn",), 294_912),
]


@pytest.mark.parametrize(("name", "rank", "modules", "parameters"), PUBLISHED)
def test_trainable_parameters_are_the_published_ones(name, rank, modules, parameters) -> None:
    workload = tuned(name, lora_rank=rank, lora_modules=modules)
    assert workload.trainable_parameters == parameters
    base = find_network(name).parameters
    assert sum(layer.parameters for layer in workload.trained_layers) == base + parameters


def test_an_adapter_of_separate_kernels_costs_what_torch_computes() -> None:
    """The same module with adapters written by hand, traced: the same products in every pass."""
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear, rank: int) -> None:
            super().__init__()
            self.base = base.requires_grad_(False)
            self.lora_a = nn.Linear(base.in_features, rank, bias=False)
            self.lora_b = nn.Linear(rank, base.out_features, bias=False)

        def forward(self, x):
            return self.base(x) + self.lora_b(self.lora_a(x)) * 2.0

    def chain(rank: int) -> nn.Sequential:
        sizes = [(32, 64), (64, 64), (64, 16)]
        linears = [nn.Linear(a, b, bias=False) for a, b in sizes]
        if rank:
            linears = [*(Adapted(layer, rank) for layer in linears[:2]), linears[2].requires_grad_(False)]
        return nn.Sequential(linears[0], nn.ReLU(), linears[1], nn.ReLU(), linears[2])

    by_hand = count(pl.trace(chain(4), torch.zeros(1, 32)).layers)
    adapted = count(adapt_layers(pl.trace(chain(0), torch.zeros(1, 32)).layers, FineTuning(4, fuses_adapters=False)))
    for phase in ("forward", "backward_data", "backward_weight", "update"):
        for column in ("macs", "flops", "kernels"):
            sums = [int(work.column(column, phase, 8).sum()) for work in (by_hand, adapted)]
            assert sums[0] == sums[1], (phase, column)


def test_a_fused_adapter_reads_and_writes_what_addmm_does() -> None:
    """Of y = W x + s B (A x): A reads x, B reads A x and W x, and writes y; three products more go backward.

    The gradient of y is read for those of B and of A x, x and the gradient of A x for that of A, and the gradient of x
    is written once more. The last layer has no adapter.
    """
    torch = pytest.importorskip("torch")
    size, rank, batch = 64, 4, 8
    chain = torch.nn.Sequential(*(torch.nn.Linear(size, size, bias=False) for _ in range(3)))
    layers = adapt_layers(pl.trace(chain, torch.zeros(1, size)).layers, FineTuning(rank))
    assert [layer.name for layer in layers] == ["0", "0.lora_A", "0.lora_B", "1", "1.lora_A", "1.lora_B", "2"]
    work = count(layers)
    moved = {name: work.column("bytes", name, batch)[0][4:6] for name in ("forward", "backward_data")}
    x, inner, weight = batch * size, batch * rank, rank * size
    assert list(moved["forward"]) == [4 * (x + weight + inner), 4 * (inner + weight + 2 * x)]
    assert list(moved["backward_data"]) == [4 * (inner + weight + x), 4 * (x + weight + inner)]
    kernels = [int(work.column("kernels", name, batch)[0][4:6].sum()) for name in ("forward", "backward_data")]
    assert kernels == [2, 2]


def test_separate_adapters_move_more_bytes_than_fused_ones() -> None:
    """PEFT reads and writes the product of an adapter for the scale, and all three results for the sum.

    A fused product reads the result of the frozen one: 4 numbers less per output in the forward pass, of 7 projections.
    """
    fused, separate = (tuned("llama-2-7b", lora_rank=8, fused_adapters=fused) for fused in (True, False))
    moved = [int(workload.work.column("bytes", "forward")[0].sum()) for workload in (fused, separate)]
    outputs = 256 * (5 * 4096 + 2 * 11_008) * 32
    assert moved[1] - moved[0] == 2 * 4 * outputs


def test_frozen_layers_compute_no_weight_gradient_and_no_data_gradient_below_the_last_trained_one() -> None:
    workload = tuned("llama-2-7b", train_only=("last",))
    last = len(workload.trained_layers) - 1
    for name in ("backward_data", "backward_weight"):
        kernels = workload.work.column("kernels", name)[0]
        assert [index for index in np.flatnonzero(kernels) if index < last] == []
    assert workload.trainable_parameters == 32_000 * 4096


def test_freezing_the_first_blocks_leaves_the_gradients_of_the_others() -> None:
    full, frozen = tuned("gpt2"), tuned("gpt2", freeze=("transformer.wte", "transformer.wpe", "transformer.h.[0-5].*"))
    gradients = [workload.work.column("macs", "backward_weight").sum() for workload in (full, frozen)]
    products = sum(
        int(macs)
        for layer, macs in zip(full.trained_layers, full.work.column("macs", "backward_weight")[0])
        if any(f".h.{number}." in layer.name for number in range(6))
    )
    assert gradients[0] - gradients[1] == products
    per_block = 768 * (4 * 768 + 3 + 1 + 2 * 4 * 768 + 4 + 1) + 4 * 768
    assert full.trainable_parameters - frozen.trainable_parameters == 6 * per_block + (50_257 + 1024) * 768


@pytest.mark.parametrize(
    ("name", "pattern", "matches"),
    [
        ("model.layers.0.self_attn.q_proj", "q_proj", True),
        ("model.layers.0.self_attn.q_proj#2", "q_proj", True),
        ("model.layers.0.self_attn.q_proj", "proj", False),
        ("model.layers.0.self_attn.q_proj", "model.layers.0", True),
        ("model.layers.10.self_attn.q_proj", "model.layers.1", False),
        ("model.layers.10.self_attn.q_proj", "model.layers.1?.*", True),
    ],
)
def test_names_and_patterns(name: str, pattern: str, matches: bool) -> None:
    assert matches_module(name, pattern) is matches


def test_qlora_stores_frozen_matrices_in_4_bits() -> None:
    """Dettmers et al. 2023, section 3: 0.127 bits of scales per weight; embedding and head stay in 16 bits."""
    workload = tuned("llama-3-8b", weights="nf4", lora_rank=16)
    embeddings = 2 * 128_256 * 4096
    norms = 65 * 4096
    matrices = 8_030_261_248 - embeddings - norms
    expected = matrices * (4 + 0.127) / 8 + 2 * (embeddings + norms) + 2 * 41_943_040
    assert model_bytes(workload)[0] == pytest.approx(expected, rel=1e-5)
    assert sum(is_quantized(workload.trained_layers)) == 7 * 32


def test_weights_are_dequantized_in_the_forward_and_in_the_backward_pass() -> None:
    workload = tuned("llama-3-8b", weights="int4", lora_rank=16)
    matrices = 8_030_261_248 - 2 * 128_256 * 4096 - 65 * 4096
    is_inserted = np.array([layer.origin == CONVERSION for layer in workload.layers])
    assert is_inserted.sum() == 7 * 32
    moved = {name: int(workload.work.column("bytes", name)[0][is_inserted].sum()) for name in
             ("forward", "backward_data", "backward_weight", "update")}  # fmt: skip
    assert moved["forward"] == pytest.approx(matrices * (bytes_per_number("int4") + 2), rel=1e-6)
    # The projections of the first block need no data gradient: nothing below them is trained.
    first = 4096 * (4096 + 1024 + 1024)
    assert moved["backward_data"] == pytest.approx((matrices - first) * (bytes_per_number("int4") + 2), rel=1e-6)
    assert moved["backward_weight"] == moved["update"] == 0


@pytest.mark.parametrize(
    ("weights", "options"),
    [
        (None, {}), (None, {"lora_rank": 8}), ("nf4", {"lora_rank": 8}), ("int8", {"lora_rank": 8}),
        (None, {"lora_rank": 8, "lora_dropout": 0.1}), ("nf4", {"lora_rank": 8, "fused_adapters": False}),
    ],
    ids=str,
)  # fmt: skip
def test_the_original_layers_are_those_of_the_network(weights, options) -> None:
    """In their order and by their names, whatever adapters, conversions and losses are inserted between them."""
    layers = tuned("gpt2", weights, **options).layers
    originals = [layers[index] for index in original_layers(layers)]
    assert [layer.name for layer in originals] == [layer.name for layer in language_model("gpt2").layers]


def test_the_loss_is_computed_in_fp32() -> None:
    """Cast, logarithmic softmax and choice of the target's logarithm, over all logits; none at inference."""
    network = language_model("gpt2")
    layers = append_loss(network.layers, 2)
    logits = 256 * 50_257
    assert [layer.kind for layer in layers if layer.origin == LOSS] == ["copy", "log_softmax", "gather"]
    work = count(layers, "bf16")
    cast, softmax = (work.column("bytes", "forward")[0][index] for index in (-3, -2))
    assert (cast, softmax) == (logits * (2 + 4), logits * (4 + 4))
    loss_at_inference = skip_loss_at_inference(work, layers).column("bytes", "inference")[0][-3:]
    assert loss_at_inference.sum() == 0
    assert find_logits(network.layers) == len(network.layers) - 1
    assert find_logits(find_network("resnet18").layers) is None


@pytest.mark.parametrize("options", [{}, {"casts": False}, {"fused": True}], ids=str)
def test_each_layer_of_the_loss_reads_the_one_before_and_has_no_parameters(options) -> None:
    network = language_model("gpt2")
    layers = append_loss(network.layers, 2, **options)
    added = [index for index, layer in enumerate(layers) if layer.origin == LOSS]
    assert added == list(range(len(network.layers), len(layers)))
    assert [layers[index].parents for index in added] == [(index - 1,) for index in added]
    assert [layers[index].parameters for index in added] == [0] * len(added)
    assert len(added) == (1 if options.get("fused") else 2 + options.get("casts", True))


def test_the_logits_are_a_part_of_the_memory() -> None:
    """At the peak, in the backward pass of the loss: logits, their logarithms and two gradients, of 2, 4, 4 and 4
    bytes; the part of the head that is alive besides is small."""
    memory = peak_memory(tuned("gpt2"))
    assert memory.logits_bytes == pytest.approx(256 * 50_257 * 14, rel=0.25)


BAD = [
    ("resnet18", {"lora_rank": 8}, None, "needs linear layers besides the output layer"),
    (
        "gpt2",
        {"lora_rank": 8, "lora_modules": ("q_proj",)},
        None,
        "`--trainable adapters=q_proj` matches no linear layer",
    ),
    ("gpt2", {"freeze": ("layer9",)}, None, "`--trainable except=layer9` matches no layer with weights"),
    ("gpt2", {"freeze": ("*",)}, None, "nothing is left to train"),
    ("gpt2", {"train_only": ("last",)}, None, "may share its weight with the embedding"),
    ("gpt2", {}, "int4", "`--weights int4` cannot be trained"),
]


@pytest.mark.parametrize(("network", "options", "weights", "message"), BAD)
def test_impossible_combinations_get_one_sentence(network, options, weights, message) -> None:
    with pytest.raises(BadValue, match=message) as error:
        predict_any(network, gpu="a100-sxm-80gb", precision="bf16", phase="training", weights=weights,
                   training=TrainingOptions("adamw", **options))  # fmt: skip
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora_rank": -1}, "`--lora` must be an integer >= 1"),
        ({"lora_modules": ("q_proj",)}, "needs the rank"),
        ({"fp32_gradients": True}, "`--training-settings gradients=fp32` is for `--mixed-precision`"),
    ],
)
def test_options_that_do_not_belong_together(options, message) -> None:
    with pytest.raises(BadValue, match=message):
        TrainingOptions(**options)


def test_notes_only_with_fine_tuning() -> None:
    """torchvision: 11,689,512 parameters, of which the last layer has 512 x 1000 + 1000."""
    network = find_network("resnet18")
    assert fine_tuning_notes(Workload(network, "fp32", 8, "training")) == []
    last_layer = TrainingOptions(train_only=("fc",))
    (note,) = fine_tuning_notes(Workload(network, "fp32", 8, "training", training=last_layer))
    assert note == "513,000 of 11,689,512 parameters are trained (4.39%)"


def test_trained_parameters_without_fine_tuning_are_all() -> None:
    network = find_network("resnet18")
    assert trained_parameters(network.layers) == 11_689_512  # torchvision's count


def test_a_rank_above_that_of_every_matrix_is_refused():
    """The largest matrices of Llama 3 8B's adapters have 4,096 rows or columns."""
    asked = {"gpu": "h100-sxm", "precision": "bf16", "phase": "training", "sequence_length": 128}
    with pytest.raises(BadValue, match="`--lora` must be <= 4096, the largest rank of an adapted matrix"):
        predict_any("llama-3-8b", training=TrainingOptions(lora_rank=4097), **asked)
    assert predict_any("llama-3-8b", training=TrainingOptions(lora_rank=4096), **asked).time_s > 0


def test_dropout_of_adapters_keeps_the_input_of_every_adapter_and_a_mask() -> None:
    # PEFT: lora_B(lora_A(lora_dropout(x))); without it lora_A saves the x that the frozen product reads, too
    asked = {"gpu": "a100-sxm-80gb", "precision": "bf16", "lora": 8, "sequence_length": 64}
    without, with_dropout = (
        pl.train("gpt2", trainable=trainable, **asked).memory for trainable in (None, {"dropout": 0.1})
    )
    inputs = {"attn.c_attn": 768, "attn.c_proj": 768, "mlp.c_fc": 768, "mlp.c_proj": 3072}
    masks = 12 * 64 * sum(inputs.values())  # of one byte
    # Attention keeps its own output, too; the other inputs are kept after the dropout instead of before.
    kept_twice = 12 * 64 * inputs["attn.c_proj"] * 2
    added = with_dropout.total_bytes - without.total_bytes
    assert added == pytest.approx(masks + kept_twice, abs=64 * 768)  # at the peak the last block has begun to shrink


def test_dropout_is_of_adapters_and_a_probability() -> None:
    with pytest.raises(BadValue, match="give `--lora RANK`"):
        TrainingOptions("adamw", lora_dropout=0.1)
    with pytest.raises(BadValue, match="must be a probability"):
        TrainingOptions("adamw", lora_rank=8, lora_dropout=1.0)


def test_kernels_of_adapters_need_adapters() -> None:
    asked = {"gpu": "a100-sxm-80gb", "precision": "bf16", "sequence_length": 64}
    with pytest.raises(BadValue, match="`--trainable kernels` is of adapters"):
        pl.train("gpt2", trainable="kernels=separate", **asked)
    fused, separate = (
        pl.train("gpt2", lora=8, trainable=f"kernels={name}", **asked).time_s for name in ("fused", "separate")
    )
    assert pl.train("gpt2", lora=8, **asked).time_s == fused < separate


def test_released_gradients_are_those_of_the_largest_layer() -> None:
    # torchtune's ``optimizer_in_bwd``: a parameter's gradient is freed after its update
    asked = {"gpu": "a100-sxm-80gb", "precision": "bf16", "sequence_length": 64}
    kept, released = (
        pl.train("gpt2", training_settings=settings, **asked).memory.memory.gradients_bytes
        for settings in (None, {"gradients": "released"})
    )
    assert kept == 2 * 124_439_808 and released == 2 * 50257 * 768  # GPT-2's embedding
    with pytest.raises(BadValue, match="for `--accumulation`"):
        TrainingOptions("adamw", gradient_release=True, accumulation=2)
    with pytest.raises(BadValue, match="is for one device"):
        pl.train("gpt2", training_settings={"gradients": "released"}, workers=2, link="nvlink3-x12", **asked)
