"""JSON Schemas of the output of commands with ``--format json``, and of shipped and user-written files.

``python docs/schemas.py`` (``make examples``) writes ``docs/schemas/answers.json`` and ``docs/schemas/files.json``;
``tests/test_schemas.py`` validates real answers and all shipped files against them. Fields are added, never renamed: if
one has to be renamed, `VERSION` is increased.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any, NotRequired, get_type_hints

import msgspec
from typing_extensions import TypedDict

from paleo_lite.architectures.descriptor import Descriptor
from paleo_lite.calibration.pool import Pool
from paleo_lite.calibration.posterior import EvidencePrior
from paleo_lite.calibration.ppp import PppCalibration
from paleo_lite.calibration.store import Calibration
from paleo_lite.calibration.suggest import Suggestions
from paleo_lite.calibration.validate import Validation
from paleo_lite.distributed.clusters import ClusterPrior
from paleo_lite.distributed.link_calibrations import LinkCalibration
from paleo_lite.distributed.platforms import Computer, Platform
from paleo_lite.engines.constants import EngineConstants
from paleo_lite.machines import Device
from paleo_lite.machines.registry import LinkRegistry
from paleo_lite.own_machines.advise import LocalAdvice
from paleo_lite.own_machines.predict import LocalPrediction
from paleo_lite.own_machines.step import LocalConstants
from paleo_lite.profile_analysis.host import Hotspot
from paleo_lite.profile_analysis.ranks import Ranks
from paleo_lite.questions.kind import find_kind
from paleo_lite.questions.option import options_of
from paleo_lite.reinforcement.constants import RlConstants
from paleo_lite.serving.answers import Serving
from paleo_lite.timing.answer import COMMON_FIELDS
from paleo_lite.timing.blocks import StackConstants, TrainingConstants
from paleo_lite.timing.diffusion import DiffusionConstants
from paleo_lite.timing.energy import EnergyModel
from paleo_lite.timing.power import PowerModel

ROOT = Path(__file__).parent.parent
VERSION = 2
FOLDER = ROOT / "docs/schemas"
ADDRESS = "https://paleo-lite.invalid/schemas/{name}-{version}.json"

Number, Whole, Word = float | None, int | None, str | None
Numbers = dict[str, float]
Names = list[str]


def record(name: str, fields: dict[str, Any]) -> Any:
    """Return a typed dict; each key of `fields` is one or several field names of the same type."""
    return TypedDict(name, {field: kind for names, kind in fields.items() for field in names.split()})  # type: ignore[operator]


def answer_of(kind: type[msgspec.Struct], name: str, more: dict[str, Any] | None = None) -> Any:
    """Return the typed dict of an answer that states the common fields, those of its struct, and some more."""
    hints = {field: hint for field, hint in get_type_hints(kind).items() if field in kind.__struct_fields__}
    return record(
        name,
        {**{field: hint for field, hint in hints.items() if field not in COMMON_FIELDS}, **(more or {}), **_COMMON},
    )


# Predictions ---------------------------------------------------------------------------------------------------------

Remedy = record("Remedy", {
    "name options": str, "total_bytes": int, "fits": bool, "largest_batch largest_micro_batch": Whole,
    "time_ratio": Number,
})  # fmt: skip
Memory = record("Memory", {
    "total_bytes parameters_bytes gradients_bytes optimizer_bytes activations_bytes inputs_bytes": int,
    "workspace_bytes cache_bytes logits_bytes scratch_bytes frozen_parameters_bytes": int, "optimizer": Word,
    "capacity_bytes reserve_bytes fragmentation_bytes": float, "fits": bool,
    "largest_batch": Whole, "largest_micro_batch": Whole,
    "remedies": list[Remedy],
})  # fmt: skip
Run = record("Run", {
    "samples hours": float, "steps": int, "cost_usd kwh": Number, "price": Word,
    "hours_interval cost_interval kwh_interval": list[float] | None,
})  # fmt: skip
Site = record("Site", {"energy_j": float, "usd co2_g": Number})
# Fields of every answer, of `paleo_lite.timing.answer.COMMON_FIELDS`.
_ANSWERED = {
    "devices": Whole, "time_of": Word, "time_s bound_s throughput_per_s tokens_per_s memory_bytes": Number,
    "power_w energy_j usd_per_million": Number, "interval": list[float] | None, "fits": bool | None,
}  # fmt: skip
_COMMON = {
    "network gpu precision version": str, "execution calibration": Word, "is_forecast": bool, "notes": Names,
    **_ANSWERED,
}  # fmt: skip
Prediction = record("Prediction", {
    **_COMMON,
    "phase time_model convention clock peak_unit": str,
    "batch_size flops": int, "macs bytes parameters trainable_parameters kernels": Whole,
    "peak_flops bandwidth_bytes_per_s ridge_point constant_s": float,
    "ppp intensity mfu hfu": Number,
    "passes_s waiting_s": Numbers,
    "sustained_fraction": float, "power_interval_w energy_interval_j": list[float] | None,
    "intervals": dict[str, list[float]] | None, "memory": Memory | None,
    "generating": record("Generating", {
        "first_token_s token_s tokens_per_s_per_sequence cache_bytes_per_sequence": Number,
        "compute_bound_from_batch": Whole, "weights": Word}) | None,
    "board": record("Board", {"gpu": str, "devices": int, "throughput_per_s bound_s": Number}) | None,
    "run": Run | None, "site": Site | None,
    "by_kind": dict[str, record("KindOfWork", {
        "layers": int, "flops bytes": Whole, "energy_j": Number, "time_s share": float, "launches": NotRequired[int]})],
    "layers": list[record("LayerTime", {
        "name kind bound": str, "flops": Whole, "bytes": int, "time_s bound_s": float, "launches": NotRequired[int]})],
})  # fmt: skip
_SAMPLING = {"steps width height frames images": int, "guidance step_caching": float, "tiled": bool}
_PipelineKind = record("PipelineKind", {"time_s share": float, "energy_j": Number})
PipelinePrediction = record("PipelinePrediction", {
    **_COMMON, "time_model offload": str, **_SAMPLING, "ulysses ring macs parameters": int,
    "guidance_parallel": bool, "weights": str, "time_per_image_s mfu": float,
    "power_interval_w energy_interval_j": list[float] | None, "intervals": dict[str, list[float]] | None,
    "site": Site | None, "run": Run | None,
    "memory": record("PipelineMemory", {
        "total_bytes parameters_bytes": int, "by_offload": dict[str, int], "capacity_bytes usable_bytes": float,
        "largest_batch": Whole, "remedies": list[Remedy]}),
    "parts": list[record("PartTime", {
        "part network": str, "runs samples macs parameters_bytes": int,
        "run_s transfer_s time_s share bound_s": float, "energy_j": Number})],
    "by_kind": dict[str, _PipelineKind],
})  # fmt: skip
_COMPARED = {
    name: NotRequired[int | float | str | None]
    for kind in ("predict", "train", "diffusion")
    for name, declared in options_of(find_kind(kind).record).items()
    if declared.takes_several and name not in ("network", "gpu", "precision", "phase", "batch_size")
}
"""Options that a comparison of predictions shows beside its usual columns."""

Predictions = record("Predictions", {
    "rows": list[record("PredictionRow", {
        "network gpu precision phase answer time_model version": str, "batch_size devices": int,
        "calibration": Word, "time_s low_s high_s bound_s throughput_per_s tokens_per_s speedup": Number,
        "speedup_low speedup_high memory_bytes power_w energy_j usd_per_million": Number, "fits": bool | None,
        "hours cost_usd kwh": NotRequired[Number], **_COMPARED})],
    "answers": list[Any], "left_out": Names,
})  # fmt: skip
Local = answer_of(LocalPrediction, "Local")
Served = answer_of(Serving, "Served", {"usd_per_million_requests": Number})
_OF_RL = {
    "gpu_name rollout_precision algorithm framework limited_by trainer settings model": str,
    "trainer_devices rollout_devices steps_off samples updates tensors": int, "is_colocated": bool,
    "phases exposed": Numbers, "trainer_s rollouts_s mean_tokens bubble imbalance rollout_bytes usable_bytes": float,
    "trainer_bytes transferred_bytes gathered_bytes tokens_per_s_per_device usd_per_step": Number,
    "rollouts": dict[str, Any] | None, "totals": dict[str, Any] | None, "divisions": list[dict[str, Any]],
    "site": Site | None,
}  # fmt: skip
RlStep = record("RlStep", {**_COMMON, **_OF_RL})
_Row = dict[str, int | float | str | bool | None]
Comparison = record("Comparison", {"rows": list[_Row], "answers": list[Any], "left_out": Names})
Best = record("Best", {
    "objective": str, "seen fitting": int, "front": Whole, "knee": _Row | None, "rows": list[_Row]})  # fmt: skip
ROWS = [
    record("Sweep", {"output": str, "rows chunks": int, "feasible resumed": int, "seconds": float}),
    record("SweepSize", {"rows chunks": int}),
    Best,
]
"""What every question answers with ``-o``, ``--dry-run``, and ``--best`` or ``--pareto``."""
Counts = record("Counts", {
    "network convention unit phase execution": str,
    "batch_size kernels total macs parameters frozen_parameters": int, "convolution_share": Number,
    "unknown notes": Names,
    "on": record("Costs", {
        "gpu precision": str, "time_s energy_j overhead_s overhead_j": float, "site": Site | None}) | None,
    "by_kind": dict[str, record("KindCount", {
        "layers": int, "count": Whole, "share": Number, "time_s energy_j": NotRequired[float]})],
    "layers": list[record("LayerCount", {
        "name kind": str, "count": Whole, "macs parameters": int,
        "input_shape output_shape weight_shape": list[int] | None, "time_s energy_j": NotRequired[float]})],
})  # fmt: skip
Scale = record("Scale", {
    **_COMMON, "phase scaling topology model": str, "batch_size": int,
    "images epochs price_usd_per_h": Number, "price": Word, "trainable_parameters": Whole,
    "rows": list[record("ScaleRow", {
        **_ANSWERED, "workers batch_size speedup_over": int, "strategy collective limited_by": str,
        "compute_s communication_s exposed_s update_s input_s speedup efficiency": float,
        "run": Run | None, "site": Site | None, "cost_usd hours flops_per_s mfu hfu kwh_per_million kwh": Number,
        "efficiency_interval": list[float] | None, "in_time": bool | None, "notes": Names})],
    "best runner_up command": NotRequired[Word], "why": NotRequired[str], "refused": NotRequired[list[Any]],
})  # fmt: skip
Gemm = record("Gemm", {
    "m n k count flops bytes": int, "gpu calibration": Word, "precision time_model": str, "intensity": float,
    "ridge_point peak_flops bandwidth_bytes_per_s peak_time_s": Number, "tile": list[int] | None,
    "multiprocessors": Whole, "notes": Names,
    "ways": list[record("Way", {
        "launches groups m n k flops bytes": int, "way": str,
        "tiles waves last_wave_tiles filled covered time_s share_of_peak gain": Number,
        "interval": list[float] | None})],
})  # fmt: skip
_Change = record("Change", {
    "remedy what bottleneck": str, "throughput_per_s gain utilisation": Number})  # fmt: skip
Feeding = record("Feeding", {
    "network precision phase storage time_model": Word, "gpu host_link access bottleneck": str,
    "batch_size workers devices": int, "sample_bytes decoded_bytes": float, "pinned prefetch is_forecast": bool,
    "stages": list[record("Stage", {
        "stage what": str, "workers per_s bytes_per_s busy": Number, "beside bottleneck": bool})],
    "throughput_per_s utilisation compute_s waiting_s": float, "compute_bound_s": Number,
    "compute_interval": list[float] | None,
    "needed": record("Needed", {"samples_per_s storage_bytes_per_s workers": Number}),
    "rules": list[record("Rule", {"rule found": str, "holds": bool | None})], "remedies plan": list[_Change],
    "notes": Names,
})  # fmt: skip

# Networks, devices and links -----------------------------------------------------------------------------------------

Shapes = list[list[int]]
Network = record("Network", {
    "name source": str, "inputs": Shapes, "parameters active_parameters": int, "notes": Names,
    "layers": list[record("NetworkLayer", {
        "name kind origin": str, "inputs outputs weights": Shapes, "parents": Names, "parameters": int,
        "attributes": dict[str, Any], "role": str, "block": Whole})],
})  # fmt: skip
Networks = record("Networks", {"networks": list[record("NetworkRow", {
    "name source group": str, "input_shape": list[int], "layers parameters active_parameters macs flops": int,
    "publisher": str | None, "year": int | None})]})  # fmt: skip
_ROW = {
    "id name architecture scope clock": str, "year": int,
    "fp64_flops fp32_flops fp16_flops memory_bytes power_w rent_usd_per_h": Number, "bandwidth_bytes_per_s": float,
}  # fmt: skip
Links = record("Links", {"links": list[record("Link", {
    "id name kind per note": str, "bandwidth_bytes_per_s": float, "random_reads_per_s": Number,
    "move_s": NotRequired[float], "move": NotRequired[str],
})], "move_bytes": NotRequired[float], "measured": NotRequired[list[dict[str, Any]]]})  # fmt: skip

# Profiles ------------------------------------------------------------------------------------------------------------

_Kernel = record("ComparedKernel", {
    "name": str, "class verdict": Word, "a_s b_s difference_s ratio spread_s": Number})  # fmt: skip
_Sum = {"functions": int, "time_s share": float}
_BESIDE = {"pass": str, "measured_s predicted_s difference_s ratio ppp share_of_peak": Number}

ANSWERS: dict[str, list[Any]] = {
    "predict": [Prediction, Predictions, Scale, Comparison, *ROWS],
    "layers": [Counts, record("CountsComparison", {"networks": list[Counts]}), record("PipelineCounts", {
        "network": str, **_SAMPLING,
        "parts": list[record("PartCount", {
            "part network": str, "runs samples macs all_macs parameters layers": int,
            "convolution attention linear other": float, "time_s energy_j": NotRequired[float]})],
        "total": record("PipelineTotal", {"all_macs parameters": int, "convolution attention linear other": float}),
        "on": record("PipelineCosts", {"gpu precision": str, "time_s energy_j": float, "site": Site | None}) | None,
        "by_kind": dict[str, _PipelineKind] | None})],
    "train": [Prediction, Predictions, Scale, Comparison, *ROWS],
    "diffusion": [PipelinePrediction, Prediction, Predictions, Scale, Comparison, *ROWS, record("PictureScaling", {
        **_COMMON, **_SAMPLING,
        "rows": list[record("PictureScaleRow", {
            **_ANSWERED, "workers replicas guidance ulysses ring images": int,
            "speedup efficiency": float, "low_s high_s hours cost_usd kwh": Number})]})],
    "local": [Local, LocalAdvice, Comparison, *ROWS],
    "serve": [Served, Comparison, *ROWS],
    "rl": [RlStep, Comparison, *ROWS],
    "gemm": [Gemm, record("Gemms", {"products": list[Gemm]})],
    "feeding": [Feeding],
    "best": [Best],
    "networks list": [Networks],
    "networks show": [Network],
    "networks export": [Network],
    "hardware list": [record("Devices", {"devices": list[record("DeviceRow", _ROW)]})],
    "hardware show": [record("DeviceShown", {**_ROW, "figures": dict[str, Any]})],
    "hardware links": [Links],
    "hardware audit": [record("Audit", {"devices": int, "findings": list[record("Finding", {
        "severity device field message": str})]})],
    "efficiency": [record("Efficiency", {
        "method by": str, "device": Word, "peak_flops_per_s peak_bandwidth_bytes_per_s": Number,
        "rows groups": list[dict[str, Any]], "ranks": Ranks | None, "group_by notes": Names,
        "failed": list[dict[str, str]]})],
    "kernels": [
        record("Kernels", {
            "path format direction": str, "gpu precision": Word, "configuration": dict[str, Any],
            "peak_flops bandwidth_bytes_per_s": Number, "time_s union_s": Number, "busy_s": Numbers | None,
            "classes": list[record("KernelClass", {
                "class": str, "kernels calls": int, "time_s": float, "share": Number})],
            "kernels": list[record("Kernel", {
                "name class": str, "calls": int, "known_share": float, "rank": Whole, "bound": Word,
                "time_s share flops bytes flops_per_s flops_efficiency counted_flops counted_bytes counted_s": Number,
                "headroom occupancy": Number, "tensor_core": bool | None, "metrics": Numbers})],
            "notes": Names}),
        record("Host", {
            "path format on": str, "configuration": dict[str, Any], "time_s": Number, "hotspots": list[Hotspot],
            "kinds": list[record("HostKind", {"kind": str, **_Sum})],
            "modules": list[record("HostModule", {"module": str, **_Sum})], "notes": Names}),
    ],
    "compare": [
        record("MeasuredBesideForecast", {
            "file tool": str, "question": dict[str, int | float | str],
            "rows": list[record("Beside", {
                "row": int, "kind situation figure": str, "measured forecast ratio": float, "low high": Number})],
            "left_out notes": Names}),
        record("ProfilesSideBySide", {
            "a b notes": Names, "direction by": str, "total": _Kernel, "kernels": list[_Kernel]}),
        record("ProfileComparison", {
            "path network gpu precision phase time_model": str, "calibration": Word, "batch_size": int,
            "ppp iterations measured_s predicted_s": float, "ratio": Number, "notes": Names,
            "operations": list[record("OperationBeside", {
                "operation": str, "pass": Word, "measured_s predicted_s ratio": Number, "difference_s": float})],
            "kinds": list[record("KindBeside", {"kind": str, **_BESIDE})],
            "layers": list[record("LayerBeside", {"layer": str, **_BESIDE})]}),
    ],
    "measurements": [record("Measurements", {
        "files": list[record("ResultFile", {
            "file format tool": str, "version": Word, "measurements": list[dict[str, Any]],
            "configuration": dict[str, int | float | str | bool], "guessed": dict[str, str],
            "missing doubts": Names})],
        "failed": list[dict[str, str]]})],
    "calibrate": [Calibration, PppCalibration, Suggestions],
    "calibrations list": [record("Calibrations", {"calibrations": list[record("CalibrationRow", {
        "name phases sources": str, "points": int, "held_out_error": Number})]})],
    "calibrations show": [Calibration, PppCalibration],
    "validate": [Validation],
}  # fmt: skip
"""Types of the answers, by command."""

FILES: dict[str, list[Any]] = {
    "hardware/*.toml": [Device, LinkRegistry],
    "hardware/platforms/*.toml": [Computer],
    "models/*.json": [Descriptor, record("Config", {"model_type": str})],
    "calibrations/*.toml": [
        Calibration,
        PppCalibration,
        ClusterPrior,
        TrainingConstants,
        PowerModel,
        EnergyModel,
        DiffusionConstants,
        RlConstants,
        StackConstants,
        EvidencePrior,
    ],
    "calibrations/*.json": [Pool, LocalConstants, EngineConstants],
    "calibrations/links/*.toml": [LinkCalibration],
    "calibrations/platforms/*.toml": [Platform],
}
"""Types of the shipped or user-written files, by path. Of a config of Hugging Face only `model_type` is checked."""


def schemas(kinds: dict[str, list[Any]], name: str) -> dict[str, Any]:
    """Return one schema with a definition for each type of answer or file."""
    flat = [kind for kinds_of_key in kinds.values() for kind in kinds_of_key]
    every, definitions = msgspec.json.schema_components(flat, ref_template="#/$defs/{name}")
    of = iter(every)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": ADDRESS.format(name=name, version=VERSION),
        "version": VERSION,
        name: {key: {"anyOf": [next(of) for _ in kinds_of_key]} for key, kinds_of_key in kinds.items()},
        "$defs": {key: _without_indentation(definition) for key, definition in definitions.items()},
    }


def _without_indentation(definition: dict[str, Any]) -> dict[str, Any]:
    """Return a definition whose description is not indented as the docstring is, whatever the version of msgspec."""
    description = definition.get("description")
    return definition if description is None else {**definition, "description": inspect.cleandoc(description)}


def written() -> dict[Path, str]:
    """Return the content of the published schema files, by path."""
    return {
        FOLDER / f"{name}.json": json.dumps(schemas(kinds, name), indent=1, sort_keys=True) + "\n"
        for name, kinds in {"answers": ANSWERS, "files": FILES}.items()
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
