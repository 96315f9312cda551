"""`compare`: two profiles, a prediction and a profile, or a result file and its forecasts side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from ..api.prediction import predict_pass
from ..api.question import Question
from ..calibration.choose import used_calibration
from ..counting import GENERATION_PHASES
from ..counting.work import ENGINE
from ..errors import BadProfile, BadValue, UnknownFormat
from ..extras import require
from ..files import Paths, file_exists, to_paths, without_copies
from ..machines import Device
from ..timing.energy import with_power_limit
from ..timing.models import TIME_MODELS
from .completion import DEVICE, NETWORK
from .kind import make_function
from .names import Names
from .option import argument, documented_spelling, option, options_of
from .profile_options import (
    DIRECTIONS,
    GROUPINGS,
    PROFILE_GROUP,
    PROFILE_READER,
    CaptureOptions,
    FileNames,
    find_or_identify_device,
)
from .recorded_facts import RunFacts
from .records import DEVICE_GROUP, NETWORK_GROUP, TRAINING_PRECISIONS, DeviceOptions, PppOptions
from .values import INTEGER, TOKENS

if TYPE_CHECKING:
    from ..calibration.comparison import ProfileComparison
    from ..profile_analysis.compare import RunComparison
    from ..result_files.beside import MeasuredBesideForecast
    from ..timing import Prediction


@dataclass(frozen=True)
class ComparisonQuestion(RunFacts, FileNames, CaptureOptions, PppOptions, DeviceOptions):
    """Compare the kernels of two profiles, a prediction with a profile, or a result file with its forecasts.

    Of repeated profiles, every difference is compared with the spread between the repeats. A single result file of a
    benchmark (see `measurements`) is compared with the forecasts for its own configuration; ``predict``, ``gpu``,
    ``precision``, ``sequence_length`` and the options of a run add what it lacks, and ``calibration`` holds for all its
    forecasts. With ``predict``, the time model
    ``ppp`` without a PPP is fitted to the profile.
    """

    compares: ClassVar[bool] = False

    a: Paths = argument("A profile, repeated profiles, or a result file of a benchmark.")
    b: Paths = argument("The other profile, or its repeats; omitted with `predict` and for a result file.", ())
    repeats: bool = option(
        False, group=PROFILE_GROUP,
        help="Also read the repeats in the folders of A and B, recognised by their names.",
    )  # fmt: skip
    direction: str = option("all", group=PROFILE_GROUP, type=DIRECTIONS, help="Pass of the kernels.")
    by: str = option(
        "kernel", group=PROFILE_GROUP, type=GROUPINGS,
        help="Sum the times by kernel, by operation, by operation and shapes, or by module.",
    )  # fmt: skip
    predict: str | None = option(
        group=NETWORK_GROUP, type=NETWORK, metavar="NETWORK", spellings=("--predict", "--network"),
        help="Compare a prediction for this network with one profile; options of networks, devices and time models are "
        "for the prediction. The network of a result file that does not record it.",
    )  # fmt: skip
    gpu: str | Device | None = option(
        group=DEVICE_GROUP, type=DEVICE, metavar="DEVICE",
        help="With --predict: device. [default: the one recorded in the profile]",
    )  # fmt: skip
    precision: str | None = option(
        group=NETWORK_GROUP, type=TRAINING_PRECISIONS, metavar="NAME",
        help="Precision of the arithmetic. [default: fp32, or that of a result file]",
    )  # fmt: skip
    batch_size: int | None = option(
        group=NETWORK_GROUP, type=INTEGER, metavar="N",
        help="With --predict: samples per pass. [default: as in the file name of the profile]",
    )  # fmt: skip
    sequence_length: int | None = option(
        group=NETWORK_GROUP, type=TOKENS, metavar="TOKENS",
        help="Tokens per sequence of a language model; in prefill the length of the prompt. [default: the maximum of "
        "the model, but at most 2048]",
    )  # fmt: skip
    context: int | None = option(
        group=NETWORK_GROUP, type=TOKENS, metavar="TOKENS", help="Tokens in the KV cache, for the phase decode."
    )
    phase: str | None = option(
        group=NETWORK_GROUP, type=Names("phase", ".counting:PHASES", ".counting:GENERATION_PHASES"), metavar="NAME",
        help="With --predict: phase. [default: training if the profile has backward kernels, else inference]",
    )  # fmt: skip


_OF_A_RESULT_FILE = (
    "a", "predict", "gpu", "precision", "sequence_length", "calibration", "hardware_files", *options_of(RunFacts),
)  # fmt: skip
"""Options of a comparison that a result file of a benchmark takes."""

OF_A_PREDICTION = (
    "gpu", "batch_size", "sequence_length", "context", "phase", "time_model", "ppp", "calibration", "clock", "unit",
    "power_limit", "capture_traces",
)  # fmt: skip
"""Options of a comparison that only a prediction has."""

_FITTED_TO_PROFILE = [name for name, model in TIME_MODELS.items() if model.is_fitted and model.needs_ppp]


def answer_comparison(question: ComparisonQuestion) -> RunComparison | ProfileComparison | MeasuredBesideForecast:
    """Return two profiles, a prediction and a profile, or a result file and its forecasts side by side.

    Raise PaleoError for a malformed profile, or if the profile contradicts the options.
    """
    paths = [*to_paths(question.a), *to_paths(question.b)]
    single_file = paths[0] if len(paths) == 1 and file_exists(paths[0]) else None
    if single_file is not None:
        require(*PROFILE_READER)
        from ..api.result_forecasts import compare_result, is_result_file

        if is_result_file(single_file):
            _check_for_result_file(question)
            files = to_paths(question.hardware_files)
            return compare_result(single_file, _recorded_facts(question), files, question.calibration)
    for name in question.given():
        if name in options_of(RunFacts):
            raise BadValue(f"`--{name.replace('_', '-')}` is for a result file of a benchmark")
    if question.predict is not None:
        if len(paths) != 1:
            raise BadValue("`--predict` needs one profile")
        return _compare_prediction(paths[0], question)
    if single_file is not None:
        _check_is_profile(single_file)
    return _compare_runs(question)


compare = make_function("compare", ComparisonQuestion, answer_comparison)


def _compare_runs(question: ComparisonQuestion) -> RunComparison:
    """Compare two profiles, or the repeats of two runs.

    Raise BadValue for options of a prediction, or if a side is missing.
    """
    of_prediction = [name for name in question.given() if name in OF_A_PREDICTION]
    if of_prediction:
        spelling = documented_spelling(of_prediction[0], options_of(ComparisonQuestion)[of_prediction[0]])
        raise BadValue(f"`{spelling}` can be used only with `--predict`: give the network, such as --predict resnet50")
    sides_paths = (to_paths(question.a), to_paths(question.b))
    if not all(sides_paths):
        raise BadValue("`compare` needs two profiles, A and B (or `--predict NETWORK` and one profile)")
    require(*PROFILE_READER)
    from ..profile_analysis.compare import compare as compare_profiles
    from ..profile_analysis.compare import find_repeats
    from ..profiles.detect import open_profile

    pattern = question.name_pattern
    sides = []
    copies = list[str]()
    for side_paths in sides_paths:
        unique_paths = list(dict.fromkeys(side_paths))
        if question.repeats:
            unique_paths = list(dict.fromkeys(file for path in side_paths for file in find_repeats(path, pattern)))
        profiles = [open_profile(path, pattern) for path in unique_paths]
        originals, of_side = without_copies(unique_paths)
        sides.append([profile for profile in profiles if profile.path in originals])
        copies += of_side
    comparison = compare_profiles(sides[0], sides[1], question.direction, question.by)
    return msgspec.structs.replace(comparison, notes=(*copies, *comparison.notes))


def _check_is_profile(path: Path) -> None:
    """Raise PaleoError for an empty file, and for one that is neither a profile nor a result file."""
    from ..profiles.detect import open_profile
    from ..result_files.detect import recognise

    try:
        open_profile(path)
    except UnknownFormat:
        recognise(path)  # raises UnknownFormat with the formats that there are


def _check_for_result_file(question: ComparisonQuestion) -> None:
    """Raise BadValue for an option that would change nothing, as the forecasts are for what the file records."""
    for name in question.given():
        if name not in _OF_A_RESULT_FILE:
            spelling = documented_spelling(name, options_of(ComparisonQuestion)[name])
            raise BadValue(
                f"`{spelling}` is for profiles, not for a result file of a benchmark, whose rows are compared with the "
                "forecasts for what it records"
            )


def _recorded_facts(question: ComparisonQuestion) -> dict[str, Any]:
    """Return what the user adds to a result file, by the names of its facts."""
    names = {"network": "predict", **{name: name for name in ("gpu", "precision", "sequence_length")}}
    names |= {name: name for name in options_of(RunFacts)}
    facts = {fact: getattr(question, name) for fact, name in names.items()}
    return {fact: value for fact, value in facts.items() if value is not None}


def _compare_prediction(path: Path, question: ComparisonQuestion) -> ProfileComparison:
    """Compare a prediction with a profile."""
    require(*PROFILE_READER)
    from ..calibration.comparison import compare_with_profile, training_overlap_notes
    from ..calibration.from_profiles import predict_with_fitted_ppp
    from ..profile_analysis.captured_graphs import add_captured_operations
    from ..profile_analysis.contradictions import check_evidence
    from ..profile_analysis.pass_times import measure_passes
    from ..profiles.detect import open_profile

    device = find_or_identify_device(question.gpu, path, question.name_pattern, question.hardware_files)
    if not isinstance(device, Device):
        raise BadValue(device.request)
    if question.power_limit is not None:
        device = with_power_limit(device, question.power_limit)
    profile = open_profile(path, question.name_pattern)
    batch_size = question.batch_size or profile.configuration.get("batch_size")
    if not isinstance(batch_size, int):
        raise BadProfile(f"{path}: the file name does not give the batch size: use `--batch-size`")
    calibration: Any = question.calibration
    is_fitted = question.time_model in _FITTED_TO_PROFILE and question.ppp is None and calibration is None

    def predict_phase(phase: str) -> Prediction:
        """Predict a phase by its layers, whose kinds the operations of a profile have."""
        return predict_pass(
            Question(
                question.predict,
                gpu=device,
                precision=question.precision or "fp32",
                batch_size=batch_size,
                phase=phase,
                sequence_length=question.sequence_length,
                context=question.context,
                time_model=question.time_model,
                calibration=calibration,
                clock=question.clock,
                unit=question.unit,
                ppp=1.0 if is_fitted else question.ppp,
                execution=ENGINE if phase in GENERATION_PHASES else None,
            )
        )

    prediction = predict_phase(question.phase or "inference")  # an unknown network raises before the profile is read
    check_evidence(profile, prediction.device, prediction.network, prediction.precision)
    if question.capture_traces:
        profile, _ = add_captured_operations(profile, to_paths(question.capture_traces))
    measured = measure_passes(profile)
    comparison = compare_with_profile(str(path), measured, predict_phase(question.phase or measured.phase))
    if is_fitted:
        return predict_with_fitted_ppp(comparison)
    used = used_calibration(comparison.prediction, calibration)
    if used is not None:
        return msgspec.structs.replace(comparison, remarks=training_overlap_notes(comparison, used.provenance))
    return comparison
