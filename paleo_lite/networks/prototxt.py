"""Reading Caffe's network files (``deploy.prototxt``, ``train_val.prototxt``): blobs that layers take and leave.

Sizes and defaults are those of BVLC Caffe's ``caffe.proto`` and layer sources: convolutions round down, pooling rounds
up, batch normalisation has no trained parameters, Scale a factor (and with ``bias_term`` an offset) per channel. Of a
file for training, the layers of the training phase are read, also in the old format (``layers { type: CONVOLUTION }``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..counting import Shape
from ..errors import BadDescriptor
from .builder import Blob, Builder, check_input
from .network import Network
from .prototxt_layers import LAYERS, dims_of, get, sub, whole
from .prototxt_text import Message, parse_text

_DATA = {"data", "imagedata", "hdf5data", "memorydata", "windowdata", "annotateddata", "dummydata", "input"}
_NOTHING = {"accuracy", "silence", "hdf5output", "argmax"}


def read_prototxt(data: bytes, where: str, image_size: int | None = None) -> Network:
    """Read a Caffe network file.

    Parameters
    ----------
    data : bytes
        The file.
    where : str
        Its path, for messages and the source.
    image_size : int, optional
        Height and width of the input, instead of the file's; needed where a file for training does not say.

    Raises
    ------
    BadDescriptor
        If it is not such a file, has a layer whose type is not read, or sizes that do not fit: the message names it.
    """
    net = parse_text(data, where)
    reader = _Reader(where, image_size)
    reader.declared_inputs(net)
    for message in [*net.get("layer", []), *net.get("layers", [])]:
        if not isinstance(message, dict):
            raise BadDescriptor(f"{where}: a layer is a message in braces, not {message!r}")
        reader.layer(message)
    if not reader.inputs:
        raise BadDescriptor(f"{where}: has no input: expected a layer of type Input or Data, or input and input_shape")
    name = str(get(net, "name", Path(where).stem))
    return reader.builder.network(
        name, tuple(reader.inputs), f"Caffe prototxt {Path(where).name}", tuple(dict.fromkeys(reader.notes))
    )


class _Reader:
    """What has been read so far: the blobs by name. A layer that works in place leaves its output under that name."""

    def __init__(self, where: str, image_size: int | None) -> None:
        self.where, self.image_size = where, image_size
        self.builder = Builder(where)
        self.blobs: dict[str, Blob | None] = {}  # None: labels and what comes of them
        self.inputs: list[Shape] = []
        self.notes: list[str] = []

    def declared_inputs(self, net: Message) -> None:
        """``input`` with ``input_shape`` or the older ``input_dim``, at the top of the file."""
        names = net.get("input", [])
        shapes = [dims_of(message) for message in net.get("input_shape", [])]
        dims = net.get("input_dim", [])
        shapes = shapes or [dims[start : start + 4] for start in range(0, len(dims), 4)]
        if len(names) != len(shapes):
            raise BadDescriptor(f"{self.where}: {len(names)} inputs with {len(shapes)} shapes")
        for name, shape in zip(names, shapes):
            self._input(str(name), shape)

    def _input(self, name: str, dims: list[Any]) -> None:
        shape = check_input(f"{self.where}: input {name!r}", dims[1:])
        if self.image_size and len(shape) == 4:
            shape = (*shape[:2], self.image_size, self.image_size)
        self.inputs.append(shape)
        self.blobs[name] = Blob(shape)

    def layer(self, message: Message) -> None:
        """Add one layer of the file."""
        name, written = str(get(message, "name", "unnamed")), str(get(message, "type", ""))
        kind = "".join(letter for letter in written.lower() if letter.isalnum())
        if not _in_training(message):
            return
        tops = [str(top) for top in message.get("top", [])]
        if kind in _DATA:
            self._data(name, kind, message, tops)
            return
        bottoms = []
        for bottom in (str(bottom) for bottom in message.get("bottom", [])):
            if bottom not in self.blobs:
                raise self.builder.fail(name, f"takes the blob {bottom!r}, which no layer before it makes")
            bottoms.append(self.blobs[bottom])
        blobs = [blob for blob in bottoms if blob is not None]
        if kind in _NOTHING or not blobs or (kind.endswith("loss") and kind not in LAYERS):
            self.blobs |= dict.fromkeys(tops)
            if kind.endswith("loss"):
                self.notes.append(f"left out: {name}, of type {written}")
            return
        if kind == "split":
            self.blobs |= dict.fromkeys(tops, blobs[0])
        elif kind == "slice":
            self._slice(name, message, blobs[0], tops)
        else:
            add = LAYERS.get(kind)
            if add is None:
                known = sorted({*LAYERS, *_DATA, *_NOTHING, "slice", "split"})
                raise self.builder.fail(name, f"type {written!r} is not read: known are {', '.join(known)}")
            result = add(self.builder, name, message, blobs)
            if tops:
                self.blobs |= dict.fromkeys(tops)
                self.blobs[tops[0]] = result

    def _data(self, name: str, kind: str, message: Message, tops: list[str]) -> None:
        """Where the network begins. Layers that read files say no more than the size to which they crop."""
        shapes = [
            dims_of(shape)
            for shape in sub(message, f"{'input' if kind == 'input' else 'dummy_data'}_param").get("shape", [])
        ]
        if shapes:
            for index, top in enumerate(tops):
                self._input(top, shapes[min(index, len(shapes) - 1)])
            return
        sizes = [
            get(sub(message, field), "crop_size", None)
            for field in ("transform_param", f"{kind[:-4]}_param", "data_param")
        ]
        crop = self.image_size or next((size for size in sizes if size), None)
        if not tops or crop is None:
            raise self.builder.fail(name, "does not say how large its images are: give --image-size")
        self.notes.append(f"{Path(self.where).name} does not say how many channels its images have: taken to be 3")
        self._input(tops[0], [1, 3, crop, crop])
        self.blobs |= dict.fromkeys(tops[1:])

    def _slice(self, name: str, message: Message, blob: Blob, tops: list[str]) -> None:
        """Parts of a blob along an axis, each a layer of its own."""
        param = sub(message, "slice_param")
        axis = whole(self.builder, name, param, "axis", whole(self.builder, name, param, "slice_dim", 1, 0), -4)
        axis += len(blob.shape) if axis < 0 else 0
        if not 0 < axis < len(blob.shape) or not tops:
            raise self.builder.fail(name, f"cannot be cut along axis {axis}")
        size = blob.shape[axis]
        points = [0, *param.get("slice_point", []), size]
        if len(points) == 2:
            points = [size * part // len(tops) for part in range(len(tops) + 1)]
        if len(points) != len(tops) + 1 or any(not isinstance(p, int) for p in points) or points != sorted(set(points)):
            raise self.builder.fail(name, f"cannot be cut into {len(tops)} parts at {points[1:-1]}")
        for top, start, stop in zip(tops, points, points[1:]):
            shape = (*blob.shape[:axis], stop - start, *blob.shape[axis + 1 :])
            self.blobs[top] = self.builder.add(f"{name}.{top}", "slice", [blob], shape)


def _in_training(message: Message) -> bool:
    """Whether the layer belongs to a network that trains, without stages."""

    def met(rule: Any) -> bool:
        return isinstance(rule, dict) and get(rule, "phase", "TRAIN") in ("TRAIN", 0) and not rule.get("stage")

    include, exclude = message.get("include", []), message.get("exclude", [])
    return any(met(rule) for rule in include) if include else not any(met(rule) for rule in exclude)


__all__ = ["read_prototxt"]
