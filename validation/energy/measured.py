"""Measured powers with what the device did meanwhile: ML.ENERGY's servers and pipelines, and Zeus's training steps.

The servers are described by a decoding step at their mean number of sequences and mean position, and their share of a
prompt; the time is the measured one (`mlenergy_language.csv`). So it is for batches of pictures and videos
(`mlenergy_diffusion.csv`), whose forecast stays beside the measurement. Training steps have the measured time where the
work is known: Zeus's BERT reads sequences of different lengths, whose time is the predicted one
(`validation.power_limits`). NCF hardly computes: its device waits. Cards of machines at the wall answer one prompt, at
the measured speed (`cards`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from paleo_lite.api.prediction import predict_pass
from paleo_lite.api.question import Question
from paleo_lite.engines.activity import kernel_activity
from paleo_lite.engines.kernels import ExpertsKernel, Load
from paleo_lite.machines import Device, find_device
from paleo_lite.serving.kernel_timer import device_kernels
from paleo_lite.timing.activity import Activity, Shares
from paleo_lite.timing.pipelines import on_several_devices
from paleo_lite.timing.sequence_parallel import SequenceSplit

from ..diffusion.fit import ask
from ..diffusion.published import PictureMeasurement, mlenergy_rows
from ..engines.servers import PublishedServer, place, published_servers
from ..power_limits import WAITING, ZEUS, LimitedStep, limited_steps
from ..tables import rows_of
from .cards import SOURCE as WALL
from .cards import machines_at_wall

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paleo_lite.serving.placement import ModelOnDevice
    from paleo_lite.timing.pipeline_prediction import PipelinePrediction

    Floats = NDArray[np.float64]

MLENERGY = "ML.ENERGY Benchmark v3"
IMAGENET_IMAGES = 1_281_167
"""Images of an epoch of ImageNet's training set."""

SQUAD_TOKENS = 384
"""Longest sequence of BERT's fine-tuning on SQuAD (Devlin et al. 2019, run_squad.py)."""

TYPICAL_CONTEXT = 2000
"""Context for which the kernels of a network are listed; their times follow from the load."""


AT_WALL = "machines"
"""Kind of the cards of machines that were measured at the wall."""

KINDS = ("dense", "mixtures", "pictures", "videos", "training", AT_WALL)
"""Kinds of measured work: servers of dense networks and of mixtures of experts, pipelines, training steps, and language
models on one's own machine."""


class MeasuredPower(msgspec.Struct, frozen=True, eq=False):
    """A measured average power."""

    source: str  # source of the measurement
    device: Device  # the device, with its rated limit
    # What ran.
    model: str
    task: str
    kind: str  # one of `KINDS`
    devices: int  # devices of the machine that shared the work
    activity: Activity  # what one of them did in a step
    time_s: float  # seconds of a step
    power_w: float  # average power of one of them in watts
    server: PublishedServer | None = None  # the server, if it is one
    pipeline: PipelinePrediction | None = None  # the forecast of a batch of pictures or videos, if it is one

    @property
    def shares(self) -> Shares:
        """Shares of the time of a step. Kernels of llama.cpp unpack numbers while they read them."""
        if self.kind == AT_WALL:
            return self.activity.overlapping_shares_of(self.time_s)
        return self.activity.shares_of(self.time_s)

    @property
    def series(self) -> tuple[str, str, str, int]:
        """What measurements of one series have in common: those of one deployment differ by load or batch size."""
        return self.device.id, self.model, self.task, self.devices


def measured_powers(data: Path) -> list[MeasuredPower]:
    """Return all measurements of a folder of data, and those of this repository."""
    return [*served_powers(data), *pipeline_powers(data), *trained_powers(), *card_powers(data)]


def card_powers(data: Path) -> list[MeasuredPower]:
    """Return the cards of machines at the wall of which it is known what they do."""
    return [
        MeasuredPower(
            source=WALL,
            device=machine.device,
            model=machine.model,
            task="answers",
            kind=AT_WALL,
            devices=1,
            activity=machine.activity,
            time_s=machine.time_s,
            power_w=machine.card_w,
        )
        for machine in machines_at_wall(data)
        if machine.is_busy
    ]


def pipeline_powers(data: Path) -> list[MeasuredPower]:
    """Return the batches of pictures and videos of ML.ENERGY, on one to eight devices."""
    powers = []
    alone: dict[PictureMeasurement, PipelinePrediction] = {}
    for row in mlenergy_rows(data):
        batch = row._replace(gpus=1, ulysses=1, ring=1, time_s=0.0, watts=None)
        if batch not in alone:
            alone[batch] = ask(batch)
        predicted = on_several_devices(alone[batch], SequenceSplit(row.ulysses, row.ring))
        assert row.watts is not None
        powers.append(
            MeasuredPower(
                source=MLENERGY,
                device=predicted.device,
                model=row.pipeline,
                task=_kind_of(row),
                kind=_kind_of(row),
                devices=row.gpus,
                activity=predicted.activity,
                time_s=row.time_s,
                power_w=row.watts / row.gpus,
                pipeline=predicted,
            )
        )
    return powers


def _kind_of(row: PictureMeasurement) -> str:
    return "videos" if row.frames > 1 else "pictures"


def served_powers(data: Path) -> list[MeasuredPower]:
    """Return the servers of ML.ENERGY whose network is known; of each the devices' own counters."""
    rows = list(rows_of(data / "engines/mlenergy_language.csv"))
    deployments: dict[PublishedServer, list[PublishedServer]] = {}
    for server in published_servers(data):
        if server.source == "mlenergy":
            deployments.setdefault(_deployment_of(server), []).append(server)
    powers = []
    for servers in deployments.values():
        powers += _served_powers(servers, [rows[int(server.name.split()[-1])] for server in servers])
    return powers


def _deployment_of(server: PublishedServer) -> PublishedServer:
    """Return what servers of the same deployment under other loads have in common."""
    return msgspec.structs.replace(server, name="", output_tokens=1.0, concurrency=1, tokens_per_s=1.0)


def _served_powers(servers: Sequence[PublishedServer], rows: Sequence[dict[str, str]]) -> list[MeasuredPower]:
    """Return the powers of a deployment under several loads."""
    first = servers[0]
    sequences, positions, tokens_per_s, watts = (
        np.array([float(row[name]) for row in rows])
        for name in ("mean_sequences", "output_position_mean", "output_tokens_per_s", "watts")
    )
    answers = np.array([server.output_tokens for server in servers])
    placed = place(first)
    activities = served_activity(first, placed, sequences, positions, answers)
    parts = np.broadcast_arrays(*activities, sequences)[: len(activities)]
    return [
        MeasuredPower(
            source=MLENERGY,
            device=find_device(first.gpu),
            model=first.network,
            task=row["task"],
            kind="mixtures" if _has_experts(placed) else "dense",
            devices=first.devices,
            activity=Activity(*(float(part[index]) for part in parts)),
            time_s=float(sequences[index] / tokens_per_s[index]),
            power_w=float(watts[index]) / first.devices,
            server=server,
        )
        for index, (server, row) in enumerate(zip(servers, rows, strict=True))
    ]


def _has_experts(placed: ModelOnDevice) -> bool:
    return any(
        isinstance(counted.kernel, ExpertsKernel) for counted in device_kernels(placed, "decode", TYPICAL_CONTEXT)
    )


def served_activity(
    server: PublishedServer, placed: ModelOnDevice, sequences: Floats, positions: Floats, answers: Floats
) -> Activity:
    """Return the activities of decoding steps, each with the part of prompts that falls to it.

    Parameters
    ----------
    server : PublishedServer
        A server of the deployment.
    placed : ModelOnDevice
        Its network on its devices.
    sequences, positions, answers : ndarray
        Mean sequences, mean positions of the tokens that are written, and mean lengths of answers, by load.
    """
    assert placed.kernels is not None
    step, prompt = placed.kernels.step, server.input_tokens
    of_replica = sequences / server.attention_data
    decode = Load(tokens=of_replica, all_tokens=sequences, sampled=of_replica, sequences=of_replica, context=positions)
    prefill = Load(prompt, prompt, 1.0, prompts=1.0, length=prompt, has_prompts=True)
    decoding = kernel_activity(step, device_kernels(placed, "decode", TYPICAL_CONTEXT), decode)
    reading = kernel_activity(step, device_kernels(placed, "prefill", TYPICAL_CONTEXT), prefill)
    return decoding.plus(reading.times(of_replica / answers))


def trained_powers() -> list[MeasuredPower]:
    """Return the training steps of Zeus under the rated limit."""
    return [_trained_power(step) for step in limited_steps() if step.is_rated]


def _trained_power(step: LimitedStep) -> MeasuredPower:
    activity, time_s = Activity(), 1.0
    if step.network != WAITING:
        tokens = SQUAD_TOKENS if step.network.startswith("bert") else None
        predicted = predict_pass(
            Question(
                step.network,
                gpu=step.device.id,
                phase="training",
                batch_size=step.batch_size,
                sequence_length=tokens,
            )
        )
        activity = predicted.activity
        time_s = predicted.time_s
        if step.network == "resnet50":
            time_s = step.epoch_s / IMAGENET_IMAGES * step.batch_size
    return MeasuredPower(
        source=ZEUS,
        device=step.device,
        model=step.network,
        task="training" if step.network != WAITING else "waiting",
        kind="training",
        devices=1,
        activity=activity,
        time_s=time_s,
        power_w=step.power_w,
    )
