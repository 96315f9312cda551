"""torchvision's detectors against torch's counter on their parts, and against published figures of torchvision."""

from __future__ import annotations

import pytest

import paleo_lite as pl

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")


def detector(name, **options):
    from paleo_lite.architectures.build import build_module
    from paleo_lite.architectures.torch_import import import_torchvision

    make = getattr(import_torchvision().models.detection, name)
    return build_module(lambda: make(weights=None, weights_backbone=None, **options)).eval()


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("name", "options", "proposals"),
    [
        ("fasterrcnn_mobilenet_v3_large_320_fpn", {}, 150),
        ("maskrcnn_resnet50_fpn", {}, 1000),
        ("keypointrcnn_resnet50_fpn", {"rpn_post_nms_top_n_test": 50, "box_detections_per_img": 20}, 50),
    ],
)
def test_two_stage_detectors_with_the_most_boxes(name, options, proposals):
    from torch.utils.flop_counter import FlopCounterMode

    module = detector(name, **options)
    before = {path: dict(part.__dict__) for path, part in module.named_modules()}
    network = pl.trace(module, (1, 3, 320, 320))
    assert {path: dict(part.__dict__) for path, part in module.named_modules()} == before
    heads, detections = module.roi_heads, options.get("box_detections_per_img", 100)
    module.to("meta")

    def boxes(number, side):
        return torch.empty(number, module.backbone.out_channels, side, side, device="meta")

    side = min(module.transform.min_size[-1], module.transform.max_size)
    with FlopCounterMode(display=False) as peer:
        module.rpn.head(list(module.backbone(torch.empty(1, 3, side, side, device="meta")).values()))
        heads.box_predictor(heads.box_head(boxes(proposals, 7)))
        for kind in ("mask", "keypoint"):
            if getattr(heads, f"{kind}_head") is not None:
                getattr(heads, f"{kind}_predictor")(getattr(heads, f"{kind}_head")(boxes(detections, 14)))
    counts = pl.layers(network, convention="macs")
    assert 2 * counts.total == peer.get_total_flops()
    assert pl.layers(network, convention="macs", batch_size=3).total == 3 * counts.total
    assert any(note.startswith(f"counted for {proposals:,} proposals") for note in counts.notes)


@pytest.mark.thorough
def test_given_proposals_equal_a_configured_module():
    inputs = ["3x320x320", "proposals=50"]
    given = pl.layers(detector("fasterrcnn_mobilenet_v3_large_320_fpn"), inputs=inputs, convention="macs")
    made = detector("fasterrcnn_mobilenet_v3_large_320_fpn", rpn_post_nms_top_n_test=50)
    assert given.total == pl.layers(made, inputs=inputs[:1], convention="macs").total
    assert given.network.inputs == ((1, 3, 320, 320),)
    assert "counted for 50 proposals per image, as given; the selection of boxes is not counted" in given.notes


def test_one_stage_detectors_have_the_published_figures():
    """SSD300 of its own size: 34.858 G multiply-accumulates (SSD300_VGG16_Weights.meta)."""
    from paleo_lite.architectures.torch_import import import_torchvision

    published = import_torchvision().models.detection.SSD300_VGG16_Weights.DEFAULT.meta["_ops"]
    counts = pl.layers(detector("ssd300_vgg16"), inputs=["3x300x300"], convention="macs")
    assert round(counts.total / 1e9, 3) == published
    assert "the selection of boxes after the heads of SSD is not counted" in counts.notes
