"""Questions of tests: fields of the nouns that an evaluation takes, by their names, each put into its noun."""

from __future__ import annotations

from typing import Any

from paleo_lite.api.prediction import predict_pass, predict_pictures
from paleo_lite.api.question import PictureOptions, Question
from paleo_lite.api.scaling import PARALLEL_3D, predict_cluster, scale_pictures
from paleo_lite.architectures.pipelines.sampling import find_pipeline
from paleo_lite.counting import GENERATION_PHASES
from paleo_lite.distributed.request import ClusterRequest
from paleo_lite.distributed.settings import Settings
from paleo_lite.timing.budget import Amount
from paleo_lite.timing.facility import SITE_SETTINGS, make_facility


def predict_any(network: Any, **fields: Any) -> Any:
    """Return the prediction of one device: of a network, or of a pipeline's pictures."""
    asked = _question(network, fields)
    is_of_pictures = isinstance(network, str) and find_pipeline(network) is not None and asked.phase == "inference"
    return predict_pictures(asked) if is_of_pictures else predict_pass(asked)


def scaling(network: Any, settings: Settings | None = None, **fields: Any) -> Any:
    """Return the predictions of many devices: of training unless a phase is given."""
    fields.setdefault("phase", "training")
    if fields["phase"] == "inference":
        workers = fields.pop("workers", 1)
        return scale_pictures(_question(network, fields), workers)
    if fields["phase"] in GENERATION_PHASES:
        fields = {"scaling": "strong", "batch_size": 1, "strategy": PARALLEL_3D, **fields}
    nouns = _nouns(fields)
    cluster = {name: fields.pop(name) for name in ClusterRequest.__struct_fields__ if name in fields}
    return predict_cluster(_question(network, fields), ClusterRequest(**cluster, **nouns), settings)


def _question(network: Any, fields: dict[str, Any]) -> Question:
    """Return what is asked of a network on a device; the device may be left to a topology."""
    nouns: dict[str, Any] = {"gpu": None, **_nouns(fields)}
    pictures = {name: fields.pop(name) for name in PictureOptions.__struct_fields__ if name in fields}
    return Question(network, pictures=PictureOptions(**pictures), **{**nouns, **fields})


def _nouns(fields: dict[str, Any]) -> dict[str, Any]:
    """Take the amount of training and the site out of fields, and return them as nouns."""
    nouns: dict[str, Any] = {}
    amount = {name: fields.pop(name) for name in Amount.__struct_fields__ if name in fields}
    if amount:
        nouns["amount"] = Amount(**amount)
    site = {name: fields.pop(name) for name in SITE_SETTINGS if name in fields}
    if site:
        nouns["facility"] = make_facility(**site)
    return nouns
