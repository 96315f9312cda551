"""The fused kernels of Megatron-LM, at inference and in training: they save bytes and launches, but no FLOPs.

Narayanan et al. 2021 (section 4.2) describe the first of them: scale, mask and softmax of the attention scores; bias,
dropout and the residual's addition; bias and GeLU, which is one kernel here in any case, because products add their
bias. Megatron-Core also fuses a gated activation (``bias_swiglu``), an RMS norm and rotary positions (Transformer
Engine), and the sum over the experts of a token (``moe_permute_fusion``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from .kinds import ACTIVATIONS, KINDS
from .layer import Layer
from .work import COLUMNS, PASSES, Work

READ, WRITTEN, KERNELS = (COLUMNS.index(name) for name in ("bytes_read", "bytes_written", "kernels"))
INFERENCE, FORWARD, BACKWARD, WEIGHTS = (
    PASSES.index(name) for name in ("inference", "forward", "backward_data", "backward_weight")
)
_SCORE_KINDS = ("mul", "div", "add", "where")
"""Kinds of layers between the attention scores and their softmax: scaling and masking."""


class FusedTraffic(NamedTuple):
    """Memory traffic of a fused kernel in units of layer outputs."""

    # Indices of layers whose output is read or written; an index that occurs twice counts twice.
    read: tuple[int, ...]
    written: tuple[int, ...]


class FusedKernel(NamedTuple):
    """Layers that one kernel computes."""

    layers: tuple[int, ...]  # indices of the layers
    row: int  # index of the layer that holds the bytes and launch of the kernel
    # Memory traffic of the forward pass and of the data gradient.
    forward: FusedTraffic
    backward: FusedTraffic


class FusedDropout(NamedTuple):
    """A dropout and the residual's addition in one kernel, in the forward pass only."""

    dropout: int
    addition: int


def fuse_megatron_kernels(layers: Sequence[Layer], work: Work) -> Work:
    """Return the work of a network with the fused kernels of Megatron-LM.

    The bytes and the launch of a fused kernel are in the row of one of its layers, and 0 in the rows of the others.
    """
    carrier = np.arange(len(layers))
    per_sample, fixed = work.per_sample.copy(), work.fixed.copy()
    for fused in _Blocks(layers).fused_kernels():
        if isinstance(fused, FusedDropout):
            _apply_dropout(per_sample, fused)
            _apply_dropout(fixed, fused)
            continue
        carrier[list(fused.layers)] = fused.row
        extra_reads = _count_extra_reads(layers, fused)
        _apply_kernel(per_sample, fused, extra_reads)
        _apply_kernel(fixed, fused, extra_reads)
    return msgspec.structs.replace(work, per_sample=per_sample, fixed=fixed, carrier=carrier)


def _count_extra_reads(layers: Sequence[Layer], fused: FusedKernel) -> dict[int, int]:
    """Return how many times more than once the layers of a kernel read each output of a layer outside the kernel."""
    reads: Counter[int] = Counter()
    for member in fused.layers:
        reads.update(parent for parent in layers[member].parents if parent >= 0)
    return {producer: times - 1 for producer, times in reads.items() if times > 1 and producer not in fused.layers}


def _apply_dropout(counts: np.ndarray, fused: FusedDropout) -> None:
    """Move the addition of the residual into the kernel of the dropout, which still writes its mask.

    At inference there is no dropout to fuse with.
    """
    dropout, addition = fused
    size = counts[WRITTEN, FORWARD, addition].copy()
    counts[READ, FORWARD, dropout] += counts[READ, FORWARD, addition] - size
    counts[READ : KERNELS + 1, FORWARD, addition] = 0


def _apply_kernel(counts: np.ndarray, fused: FusedKernel, extra_reads: Mapping[int, int]) -> None:
    """Replace the bytes and launches of the layers of a kernel by those of the kernel, in place.

    The counts, of shape (columns, passes, layers), are those per sample, or those that do not grow with the batch. The
    extra reads are those beyond the first of each output of a layer outside the kernel: gradients that are no longer
    accumulated separately.
    """
    output_bytes = counts[WRITTEN, FORWARD].copy()
    members, row = list(fused.layers), fused.row
    traffic_by_pass = ((INFERENCE, fused.forward), (FORWARD, fused.forward), (BACKWARD, fused.backward))
    for pass_index, traffic in traffic_by_pass:
        if not counts[READ : KERNELS + 1, pass_index, members].any():
            continue
        launches = counts[KERNELS, pass_index, members].max()
        counts[READ : KERNELS + 1, pass_index, members] = 0
        counts[READ, pass_index, row] = output_bytes[list(traffic.read)].sum()
        counts[WRITTEN, pass_index, row] = output_bytes[list(traffic.written)].sum()
        counts[KERNELS, pass_index, row] = min(launches, 1)
    for producer, times in extra_reads.items():
        accumulated = times * output_bytes[fused.forward.read[0]]
        counts[READ, BACKWARD, producer] -= 2 * accumulated
        counts[WRITTEN, BACKWARD, producer] -= accumulated
        counts[KERNELS, BACKWARD, producer] -= min(times, counts[KERNELS, BACKWARD, producer])
    # The kernel of the data gradient also leaves the sums for the weight gradient.
    counts[READ:KERNELS, WEIGHTS, members] = 0


class _Blocks:
    """The graph of a network without views, and the patterns of layers that Megatron-LM fuses."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        # For each layer, those that produce its inputs; negative for inputs and constants.
        self.producers: list[list[int]] = []
        self.readers: list[list[int]] = [[] for _ in layers]  # for each layer, those that read its output
        for index, layer in enumerate(layers):
            self.producers.append([self._skip_views(parent) for parent in layer.parents])
            if layer.kind != "view":
                for producer in {producer for producer in self.producers[-1] if producer >= 0}:
                    self.readers[producer].append(index)

    def _skip_views(self, parent: int) -> int:
        while parent >= 0 and self.layers[parent].kind == "view" and self.layers[parent].parents:
            parent = self.layers[parent].parents[0]
        return parent

    def fused_kernels(self) -> Iterator[FusedKernel | FusedDropout]:
        """Yield all kernels of several layers."""
        for index, layer in enumerate(self.layers):
            kind = KINDS.get(layer.kind)
            is_softmax = kind is not None and (kind.group, kind.fusion) == ("activation", "reduction")
            if is_softmax:
                yield from self._masked_softmax(index)
            elif layer.kind in ("dropout", *ACTIVATIONS) and len(self.readers[index]) == 1:
                yield from self._dropout_or_gate(index, self.readers[index][0])
            elif layer.kind == "mul" and layer.weights:
                yield from self._rms_norm(index)
            elif layer.kind == "add" and len(layer.parents) == 2:
                yield from self._rotary_positions(index)
            elif layer.kind == "reduce":
                yield from self._expert_sum(index)

    def _masked_softmax(self, softmax: int) -> Iterator[FusedKernel]:
        """Yield the kernel of scale, mask and softmax of attention scores; masked scores are not counted separately."""
        between = tuple(self._layers_before_softmax(softmax))
        if between:
            scaled_scores = (between[0],)
            forward = FusedTraffic(read=scaled_scores, written=(softmax,))
            yield FusedKernel((*between, softmax), softmax, forward, FusedTraffic((softmax, softmax), (softmax,)))

    def _layers_before_softmax(self, softmax: int) -> Iterator[int]:
        """Yield the layers between the product that computes the scores and their softmax, the last one first."""
        index = softmax
        while self.producers[index] and self.producers[index][0] >= 0:
            index = self.producers[index][0]
            layer = self.layers[index]
            is_only_read_once = len(self.readers[index]) == 1
            has_score_shape = layer.outputs == self.layers[softmax].inputs
            if layer.kind not in _SCORE_KINDS or not is_only_read_once or not has_score_shape:
                return
            yield index

    def _dropout_or_gate(self, index: int, reader: int) -> Iterator[FusedKernel | FusedDropout]:
        """Yield the kernel of a dropout and an addition, or of an activation and the product of a gated activation."""
        inputs = self.layers[reader].inputs
        if len(inputs) != 2 or inputs[0] != inputs[1]:
            return
        is_dropout = self.layers[index].kind == "dropout"
        reader_kind = self.layers[reader].kind
        if is_dropout and reader_kind == "add":
            yield FusedDropout(index, reader)
        elif not is_dropout and reader_kind == "mul":
            forward = FusedTraffic(read=(reader,) * 2, written=(reader,))
            backward = FusedTraffic(read=(reader,) * 3, written=(reader,) * 2)
            yield FusedKernel((index, reader), reader, forward, backward)

    def _rms_norm(self, index: int) -> Iterator[FusedKernel]:
        """Yield the kernel of an RMS norm that ends with a multiplication by its weight."""
        norm = self._find_chain(index, ("mul", "rsqrt", "add", "reduce", "pow"), input_of_second=1)
        if norm:
            backward = FusedTraffic(read=(index, index), written=(index,))
            yield FusedKernel((*norm, index), index, FusedTraffic((index,), (index,)), backward)

    def _rotary_positions(self, index: int) -> Iterator[FusedKernel]:
        """Yield the kernel of rotary positions (Su et al. 2021): ``x cos + rotate_half(x) sin``, ending with
        `index`."""
        direct, rotated = self.producers[index]
        if direct < 0 or rotated < 0:
            return
        chain = self._find_chain(rotated, ("concat", "neg", "slice"))
        if not chain or self.layers[direct].kind != "mul" or self.layers[rotated].kind != "mul":
            return
        halves = [
            producer for producer in self.producers[chain[0]] if producer >= 0 and self.layers[producer].kind == "slice"
        ]
        traffic = FusedTraffic((index,), (index,))
        yield FusedKernel((direct, rotated, *chain, *halves, index), index, traffic, traffic)

    def _expert_sum(self, index: int) -> Iterator[FusedKernel]:
        """Yield the kernel of the weighted sum over the experts of a token, ending with the reduction `index`."""
        chain = self._find_chain(index, ("gather", "mul"))
        if chain:
            gathered = chain[0]
            forward = FusedTraffic(read=(gathered,), written=(index,))
            backward = FusedTraffic(read=(index, gathered), written=(gathered,))
            yield FusedKernel((*chain, index), index, forward, backward)

    def _find_chain(self, index: int, kinds: Sequence[str], input_of_second: int = 0) -> tuple[int, ...]:
        """Return the chain of producers behind a layer's first input if their kinds match, else an empty tuple.

        The layer at the index is not part of the chain, whose kinds are given from the last to the first.
        `input_of_second` is the input of the first producer that leads to the second one; all other steps follow the
        first input.
        """
        chain: list[int] = []
        for number, kind in enumerate(kinds):
            producers = self.producers[chain[-1] if chain else index]
            position = input_of_second if number == 1 else 0
            if len(producers) <= position:
                return ()
            producer = producers[position]
            if producer < 0 or self.layers[producer].kind != kind:
                return ()
            chain.append(producer)
        return tuple(chain)
