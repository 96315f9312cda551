"""Offloading to the host: transfers by hand, and the update of the paper."""

from __future__ import annotations

import msgspec
import pytest

import paleo_lite as pl
from asked import predict_any
from paleo_lite.errors import BadValue
from paleo_lite.machines import find_device
from paleo_lite.timing.offload import (
    LINK_SHARE,
    HostTransfers,
    host_bandwidth_bytes_per_s,
    host_transfers,
    offload_note,
    peer_bandwidth_bytes_per_s,
)
from paleo_lite.timing.training_options import TrainingOptions

V100 = find_device("v100-sxm2")


def test_the_host_updates_as_fast_as_in_the_paper() -> None:
    """Ren et al. 2021, table 4: CPU-Adam takes 0.22, 0.51, 1.03 and 2.41 s for 1, 2, 4 and 8 billion parameters."""
    for billions, seconds in ((1, 0.22), (2, 0.51), (4, 1.03), (8, 2.41)):
        transfers = host_transfers(
            V100, "cpu", gradient_bytes=2e9, parameter_bytes=2e9, update_bytes=28e9 * billions, state_bytes=12e9
        )
        assert transfers.update_s == pytest.approx(seconds, rel=0.2)


def test_the_backward_pass_hides_gradients() -> None:
    transfers = HostTransfers(gradients_s=0.5, update_s=1.0, parameters_s=0.25)
    assert transfers.exposed_s(backward_s=0.7) == 1.25
    assert transfers.exposed_s(backward_s=0.3) == pytest.approx(1.45)


def test_a_drive_reads_and_writes_the_state() -> None:
    state_bytes = 12e9
    on_drive = host_transfers(
        V100, "nvme", gradient_bytes=0, parameter_bytes=0, update_bytes=28e9, state_bytes=state_bytes
    )
    assert on_drive.update_s == pytest.approx(2 * state_bytes / (0.771 * 7.88e9), rel=1e-3)


def test_links() -> None:
    assert host_bandwidth_bytes_per_s(V100) == pytest.approx(LINK_SHARE * 15.75e9)
    assert peer_bandwidth_bytes_per_s(find_device("h100-sxm")) == 450e9


@pytest.mark.parametrize("gpu", ["jetson-nano", "apple-m1"])
def test_a_device_without_a_host_of_its_own(gpu: str) -> None:
    with pytest.raises(BadValue, match="shares its memory with the host"):
        predict_any("resnet18", gpu=gpu, phase="training", time_model="roofline",
                   training=TrainingOptions("adamw", offload="cpu"))  # fmt: skip


def test_a_device_whose_file_names_no_host_link() -> None:
    without_links = msgspec.structs.replace(find_device("gb200"), links=[])
    with pytest.raises(BadValue, match=r"the hardware file of GB200.* names none"):
        host_bandwidth_bytes_per_s(without_links)


def test_a_step_without_state_on_the_device() -> None:
    """The device needs neither state nor gradients, and waits for the host."""
    plain, offloaded = (
        predict_any("resnet50", gpu="v100-sxm2", phase="training", batch_size=16,
                   training=TrainingOptions("adamw", offload=offload))
        for offload in ("none", "cpu")
    )  # fmt: skip
    assert offloaded.memory.memory.optimizer_bytes == 0
    assert offloaded.memory.memory.total_bytes < plain.memory.memory.total_bytes - 2 * 4 * 25_557_032
    assert offloaded.passes_s["update"] > plain.passes_s["update"]
    assert any(note.startswith("offload: ") for note in offloaded.notes)
    assert "NVMe" in offload_note("nvme", 1e9)


def test_transfers_by_hand() -> None:
    """A V100 reaches 0.771 of PCIe 3's 15.75 GB/s; four devices share processors that update 112 GB/s."""
    transfers = host_transfers(
        V100,
        "cpu",
        gradient_bytes=24.2865e9,
        parameter_bytes=12.14325e9,
        update_bytes=28e9,
        state_bytes=12e9,
        devices_per_host=4,
    )
    assert transfers.gradients_s == pytest.approx(2.0, rel=1e-4)
    assert transfers.parameters_s == pytest.approx(1.0, rel=1e-4)
    assert transfers.update_s == pytest.approx(1.0)


def test_the_slower_of_update_and_drive_counts() -> None:
    """Two devices: 224 GB take the processors 4 s, and 2 x 2 x 6.0755 GB take a drive of 6.0755 GB/s as long."""
    sizes = {"gradient_bytes": 0.0, "parameter_bytes": 0.0, "devices_per_host": 2}
    slow_update = host_transfers(V100, "nvme", update_bytes=224e9, state_bytes=1e9, **sizes)
    slow_drive = host_transfers(V100, "nvme", update_bytes=1e9, state_bytes=6.07548e9, **sizes)
    assert slow_update.update_s == pytest.approx(4.0)
    assert slow_drive.update_s == pytest.approx(4.0, rel=1e-3)


def test_cards_without_a_link_of_their_own_communicate_over_the_host() -> None:
    """The data sheet of the T4 names PCIe 3.0 x16 only: 15.75 GB/s in one direction."""
    assert peer_bandwidth_bytes_per_s(find_device("t4")) == pytest.approx(15.75e9, rel=1e-3)


def test_the_note_names_size_and_place() -> None:
    assert offload_note("cpu", 12e9) == "offload: 12 GB of gradients and optimizer state are in the memory of the host"
    assert offload_note("nvme", 12e9) == "offload: 12 GB of gradients and optimizer state are in NVMe drives"


# Paged optimizers ----------------------------------------------------------------------------------------------------


ONE_GPU = {"network": "llama-3.2-3b", "gpu": "rtx4090", "sequence_length": 1024, "recompute": "full"}


def test_paged_state_stays_where_it_has_room() -> None:
    """bitsandbytes keeps two moments in fp32, or in a byte each with an fp32 scale per block of 256 elements."""
    alone = {"network": "gpt2", "gpu": "rtx4090", "sequence_length": 512}
    for name, element_bytes in (("paged-adamw", 4), ("paged-adamw-8bit", 1 + 4 / 256)):
        answer = pl.train(**alone, optimizer=name)
        assert answer.memory.memory.optimizer_bytes == pytest.approx(2 * element_bytes * 124_439_808, rel=1e-6)
        assert not any("memory of the host" in note for note in answer.notes)
    resident = pl.train(**alone, optimizer="adamw-8bit")
    assert pl.train(**alone, optimizer="paged-adamw-8bit").time_s == resident.time_s


def test_paged_state_leaves_a_full_device() -> None:
    """What has no room comes back over PCIe 4 for the update and leaves again: 31.5 GB/s, of which copies reach 77%."""
    resident, paged = (pl.train(**ONE_GPU, optimizer=name) for name in ("adamw", "paged-adamw"))
    assert not resident.fits and paged.fits
    left = 2 * 4 * paged.parameters - paged.memory.memory.optimizer_bytes
    assert paged.memory.total_bytes == pytest.approx(paged.memory.usable_bytes, abs=2)
    update_s = paged.terms.seconds_of("update").sum()
    assert update_s == pytest.approx(2 * left / (LINK_SHARE * 31.5e9), rel=0.01)
    assert paged.memory.largest_batch is not None


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"workers": 2, "link": "pcie4-x16"}, "moves its state between one device and its host"),
        ({"execution": "megatron", "gpu": "h100-sxm"}, "Megatron-LM has no paged optimizers"),
    ],
)
def test_where_paged_optimizers_do_not_run(more, sentence) -> None:
    with pytest.raises(BadValue, match=sentence):
        pl.train(**{**ONE_GPU, "optimizer": "paged-adamw", **more})


@pytest.mark.parametrize("options", [{"optimizer": "paged-adamw"}, {"optimizer": "adamw", "offload": "cpu"}])
def test_a_device_draws_little_while_it_waits_for_its_host(options) -> None:
    """Beside its own kernels, with which it reaches its limit of 450 W, it draws the power of a waiting device."""
    resident, waiting = pl.train(**ONE_GPU, optimizer="adamw"), pl.train(**ONE_GPU, **options)
    idle_w = waiting.power.idle_w
    waiting_s = waiting.terms.offloaded_s.sum()
    assert resident.power_w == pytest.approx(450, rel=0.02) and resident.terms.offloaded_s is None
    assert waiting_s > 0.5 * waiting.time_s and idle_w < 0.4 * 450
    mean_w = (450 * (waiting.time_s - waiting_s) + idle_w * waiting_s) / waiting.time_s
    assert waiting.power_w == pytest.approx(mean_w, rel=0.04)
    assert sum(waiting.waiting_s.values()) >= waiting_s
    update = waiting.terms.passes.index("update")
    is_on_device = "offload" not in options
    assert (waiting.terms.compute_s[update].sum() > 0) == is_on_device
    assert (waiting.terms.memory_s[update].sum() < waiting.terms.layers_s[update].sum()) == is_on_device


def test_the_precision_of_paged_state_is_said() -> None:
    """bitsandbytes keeps the state of ``paged_adamw_32bit`` in fp32: 2 + 2 + 4 + 4 bytes per parameter."""
    notes = pl.train(**{**ONE_GPU, "optimizer": "paged-adamw"}).notes
    assert any("fp32, as bitsandbytes keeps it: 12 bytes per parameter" in note for note in notes)
    assert not any("as bitsandbytes keeps it" in note for note in pl.train(**{**ONE_GPU, "optimizer": "adamw"}).notes)


@pytest.mark.thorough
def test_remedies_of_paged_state_agree_with_their_largest_batch() -> None:
    """What fits has a largest batch of at least the one asked; several devices divide the state, and do not page it."""
    answer = pl.train("llama-3.2-3b", gpu="rtx4090", optimizer="paged-adamw", batch_size=8)
    remedies = answer.memory.remedies
    assert remedies
    for remedy in remedies:
        assert remedy.fits == (remedy.largest_batch is not None and remedy.largest_batch >= 8), remedy.name
    named = [remedy.name for remedy in remedies if "ZeRO" in remedy.name]
    assert named and all(name.endswith(", with adamw") for name in named)
    with pytest.raises(BadValue, match=r"for 8 devices give `--optimizer adamw-8bit`, whose state `--sharding zero-1`"):
        pl.train("llama-3.2-3b", gpu="rtx4090", optimizer="paged-adamw-8bit", workers=8, link="pcie4-x16")
