"""Tracing of torchvision's detectors with a fixed number of boxes.

The number of boxes that a detector keeps depends on data. The trace assumes the most that the detector may keep, or a
given number of proposals. Selection among boxes (sorting, non-maximum suppression) is not counted, which a note states.
Methods of the module are replaced during the trace, within `trace.preserve_state`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..errors import TraceFailed
from .call_readers import TorchCall
from .recorder import Recorder

_ONE_STAGE_DETECTORS = frozenset(("RetinaNet", "FCOS", "SSD"))


class StopForward(BaseException):
    """Ends a forward pass in which all counted operations have run; keypoints would then be placed one by one."""


def _torchvision_submodules(module: nn.Module) -> dict[str, Any]:
    """Return the submodules that are classes of torchvision's models, by class name."""
    submodules = {}
    for submodule in module.modules():
        if type(submodule).__module__.startswith("torchvision.models"):
            submodules[type(submodule).__name__] = submodule
    return submodules


def pop_proposals(module: nn.Module, named_inputs: dict[str, Any]) -> int | None:
    """Remove the argument ``proposals`` of a detector from its inputs and return it.

    It is a number, or a tensor or shape with the number as its last size.
    """
    if "RegionProposalNetwork" not in _torchvision_submodules(module) or "proposals" not in named_inputs:
        return None
    proposals = named_inputs.pop("proposals")
    number = proposals if isinstance(proposals, int) else proposals.shape[-1]
    if number < 1:
        raise TraceFailed(f"`proposals`, the number of proposals per image, must be an integer >= 1 (got {number})")
    return int(number)


def keep_most_boxes(
    module: nn.Module,  # the module; nothing happens unless it is a torchvision detector
    recorder: Recorder,  # records the pooling of regions of interest
    proposals: int | None,  # proposals per image; the most that the detector keeps by default
) -> Iterator[str]:
    """Make a detector keep a fixed number of boxes, and yield notes for readers of the counts."""
    submodules = _torchvision_submodules(module)
    transform = submodules.get("GeneralizedRCNNTransform")
    region_proposal_network = submodules.get("RegionProposalNetwork")
    heads = submodules.get("RoIHeads")
    if transform is not None:
        transform.postprocess = lambda result, *_: result
    for name in _ONE_STAGE_DETECTORS & submodules.keys():
        submodules[name].postprocess_detections = lambda outputs, anchors, shapes: [{} for _ in shapes]
        yield f"the selection of boxes after the heads of {name} is not counted"
    if region_proposal_network is None or heads is None:
        return
    kept_proposals = proposals or region_proposal_network._post_nms_top_n["testing"]
    detections = min(heads.detections_per_img, kept_proposals)

    def filter_proposals(proposals: Any, objectness: Any, shapes: Any, *_: Any) -> tuple[list[Any], list[Any]]:
        scores = objectness.reshape(len(shapes), -1)
        return [image[:kept_proposals] for image in proposals], [image[:kept_proposals] for image in scores]

    def postprocess(
        logits: Any, regression: Any, proposals: Any, shapes: Any
    ) -> tuple[list[Any], list[Any], list[Any]]:
        boxes = [image[:detections] for image in proposals]
        labels = [torch.empty(len(image), dtype=torch.int64, device="meta") for image in boxes]
        return boxes, [image[:, 0] for image in boxes], labels

    region_proposal_network.filter_proposals = filter_proposals
    heads.postprocess_detections = postprocess
    for head in heads.children():
        if type(head).__name__ == "MultiScaleRoIAlign":
            head.forward = _recorded_roi_align(head, recorder)
    if heads.keypoint_predictor is not None:
        heads.keypoint_predictor.forward = _stop_after(heads.keypoint_predictor.forward)
    counted = f"{kept_proposals:,} proposals"
    if heads.mask_head is not None or heads.keypoint_head is not None:
        counted += f" and {detections:,} detections"
    reason = "as given" if proposals else "the most that it keeps (rpn_post_nms_top_n_test, box_detections_per_img)"
    yield f"counted for {counted} per image, {reason}; the selection of boxes is not counted"


def _recorded_roi_align(pool: Any, recorder: Recorder) -> Any:
    """Return a forward of ``MultiScaleRoIAlign`` that records one layer and returns a tensor of its output shape."""

    def forward(features: dict[str, Any], boxes: list[Any], shapes: Any) -> Any:
        levels = [features[name] for name in pool.featmap_names if name in features]
        rows = sum(len(image) for image in boxes)
        output = torch.empty((rows, levels[0].shape[1], *pool.output_size), device="meta")
        attributes = {"samples": max(pool.sampling_ratio, 1) ** 2}
        recorder.record(TorchCall("roi_align", [*levels, *boxes], [], attributes), [output], "roi_align", "function")
        return output

    return forward


def _stop_after(call: Any) -> Any:
    """Return a function that makes a call and then ends the forward pass."""

    def forward(*args: Any) -> Any:
        call(*args)
        raise StopForward

    return forward
