"""Nodes of a cluster that have the devices of a pool, by the labels that NVIDIA's GPU feature discovery gives them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .launch import pools_of

if TYPE_CHECKING:
    from .deployment import Deployment

LABEL = "nvidia.com/gpu.product"
"""Label of a node, whose value is the name of its devices in the driver with hyphens for spaces.

https://github.com/NVIDIA/k8s-device-plugin/tree/main/docs/gpu-feature-discovery. Shared devices have ``-SHARED`` at
the end of it, and those of MIG their profile.
"""

PRODUCTS = {
    "a10": "NVIDIA-A10",
    "a100-pcie-40gb": "NVIDIA-A100-PCIE-40GB",
    "a100-pcie-80gb": "NVIDIA-A100-80GB-PCIe",
    "a100-sxm-40gb": "NVIDIA-A100-SXM4-40GB",
    "a100-sxm-80gb": "NVIDIA-A100-SXM4-80GB",
    "a10g": "NVIDIA-A10G",
    "a40": "NVIDIA-A40",
    "b200": "NVIDIA-B200",
    "b300": "NVIDIA-B300-SXM6-AC",
    "gb200": "NVIDIA-GB200",
    "gb300": "NVIDIA-GB300",
    "h100-nvl": "NVIDIA-H100-NVL",
    "h100-pcie": "NVIDIA-H100-PCIe",
    "h100-sxm": "NVIDIA-H100-80GB-HBM3",
    "h20": "NVIDIA-H20",
    "h200-nvl": "NVIDIA-H200-NVL",
    "h200-sxm": "NVIDIA-H200",
    "l4": "NVIDIA-L4",
    "l40": "NVIDIA-L40",
    "l40s": "NVIDIA-L40S",
    "t4": "Tesla-T4",
}
"""Value of the label by device, as nodes and manifests that are public have it."""


def has_several_devices(deployment: Deployment) -> bool:
    """Return whether the pools of a deployment have different devices."""
    return len(set(device_ids(deployment))) > 1


def device_ids(deployment: Deployment) -> list[str]:
    """Return the device of each pool."""
    return [pool.on_device.machine.device.id for pool in pools_of(deployment).values()]


def node_selector(deployment: Deployment, pool: Deployment) -> dict[str, str]:
    """Return the labels of the nodes of a pool; none where all nodes may do, or their label is not known."""
    product = PRODUCTS.get(pool.on_device.machine.device.id)
    return {LABEL: product} if product is not None and has_several_devices(deployment) else {}


def node_notes(deployment: Deployment, *, is_stated: bool = True) -> list[str]:
    """Return notes on the nodes of each pool; `is_stated` says whether the file states those whose label is known."""
    if not has_several_devices(deployment):
        product = PRODUCTS.get(device_ids(deployment)[0])
        if product is None or not is_stated:
            return []
        return [f"On a cluster of several kinds of devices, choose nodes with the label {LABEL}: {product}."]
    notes = []
    for role, pool in pools_of(deployment).items():
        device = pool.on_device.machine.device
        product = PRODUCTS.get(device.id)
        if product is None:
            notes.append(f"The pods of {role} need nodes with {device.name}: add their `nodeSelector`.")
        elif is_stated:
            notes.append(f"The pods of {role} run on nodes with {device.name}: {LABEL}={product} (-SHARED if shared).")
        else:
            notes.append(f"The pods of {role} need nodes with {device.name}, such as {LABEL}={product}.")
    return notes


def host_notes(deployment: Deployment, services: Iterable[tuple[str, str]]) -> list[str]:
    """Return notes on the computer of each of some services of a Compose file, given with its role."""
    if not has_several_devices(deployment):
        return []
    named: dict[str, list[str]] = {}
    for service, role in services:
        named.setdefault(role, []).append(service)
    notes = []
    for role, pool in pools_of(deployment).items():
        name = pool.on_device.machine.device.name
        notes.append(f"On the computer with {name}: docker compose -f {{file}} up --no-deps {' '.join(named[role])}")
    return [*notes, "Services on another computer are reached by its address, which the router's command has to name."]
