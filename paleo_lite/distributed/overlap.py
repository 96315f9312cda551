"""Gradients exchanged in buckets while the backward pass goes on.

Frameworks collect gradients in the order in which the backward pass makes them, last layer first, and exchange a
bucket as soon as it is full: PyTorch's DistributedDataParallel in buckets of 25 MiB with a first one of 1 MiB (Li et
al. 2020, "PyTorch Distributed", sections 3.2 and 4.2; ``kDefaultFirstBucketBytes``), Horovod in a fusion buffer of
64 MiB (Sergeev and Del Balso 2018, section 4.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..errors import BadValue

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

BUCKET_BYTES = 25 * 2**20
"""PyTorch's ``bucket_cap_mb=25``, in MiB as its code has it."""
FIRST_BUCKET_BYTES = 2**20
"""PyTorch's first bucket, so that exchanging starts early."""
FUSION_BYTES = 64 * 2**20
"""Horovod's ``HOROVOD_FUSION_THRESHOLD``."""


class Buckets(msgspec.Struct, frozen=True, eq=False):
    """What is exchanged, in the order in which it is.

    Attributes
    ----------
    message_bytes : ndarray, shape (buckets,)
    of_layer : ndarray of int, shape (layers,)
        The bucket that waits for each layer's backward pass; their number for layers that none waits for.
    """

    message_bytes: Floats
    of_layer: Ints

    def ready_s(self, backward_s: ArrayLike, group: Ints | None = None) -> Floats:
        """Seconds after the backward pass began at which each bucket is full, and at last of its end.

        Parameters
        ----------
        backward_s : array, shape (layers, ...)
            Or, with `group`, of a layer of each group.
        group : ndarray of int, shape (layers,), optional
            Each layer's.

        Returns
        -------
        ndarray, shape (buckets + 1, ...)
        """
        seconds = np.asarray(backward_s, dtype=np.float64)
        members = np.zeros((len(self.message_bytes) + 1, len(seconds)))
        np.add.at(members, (self.of_layer, np.arange(len(seconds)) if group is None else group), 1)
        return np.cumsum(members @ seconds, axis=0)


def make_buckets(
    gradient_bytes: ArrayLike, bucket_bytes: float = BUCKET_BYTES, first_bytes: float | None = None
) -> Buckets:
    """Collect gradients into buckets.

    As in PyTorch a bucket is closed by the gradient that fills it, so that it may exceed its size: a tensor is never
    cut.

    Parameters
    ----------
    gradient_bytes : array, shape (layers,)
        Bytes of each layer's gradients, layers in the order of the forward pass.
    bucket_bytes : float
        At which a bucket is full; infinity makes one of everything.
    first_bytes : float, optional
        The same for the first bucket; without it 1 MiB, or `bucket_bytes` where that is smaller.

    Raises
    ------
    BadValue
        If a bucket's size is not above 0, or gradients are not one number per layer.
    """
    sizes = np.asarray(gradient_bytes, dtype=np.float64)
    if sizes.ndim != 1:
        raise BadValue("gradients are one number per layer")
    first_bytes = min(FIRST_BUCKET_BYTES, bucket_bytes) if first_bytes is None else first_bytes
    if not (bucket_bytes > 0 and first_bytes > 0):
        raise BadValue(f"a bucket must hold more than 0 bytes, not {min(bucket_bytes, first_bytes):g}")
    messages: list[float] = []
    last: list[int] = []  # layer of each bucket, counted in the order of the backward pass
    held, at, limit = 0.0, 0, first_bytes
    for place in np.flatnonzero(sizes[::-1]).tolist():
        held, at = held + float(sizes[-1 - place]), place
        if held >= limit:
            messages.append(held)
            last.append(place)
            held, limit = 0.0, bucket_bytes
    if held:
        messages.append(held)
        last.append(at)
    return Buckets(np.array(messages), np.searchsorted(last, np.arange(len(sizes)))[::-1])


def finish_s(ready_s: ArrayLike, exchange_s: ArrayLike) -> Floats:
    """When the last of several exchanges ends that run one after another.

    Each waits until its bucket is ready and the one before is through; unrolled, the last ends at the largest over
    buckets b of ``ready[b] + sum(exchange[b:])``: from the bucket on that was waited for last, there is no pause.

    Parameters
    ----------
    ready_s, exchange_s : array, shape (..., buckets)
        They broadcast.

    Returns
    -------
    ndarray, shape (...)
        0 where there is no bucket.
    """
    exchange = np.asarray(exchange_s, dtype=np.float64)
    ready = np.asarray(ready_s, dtype=np.float64)
    rest = np.cumsum(exchange[..., ::-1], axis=-1)[..., ::-1]
    ends = ready + rest
    if ends.shape[-1] == 0:
        return np.zeros(ends.shape[:-1])
    return np.asarray(ends.max(axis=-1))


def exposed_s(ready_s: ArrayLike, exchange_s: ArrayLike, backward_s: ArrayLike) -> Floats:
    """Seconds of exchange behind the end of the backward pass; see `finish_s`.

    Parameters
    ----------
    ready_s, exchange_s : array, shape (..., buckets)
    backward_s : array, shape (...)
    """
    return np.maximum(finish_s(ready_s, exchange_s) - np.asarray(backward_s, dtype=np.float64), 0.0)


def messages_of(gradient_bytes: ArrayLike, bucket_bytes: float) -> Floats:
    """Gradients in buckets of one size: as they are exchanged where there is no backward pass to wait for."""
    return make_buckets(gradient_bytes, bucket_bytes, bucket_bytes).message_bytes
