"""The shipped networks against independent counters: torch's, torchvision's, pthflops' and fvcore's own.

Tests: architectures/caffe.py.
"""

from __future__ import annotations

import contextlib
import io
import traceback
from math import prod

import pytest

pytest.importorskip("torch")

from paleo_lite.architectures import count_network, find_network, network_names, trace_named
from paleo_lite.architectures.caffe import NETWORKS
from paleo_lite.architectures.catalog import networks_with_macs
from paleo_lite.architectures.descriptor import write_descriptor
from paleo_lite.architectures.listing import row_of_network
from paleo_lite.counting import count
from paleo_lite.files import shipped_folder

pytestmark = pytest.mark.slow

CONFIGS = {path.stem for path in shipped_folder("models").glob("*.json") if '"model_type"' in path.read_text()[:100]}
"""Language models are shipped as configs: test_language_models.py and test_encoder_models.py compare their families."""

TRACED = [name for name in network_names() if not name.startswith("paleo_") and name not in CONFIGS]
TORCHVISION = [name for name in TRACED if name not in NETWORKS]


FAMILIES = {
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "googlenet", "maxvit_t", "mobilenet_v2",
    "mobilenet_v3_small", "regnet_y_400mf", "resnet18", "shufflenet_v2_x0_5", "squeezenet1_1", "swin_t", "swin_v2_t",
    "vit_b_32", *NETWORKS,
}  # fmt: skip
"""One network per family; `make thorough` also traces the others and compares them with other counters."""


KINDS_OF_FAMILIES = {
    "alexnet", "googlenet", "mobilenet_v3_small", "resnet18", "shufflenet_v2_x0_5", "swin_t", "vit_b_32",
}  # fmt: skip
"""Networks with all kinds of layers with multiply-accumulates: plain, grouped and depthwise convolutions, linear layers
and both ways of attention; a traced network equals its descriptor, which other tests count for every family."""


def of_each(names, tested=None):
    """Parametrize a test by network; tests of one network share a process, where it is built and traced once.

    Where some are tested, `make thorough` tests the others, too.
    """
    return pytest.mark.parametrize(
        "name",
        [
            pytest.param(
                name,
                marks=[
                    pytest.mark.xdist_group(f"network {name}"),
                    *([] if tested is None or name in tested else [pytest.mark.thorough]),
                ],
            )
            for name in names
        ],
    )


def _sum(network, column, phase):
    return int(count(network.layers).column(column, phase).sum())


@pytest.mark.spread(5)
@of_each(TRACED, tested=FAMILIES)
def test_descriptors_equal_new_traces(name, traced):
    shipped, fresh = find_network(name), traced(name)
    assert [layer for layer in zip(shipped.layers, fresh.layers) if layer[0] != layer[1]] == []
    assert shipped == fresh


@of_each(network_names(), tested=FAMILIES)
def test_the_head_of_a_descriptor_has_the_count_of_its_layers(name):
    """`networks_with_macs` reads only the heads."""
    assert f'"macs": {row_of_network(name).macs},' in (shipped_folder("models") / f"{name}.json").read_text()[:2000]


def test_a_network_is_found_by_its_macs():
    assert "resnet50" in networks_with_macs(4089184256 - 100, 1e-6)


def test_every_torchvision_classification_model_is_shipped():
    from paleo_lite.architectures.build import torchvision_names

    assert sorted(TORCHVISION) == sorted(torchvision_names())


def test_traces_are_deterministic(tmp_path):
    for number in (1, 2):
        write_descriptor(trace_named("mobilenet_v3_small"), tmp_path / f"{number}.json")
    assert (tmp_path / "1.json").read_bytes() == (tmp_path / "2.json").read_bytes()


@pytest.mark.spread(2)
@of_each(TORCHVISION, tested=KINDS_OF_FAMILIES)
def test_flop_counter_mode_agrees(name, traced, built):
    """torch counts the weight gradient of a grouped convolution once for every group; nothing else differs."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    module, size = built(name)
    with FlopCounterMode(display=False) as forward:
        result = module(torch.empty(1, 3, size, size, device="meta"))
    with FlopCounterMode(display=False) as backward:
        result.sum().backward()
    network = traced(name)
    work = count(network.layers)
    groups = [layer.attributes.get("groups", 1) for layer in network.layers]
    weight = work.column("macs", "backward_weight")[0]
    assert 2 * _sum(network, "macs", "forward") == forward.get_total_flops()
    assert 2 * int(work.column("macs", "backward_data").sum() + (weight * groups).sum()) == backward.get_total_flops()


def _weights(name):
    """Return the weights entries of a network; called inside tests, as importing torchvision takes seconds."""
    from paleo_lite.architectures.torch_import import import_torchvision

    return list(import_torchvision().models.get_model_weights(name))


@pytest.mark.spread(30)
@of_each(TORCHVISION)
def test_published_figures_of_torchvision(name, traced):
    """``_ops`` are GMACs, printed to the third decimal; ``num_params`` counts shared parameters once."""
    entries = _weights(name)
    assert entries
    for weights in entries:
        size = int(weights.transforms().crop_size[0])
        known = find_network(name)
        network = known if known.inputs[0][-1] == size else traced(name, size)
        printed = weights.meta["_ops"]
        assert _sum(network, "macs", "inference") / 1e9 == pytest.approx(printed, rel=0.005, abs=0.0005), weights
        assert network.parameters == weights.meta["num_params"], weights


def test_torchvision_has_the_weights_that_were_compared():
    assert sum(len(_weights(name)) for name in TORCHVISION) >= 115


@pytest.mark.spread(2)
@of_each(TORCHVISION, tested=KINDS_OF_FAMILIES)
def test_pthflops_agrees_with_the_package(name, traced, built):
    import torch
    from pthflops import count_ops

    module, size = built(name)
    batch_size = 2  # a batch of one would not show whether counts grow with it
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            total, rows = count_ops(module, torch.empty(batch_size, 3, size, size, device="meta"))
    except Exception as error:
        # It counts a product of two sizes as one of tensors, and takes a torch.Size for one of its own triples.
        assert name.startswith(("vit_", "maxvit_", "shufflenet_"))
        assert "pthflops" in traceback.extract_tb(error.__traceback__)[-1].filename
        pytest.skip(f"pthflops itself fails on {name}: {str(error).splitlines()[0]}")
    counts = count_network(traced(name), "pthflops", batch_size=batch_size)
    assert counts.total == total
    # torch.fx's spelling of a module's path
    ours = {row["name"].lower().replace(".", "_").replace("-", "_"): row["count"] for row in counts.rows()}
    theirs = dict(rows)
    shared = ours.keys() & theirs.keys()
    assert len(shared) >= len(theirs) / 2
    assert {key: ours[key] for key in shared} == {key: theirs[key] for key in shared}


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", ["alexnet", "resnet18", "mobilenet_v3_small", "squeezenet1_1"])
def test_fvcore_agrees_on_convolutions_and_linear_layers(name, traced):
    """Compare convolutions and linear layers only: fvcore also counts batch norm and pooling, as FLOPs."""
    import torch
    from fvcore.nn import FlopCountAnalysis

    from paleo_lite.architectures.build import torchvision_model

    module, size = torchvision_model(name)
    analysis = FlopCountAnalysis(module.to_empty(device="cpu").eval(), torch.zeros(1, 3, size, size))
    analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    by_operator = analysis.by_operator()
    work = count(traced(name).layers)
    macs = work.column("macs", "inference")[0]
    for kind, operator in (("conv2d", "conv"), ("linear", "linear")):
        ours = sum(int(number) for number, layer in zip(macs, work.kinds) if layer == kind)
        assert ours == by_operator.get(operator, 0)


@pytest.mark.spread(60)
@of_each(network_names())
def test_a_layer_reads_what_the_layers_before_it_have_written(name):
    """As many elements; views and assignments read a tensor that others have changed in place since."""
    layers = find_network(name).layers
    for index, layer in enumerate(layers):
        for shape, parent in zip(layer.inputs, layer.parents):
            assert parent < index
            if parent >= 0 and layer.kind not in ("view", "slice", "assign"):
                assert prod(shape) in map(prod, layers[parent].outputs), (layer.name, layers[parent].name)
