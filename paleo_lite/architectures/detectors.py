"""torchvision's detectors: how many boxes are left depends on data, so that the most which a detector keeps are taken,
or as many proposals as are asked for.

What chooses among boxes (sorting, suppression of overlaps) is left out, which a note says. The module's own attributes
are replaced for the length of a trace, within `trace.left_as_found`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..errors import TraceFailed
from .readings import Reading
from .recorder import Recorder

_ONE_STAGE = frozenset(("RetinaNet", "FCOS", "SSD"))


class Enough(BaseException):
    """All that is counted has been seen: what follows places key points one by one."""


def _submodules(module: nn.Module) -> dict[str, Any]:
    """Of torchvision's models, by class."""
    own = (known for known in module.modules() if type(known).__module__.startswith("torchvision.models"))
    return {type(submodule).__name__: submodule for submodule in own}


def take_proposals(module: nn.Module, named: dict[str, Any]) -> int | None:
    """How many proposals a detector shall keep, taken out of what it is called with: a number, or a shape's last."""
    if "RegionProposalNetwork" not in _submodules(module) or "proposals" not in named:
        return None
    given = named.pop("proposals")
    number = given if isinstance(given, int) else given.shape[-1]
    if number < 1:
        raise TraceFailed(f"the proposals of an image must be a whole number of 1 or more, not {number}")
    return int(number)


def with_most_boxes(module: nn.Module, recorder: Recorder, proposals: int | None = None) -> Iterator[str]:
    """Let a detector keep the most boxes that it may; what somebody who reads the counts should know."""
    submodules = _submodules(module)
    transform, proposing, heads = (
        submodules.get(n) for n in ("GeneralizedRCNNTransform", "RegionProposalNetwork", "RoIHeads")
    )
    if transform is not None:
        transform.postprocess = lambda result, *_: result
    for name in _ONE_STAGE & submodules.keys():
        submodules[name].postprocess_detections = lambda outputs, anchors, shapes: [{} for _ in shapes]
        yield f"the boxes that {name} chooses after its heads are not counted"
    if proposing is None or heads is None:
        return
    most = proposing._post_nms_top_n["testing"]
    proposed, detections = proposals or most, min(heads.detections_per_img, proposals or most)

    def filter_proposals(proposals: Any, objectness: Any, shapes: Any, *_: Any) -> tuple[list[Any], list[Any]]:
        scores = objectness.reshape(len(shapes), -1)
        return [image[:proposed] for image in proposals], [image[:proposed] for image in scores]

    def postprocess(
        logits: Any, regression: Any, proposals: Any, shapes: Any
    ) -> tuple[list[Any], list[Any], list[Any]]:
        boxes = [image[:detections] for image in proposals]
        labels = [torch.empty(len(image), dtype=torch.int64, device="meta") for image in boxes]
        return boxes, [image[:, 0] for image in boxes], labels

    proposing.filter_proposals, heads.postprocess_detections = filter_proposals, postprocess
    for head in heads.children():
        if type(head).__name__ == "MultiScaleRoIAlign":
            head.forward = _aligned(head, recorder)
    if heads.keypoint_predictor is not None:
        heads.keypoint_predictor.forward = _last(heads.keypoint_predictor.forward)
    further = "" if heads.mask_head is None and heads.keypoint_head is None else f" and {detections:,} detections"
    why = "as asked" if proposals else "the most that it keeps (rpn_post_nms_top_n_test, box_detections_per_img)"
    yield f"counted for {proposed:,} proposals{further} of each image, {why}; what chooses among boxes is not counted"


def _aligned(pool: Any, recorder: Recorder) -> Any:
    def forward(features: dict[str, Any], boxes: list[Any], shapes: Any) -> Any:
        levels = [features[name] for name in pool.featmap_names if name in features]
        rows = sum(len(image) for image in boxes)
        made = torch.empty((rows, levels[0].shape[1], *pool.output_size), device="meta")
        attributes = {"samples": max(pool.sampling_ratio, 1) ** 2}
        recorder.record(Reading("roi_align", [*levels, *boxes], [], attributes), [made], "roi_align", "function")
        return made

    return forward


def _last(call: Any) -> Any:
    def forward(*args: Any) -> Any:
        call(*args)
        raise Enough

    return forward
