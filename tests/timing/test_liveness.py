"""The tensors that layers save for the backward pass, held against what torch's autograd saves: the same bytes."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import pytest

import paleo_lite as pl
from paleo_lite.architectures import find_network
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.counting import INPUT, Layer
from paleo_lite.timing.liveness import make_plan, peak_backward, peak_forward, plan_before, saved_bytes

torch = pytest.importorskip("torch", reason="what torch keeps is asked of torch: pip install 'paleo-lite[torch]'")

pytestmark = pytest.mark.slow  # importing torch takes seconds
nn = torch.nn


def saved_by_torch(module, inputs) -> int:
    """Bytes of the distinct storages that autograd saves, without parameters, buffers and the inputs themselves."""
    own = {tensor.untyped_storage()._cdata for tensor in [*module.parameters(), *module.buffers(), inputs]}
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            storages[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = module(inputs)
    assert result.requires_grad
    return sum(storage.nbytes() for storage in storages.values())


def saved_by_us(layers, batch_size: int) -> int:
    """The same of our layers; on devices without a fused dropout torch's mask has 4 bytes an element, not 1."""
    per_sample, fixed = saved_bytes(make_plan(layers, 4))
    masks = sum(
        prod(layer.outputs[0]) for layer in layers if layer.kind == "dropout" and layer.attributes.get("p") != 0
    )
    return fixed + batch_size * (per_sample + 3 * masks)


MODULES = [
    *(kind(inplace=inplace) for kind in (
        nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.Hardtanh, nn.SiLU, nn.Hardswish, nn.Hardsigmoid,
        nn.Mish, nn.Dropout,
    ) for inplace in (False, True)),
    nn.GELU(), nn.GELU("tanh"), nn.Tanh(), nn.Sigmoid(), nn.Softplus(), nn.Softsign(), nn.PReLU(), nn.Hardshrink(),
    nn.Threshold(0.1, 0), nn.Softshrink(), nn.GLU(3), nn.Softmax(1), nn.LogSoftmax(1), nn.LocalResponseNorm(5),
    nn.LayerNorm([8, 16, 16]), nn.LayerNorm(16, elementwise_affine=False), nn.GroupNorm(4, 8), nn.InstanceNorm2d(8),
    nn.InstanceNorm2d(8, affine=True), nn.BatchNorm2d(8, affine=False), nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1),
    nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d(4), nn.AdaptiveMaxPool2d(4), nn.ConvTranspose2d(8, 8, 2, 2),
    nn.Linear(16, 16), nn.Dropout(0.0), nn.Identity(), nn.ZeroPad2d(1), nn.Upsample(scale_factor=2, mode="bilinear"),
]  # fmt: skip


@pytest.mark.spread(24)
@pytest.mark.parametrize("module", MODULES, ids=str)
def test_every_kind_of_layer_saves_what_autograd_saves(module) -> None:
    """Between a batch norm, which keeps its input, and a convolution, which keeps its own."""
    chain = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), module, nn.Conv2d(8, 4, 1)).to("meta")
    layers = pl.trace(chain.eval(), torch.empty(1, 3, 16, 16, device="meta")).layers
    assert saved_by_us(layers, 2) == saved_by_torch(chain.train(), torch.empty(2, 3, 16, 16, device="meta"))


def _functions():
    """A call on two results of convolutions, u and v, and a parameter p."""
    f = nn.functional
    return {
        "u.max(1)": lambda u, v, p: u.max(1).values + v.sum(1),
        "u.amax(1)": lambda u, v, p: u.amax(1) + v.mean(1),
        "u.var(1)": lambda u, v, p: u.var(1) + v.mean(1),
        "u.norm": lambda u, v, p: u.norm(dim=1) + v.mean(1),
        "u.logsumexp": lambda u, v, p: u.logsumexp(1) + v.mean(1),
        "u.clamp": lambda u, v, p: u.clamp(0, 1) + v,
        "where": lambda u, v, p: torch.where(u > 0, u, v),
        "masked_fill": lambda u, v, p: (u + v).masked_fill(v > 0, 0.0),
        "maximum": lambda u, v, p: torch.maximum(u, v),
        "u v": lambda u, v, p: u * v,
        "u u": lambda u, v, p: u * u + v,
        "u p": lambda u, v, p: u * p + v,
        "2 u": lambda u, v, p: u * 2 + v,
        "in place u v": lambda u, v, p: (u * 2).mul_(v),
        "in place u + v": lambda u, v, p: u.add_(v),
        "u / v": lambda u, v, p: u / v,
        "u / constant": lambda u, v, p: u / v.detach(),
        "constant / v": lambda u, v, p: u.detach() / v,
        "u / p": lambda u, v, p: u / p + v,
        "u - v": lambda u, v, p: u - v,
        "u ^ 2": lambda u, v, p: u.pow(2) + v,
        "u ^ v": lambda u, v, p: u**v,
        "sqrt": lambda u, v, p: u.sqrt() + v,
        "rsqrt": lambda u, v, p: u.rsqrt() + v,
        "exp": lambda u, v, p: u.exp() + v,
        "log": lambda u, v, p: u.log() + v,
        "abs": lambda u, v, p: u.abs() + v,
        "sin": lambda u, v, p: u.sin() + v,
        "erf": lambda u, v, p: u.erf() + v,
        "reciprocal": lambda u, v, p: u.reciprocal() + v,
        "lerp by a number": lambda u, v, p: torch.lerp(u, v, 0.3),
        "addcmul": lambda u, v, p: torch.addcmul(u, u, v),
        "cat": lambda u, v, p: torch.cat([u, v], 1),
        "chunk": lambda u, v, p: torch.cat(u.chunk(2, 1)[::-1], 1) * v,
        "u @ v": lambda u, v, p: u @ v,
        "permuted u @ v": lambda u, v, p: u.permute(0, 2, 1, 3) @ v.permute(0, 2, 3, 1),
        "bmm": lambda u, v, p: torch.bmm(u[:, 0], v[:, 0]),
        "roll": lambda u, v, p: u.roll(1, 2) + v,
        "contiguous": lambda u, v, p: u.permute(0, 2, 3, 1).contiguous() * 2,
        "softmax times v": lambda u, v, p: u.softmax(-1) * v,
        "interpolate": lambda u, v, p: f.interpolate(u, scale_factor=2),
        "attention": lambda u, v, p: f.scaled_dot_product_attention(u, v, v),
    }


@pytest.mark.parametrize("name", _functions())
def test_every_function_saves_what_autograd_saves(name) -> None:
    function = _functions()[name]

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
            self.parameter = nn.Parameter(torch.ones(8, 1, 1))

        def forward(self, images):
            first = self.one(images)
            return function(first, self.two(first), self.parameter)

    module = Pair()  # on the CPU, whose attention is fused
    layers = pl.trace(module.eval(), torch.ones(1, 3, 16, 16)).layers
    assert saved_by_us(layers, 2) == saved_by_torch(module.train(), torch.ones(2, 3, 16, 16))


@pytest.mark.parametrize(("in_place", "numbers"), [(True, 1000), (False, 2000)])
def test_what_works_in_place_makes_no_second_tensor(in_place: bool, numbers: int) -> None:
    """1000 results of a linear layer and of two ReLUs: at most two of the three tensors live at once, or it is one."""
    shape = ((1, 1000),)
    relu = Layer("relu", "relu", shape, shape, (), (0,), attributes={"in_place": in_place})
    layers = [Layer("fc", "linear", ((1, 4),), shape, ((1000, 4),), (INPUT,), 4000), relu, relu._replace(parents=(1,))]
    assert tuple(peak_forward(make_plan(layers, 4))) == (4 * numbers, 0)


SAVED = {
    "alexnet": 6_278_144, "vgg16": 145_506_304, "vgg11_bn": 155_964_928, "resnet18": 43_193_856,
    "resnet50": 170_827_264, "resnext50_32x4d": 223_472_128, "densenet121": 259_853_056, "googlenet": 95_195_776,
    "squeezenet1_0": 70_330_432, "mobilenet_v2": 155_351_296, "mobilenet_v3_large": 87_121_280,
    "shufflenet_v2_x1_0": 39_630_416, "mnasnet1_0": 87_478_400, "efficientnet_b0": 175_351_872,
    "regnet_y_400mf": 66_166_080, "convnext_tiny": 217_107_392, "swin_t": 212_064_032, "swin_v2_t": 365_601_320,
}  # fmt: skip
"""Bytes that autograd saves of a batch of two, without parameters and the batch itself."""


def _training_module(name, built):
    module, size = built(name)
    module.train()
    for part in module.modules():
        if type(part).__name__ == "StochasticDepth":
            part.p = 0.0  # it drops whole samples in training; a trace in evaluation mode does not have it
    return module, size


@pytest.mark.parametrize("name", SAVED)
def test_networks_save_what_autograd_saves(name) -> None:
    assert saved_by_us(find_network(name).layers, 2) == SAVED[name]


ASKED_ANEW = ("resnet18", "squeezenet1_0", "mobilenet_v3_large", "swin_t")
"""Networks whose bytes `make test` asks torch for; `make thorough` asks for all."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ASKED_ANEW else pytest.mark.thorough) for name in SAVED]
)
def test_autograd_saves_these_bytes(name, built) -> None:
    module, size = _training_module(name, built)
    try:
        assert saved_by_torch(module, torch.empty(2, 3, size, size, device="meta")) == SAVED[name]
    finally:
        module.eval()


@pytest.mark.thorough
@pytest.mark.slow
def test_einsum_of_a_single_window_saves_a_little_less(built) -> None:
    """maxvit_t's last stage has one window: views are enough there, which we do not see."""
    module, size = _training_module("maxvit_t", built)
    wanted = saved_by_torch(module, torch.empty(2, 3, size, size, device="meta"))
    module.eval()
    assert saved_by_us(find_network("maxvit_t").layers, 2) == pytest.approx(wanted, rel=0.002)


def test_fused_attention_saves_what_autograd_saves() -> None:
    """A small vision transformer for real, on the CPU, whose fused attention works as the ones for GPUs do."""
    from paleo_lite.architectures.torch_import import import_torchvision

    transformer = import_torchvision().models.VisionTransformer
    module = transformer(image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64)
    layers = pl.trace(module.eval(), torch.zeros(1, 3, 32, 32)).layers
    assert any(layer.kind == "attention" for layer in layers)
    assert saved_by_us(layers, 2) == saved_by_torch(module.train(), torch.zeros(2, 3, 32, 32))


def test_saved_tensors_are_freed_once_their_gradients_are_computed() -> None:
    """Numbers of 4 bytes: x of 1,000 and h of 3,000 are saved.

    The last layer has the gradients of its output (10) and of h beside both: 7,010. Then h and the output's gradient
    are freed, and the first layer has x and the gradients of h and of x: 5,000.
    """
    sizes = (4, 1000, 3000, 10)
    layers = [
        Layer(f"fc{index}", "linear", ((1, a),), ((1, b),), ((b, a),), (index - 1 if index else INPUT,), a * b)
        for index, (a, b) in enumerate(pairwise(sizes))
    ]
    plan = make_plan(layers, 4)
    assert peak_backward(plan, 1, 3, frozenset())[0] == 4 * 7010
    assert peak_backward(plan, 1, 2, frozenset())[0] == 4 * (1000 + 3000 + 1000)
    assert peak_backward(plan, 2, 3, frozenset())[0] == 4 * (3000 + 10 + 3000)
    assert peak_forward(plan, 1, 3)[0] == 4 * (3000 + 10)


def eager_attention(query, key, value, mask):
    """`eager_attention_forward` of transformers 5, models/llama/modeling_llama.py, without dropout."""
    scores = torch.matmul(query, key.transpose(2, 3)) * query.shape[-1] ** -0.5 + mask
    weights = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights, value)


@pytest.mark.parametrize(("number", "number_bytes"), [("bfloat16", 2), ("float32", 4)])
def test_eager_attention_saves_its_softmax_in_fp32(number: str, number_bytes: int) -> None:
    """In 16 bits beside the weights that the product with the values reads, in fp32 in their place."""
    tokens, heads = 64, 16
    states = [torch.randn(1, heads, tokens, 128, dtype=getattr(torch, number), requires_grad=True) for _ in range(3)]
    mask = torch.zeros(1, 1, tokens, tokens, dtype=getattr(torch, number))
    storages = {}

    def pack(tensor):
        if tensor.shape[-2:] == (tokens, tokens):
            storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        eager_attention(*states, mask)
    layers = find_network("qwen3-0.6b").rebuild(SequenceOptions(tokens, fused_attention=False)).layers
    plan = make_plan(layers, number_bytes)
    softmax = next(index for index, layer in enumerate(layers) if layer.kind == "softmax")
    product = next(index for index in range(softmax, len(layers)) if layers[index].kind == "matmul")
    scores_bytes = heads * tokens**2 * number_bytes
    buffers = {buffer for index in (softmax, product) for buffer in plan.saved[index]}
    kept_bytes = sum(plan.sizes[buffer][0] for buffer in buffers if plan.sizes[buffer][0] == scores_bytes)
    assert plan.private[softmax][0] + kept_bytes == sum(storage.nbytes() for storage in storages.values())


@pytest.mark.parametrize(("network", "is_wide"), [("gpt2", False), ("llama-3.2-1b", True), ("gpt-oss-20b", False)])
def test_families_whose_softmax_has_the_numbers_of_the_scores(network: str, is_wide: bool) -> None:
    """modeling_gpt2.py gives its softmax no dtype, modeling_gpt_oss.py that of the scores with sinks."""
    layers = find_network(network).rebuild(SequenceOptions(64, fused_attention=False, blocks=1)).layers
    scores = [layer for layer in layers if layer.kind == "softmax" and len(layer.outputs[0]) == 4]
    assert scores and all(bool(layer.attributes.get("wide")) == is_wide for layer in scores)


@pytest.mark.parametrize("network", ["llama-3.2-1b", "mamba-2.8b", "resnet18"])
def test_the_plan_of_the_first_layers_is_that_of_a_network_of_them(network: str) -> None:
    layers = find_network(network).layers
    plan = make_plan(layers, 2)
    for end in (0, 1, len(layers) // 2, len(layers) - 1, len(layers)):
        assert plan_before(plan, end) == make_plan(layers[:end], 2)
