"""Operations of transformers, layer by layer, as an eager framework runs them.

`Tape` adds to a network the layers that tracing the module of the same name in Hugging Face's ``transformers`` 5 gives.
In the phases ``prefill`` and ``decode`` keys and values are written to a KV cache, and attention reads them from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

from ..counting import CONSTANT, Layer, Shape
from ..counting.layer import NOWHERE, WIDE, Matrix, Place, Role
from .builder import Blob, Builder
from .network import SequenceLengths, SequenceOptions

DEFAULT_OPTIONS = SequenceOptions()

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_new",
    "gelu_python": "gelu",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
    "gelu_new": "gelu_new",
    "xielu": "xielu",
}
"""Activation functions of configs and their layer kinds; ``gelu_new`` and ``xielu`` run as several operations."""


_MODULE_ORIGINS = {"layer_norm": "module:LayerNorm", "embedding": "module:Embedding", "linear": "module:Linear"}


def _join(name: str, operation: str) -> str:
    """Return the name of an operation inside a module; the outermost module has no name."""
    return f"{name}.{operation}" if name else operation


class Tape(Builder):
    """Layers of a transformer in the order in which they run, on one device."""

    def __init__(
        self,
        where: str,  # path of the file, for error messages
        lengths: SequenceLengths,  # query and key tokens of a pass
        # Whether attention is one fused kernel; otherwise it is a matrix product, a softmax and a matrix product.
        fused: bool = True,
        options: SequenceOptions = DEFAULT_OPTIONS,  # degrees of tensor, sequence, context and expert parallelism
    ) -> None:
        super().__init__(where)
        self.lengths = lengths
        self.fused = fused
        self.ranks = options.tensor_parallel
        self.options = options
        self.is_sequence_parallel = options.sequence_parallel and self.ranks > 1

    def shard_size(self, size: int) -> int:
        """Return the number of columns, heads or rows per tensor-parallel rank, rounded up."""
        return -(-size // self.ranks)

    @property
    def tokens(self) -> int:
        """Tokens of a sequence per device outside the tensor-parallel regions."""
        if self.is_sequence_parallel:
            return self.lengths.queries // self.ranks
        return self.lengths.queries

    def column_parallel_input(self, name: str, blob: Blob) -> Blob:
        """Return the input of a column-parallel linear layer.

        Forward it is the identity, backward an all-reduce of the gradients (Shoeybi et al. 2019). With sequence
        parallelism it is an all-gather forward and a reduce-scatter backward (Korthikanti et al. 2022).
        """
        if self.ranks == 1:
            return blob
        if self.is_sequence_parallel:
            return self._exchange(name, "gather", blob, (1, self.lengths.queries, *blob.shape[2:]))
        return self._exchange(name, "copy", blob, blob.shape)

    def row_parallel_output(self, name: str, blob: Blob) -> Blob:
        """Reduce the output of a row-parallel linear layer.

        It is an all-reduce, or a reduce-scatter with sequence parallelism.
        """
        if self.ranks == 1:
            return blob
        function = "scatter" if self.is_sequence_parallel else "sum"
        return self._exchange(name, function, blob, (1, self.tokens, *blob.shape[2:]))

    def all_to_all(self, name: str, blob: Blob) -> Blob:
        """Dispatch tokens to the devices that hold their experts, or combine the results (Lepikhin et al. 2021).

        Each device receives as many rows as it sends: the rows of the device with the most of them.
        """
        if self.options.expert_parallel == 1:
            return blob
        return self._exchange(name, "all_to_all", blob, blob.shape)

    def gather_expert_rows(self, name: str, blob: Blob) -> Blob:
        """Gather the rows of all devices that divide the matrices of the same experts."""
        devices = self.options.expert_tensor_parallel
        if devices == 1:
            return blob
        return self._exchange(name, "expert_gather", blob, (blob.shape[0] * devices, *blob.shape[1:]))

    def scatter_expert_rows(self, name: str, blob: Blob) -> Blob:
        """Sum the results of devices that divide the matrices of the same experts; each keeps its rows."""
        devices = self.options.expert_tensor_parallel
        if devices == 1:
            return blob
        return self._exchange(name, "expert_scatter", blob, (blob.shape[0] // devices, *blob.shape[1:]))

    def _exchange(self, name: str, function: str, blob: Blob, out: Shape) -> Blob:
        return self.op(f"{name}.{function}", "exchange", blob, out=out, function=function, ranks=self.ranks)

    def op(
        self,
        # Name and kind of the layer.
        name: str,
        kind: str,
        *inputs: Blob,  # operands
        out: Shape | None = None,  # shape of the result; the shape of the first operand by default
        weights: tuple[Shape, ...] = (),  # shapes of the parameters
        # How PyTorch code calls the operation: ``operator``, ``function``, ``method`` or ``module:NAME``.
        origin: str = "operator",
        # Number of parameters not already counted with an earlier layer; all of them by default.
        new_parameters: int | None = None,
        matrix: Matrix = "",  # what the layer's product gives its block, where its name does not say it
        **attributes: Any,  # attributes of the layer
    ) -> Blob:
        """Add one operation."""
        shape = inputs[0].shape if out is None else out
        result = self.add(name, kind, inputs, shape, weights, attributes, origin, new_parameters)
        if matrix:
            layer = self.layers[-1]
            self.layers[-1] = layer._replace(place=layer.place._replace(matrix=matrix))
        return result

    @contextmanager
    def block(self, name: str, number: int) -> Iterator[None]:
        """Add layers to a block."""
        self.place = Place(block=name, number=number)
        yield
        self.place = NOWHERE

    @contextmanager
    def role(self, role: Role, owner: str) -> Iterator[None]:
        """Add layers to a module of a role; the outermost one of a block is a part of it."""
        outer = self.place
        part = outer.part
        if not part and outer.is_in_block and role != "norm" and owner != outer.block:
            part = owner
        self.place = outer._replace(role=role, owner=owner, part=part)
        yield
        self.place = outer

    def _placed_layers(self) -> tuple[Layer, ...]:
        """Return the layers, of which each was given its place as it was added."""
        return tuple(self.layers)

    def module(self, name: str, kind: str, *inputs: Blob, **options: Any) -> Blob:
        """Add an operation that is a class of ``torch.nn``; `options` are those of `op`."""
        options.setdefault("origin", _MODULE_ORIGINS[kind])
        return self.op(name, kind, *inputs, **options)

    def split_tensor(
        self, name: str, blob: Blob, function: str, shapes: Sequence[Shape], origin: str = "function"
    ) -> list[Blob]:
        """Split a tensor into parts of the given shapes, or return several results of one call (``topk``)."""
        result = self.op(name, "slice", blob, out=shapes[0], origin=origin, function=function)
        self.layers[-1] = self.layers[-1]._replace(outputs=tuple(shapes))
        return [Blob(shape, result.parent) for shape in shapes]

    def view(
        self, name: str, blob: Blob, shape: Shape, function: str = "", kind: str = "view", **attributes: Any
    ) -> Blob:
        """Add a reshape, permute, flatten or slice, which moves no bytes; or a copy, where `kind` is ``copy``."""
        if function:
            attributes["function"] = function
        origin = "operator" if function == "getitem" else "method"
        return self.op(_join(name, function or "view"), kind, blob, out=shape, origin=origin, **attributes)

    def linear(self, name: str, blob: Blob, outputs: int, bias: bool = True, **options: Any) -> Blob:
        """Add ``torch.nn.Linear`` over the last dimension."""
        weights: tuple[Shape, ...] = ((outputs, blob.shape[-1]),)
        if bias:
            weights += ((outputs,),)
        return self.module(name, "linear", blob, out=(*blob.shape[:-1], outputs), weights=weights, **options)

    def embedding(self, name: str, indices: Blob, rows: int, size: int, **options: Any) -> Blob:
        """Add ``torch.nn.Embedding``: one row of a table of shape (rows, size) per index."""
        shape = (*indices.shape, size)
        with self.role("embedding", name):
            return self.module(name, "embedding", indices, out=shape, weights=((rows, size),), **options)

    def transposed_linear(self, name: str, blob: Blob, outputs: int, matrix: Matrix) -> Blob:
        """Add GPT-2's ``Conv1D``: a linear layer that stores its weight transposed."""
        rows, inner = prod(blob.shape[:-1]), blob.shape[-1]
        flat = self.view(name, blob, (rows, inner))
        product = self.op(
            name,
            "matmul",
            flat,
            out=(rows, outputs),
            weights=((inner, outputs), (outputs,)),
            origin="function",
            inner=inner,
            matrix=matrix,
            bias=True,
            function="addmm",
        )
        return self.view(name, product, (*blob.shape[:-1], outputs))

    def layer_norm(self, name: str, blob: Blob) -> Blob:
        """Add layer normalization over the last dimension, with scale and shift."""
        size = blob.shape[-1]
        return self.module(name, "layer_norm", blob, weights=((size,), (size,)))

    def rms_norm(self, name: str, blob: Blob, unit_offset: bool = False) -> Blob:
        """Add root-mean-square normalization as elementwise operations.

        With `unit_offset` the scale is one plus the weight (Gemma).
        """
        size = (blob.shape[-1],)
        squared = self.op(f"{name}.pow", "pow", blob, origin="method")
        mean = self.op(f"{name}.mean", "reduce", squared, out=(*blob.shape[:-1], 1), origin="method", function="mean")
        stabilized = self.op(f"{name}.add", "add", mean)
        inverse_root = self.op(f"{name}.rsqrt", "rsqrt", stabilized, origin="function")
        normalized = self.op(f"{name}.mul", "mul", blob, inverse_root)
        if unit_offset:
            scale = self.op(name, "add", out=size, weights=(size,))
            return self.op(f"{name}.mul", "mul", normalized, scale)
        return self.op(name, "mul", normalized, weights=(size,))

    def dropout(self, name: str, blob: Blob, probability: float, origin: str = "module:Dropout") -> Blob:
        """Add dropout, which costs nothing at inference or with a probability of 0."""
        attributes: dict[str, Any] = {} if probability else {"p": 0}
        return self.op(name, "dropout", blob, origin=origin, **attributes)

    def softmax(self, name: str, scores: Blob, *, is_wide: bool = False) -> Blob:
        """Add ``torch.nn.functional.softmax``; a wide one is computed in fp32, and its result converted back."""
        attributes: dict[str, Any] = {WIDE: True} if is_wide else {}
        return self.op(f"{name}.softmax", "softmax", scores, origin="function", **attributes)

    def activation(self, name: str, blob: Blob, function: str) -> Blob:
        """Add an activation function of `ACTIVATIONS`."""
        kind = ACTIVATIONS[function]
        if kind == "relu2":
            positive = self.op(f"{name}.relu", "relu", blob, origin="function")
            return self.op(f"{name}.pow", "pow", positive, origin="function")
        if kind == "quick_gelu":
            scaled = self.op(f"{name}.mul", "mul", blob)
            sigmoid = self.op(f"{name}.sigmoid", "sigmoid", scaled, origin="function")
            return self.op(f"{name}.mul", "mul", blob, sigmoid)
        if kind == "xielu":
            return self._xielu(name, blob)
        if kind != "gelu_new":
            origin = "module:ReLU" if kind == "relu" else "function"
            return self.op(name, kind, blob, origin=origin)
        half = self.op(f"{name}.mul", "mul", blob)
        cube = self.op(f"{name}.pow", "pow", blob, origin="function")
        scaled_cube = self.op(f"{name}.mul", "mul", cube)
        total = self.op(f"{name}.add", "add", blob, scaled_cube)
        argument = self.op(f"{name}.mul", "mul", total)
        tanh = self.op(f"{name}.tanh", "tanh", argument, origin="function")
        one_plus_tanh = self.op(f"{name}.add", "add", tanh)
        return self.op(f"{name}.mul", "mul", half, one_plus_tanh)

    def _xielu(self, name: str, blob: Blob) -> Blob:
        """Add xIELU, a square for positive values and an exponential for negative ones (Huang and Schlag 2024)."""
        square = self.op(f"{name}.mul", "mul", self.op(f"{name}.mul", "mul", blob, weights=((1,),)), blob)
        scaled = self.op(f"{name}.mul", "mul", blob)
        positive = self.op(f"{name}.add", "add", square, scaled)
        limited = self.op(f"{name}.min", "clamp", blob, origin="function")
        exponential = self.op(f"{name}.expm1", "exp", limited, origin="function")
        difference = self.op(f"{name}.sub", "sub", exponential, blob)
        weighted = self.op(f"{name}.mul", "mul", difference, weights=((1,),))
        negative = self.op(f"{name}.add", "add", weighted, self.op(f"{name}.mul", "mul", blob))
        is_positive = self._compare(name, "gt", blob, blob, blob.shape)
        return self.op(f"{name}.where", "where", is_positive, positive, negative, origin="function")

    def apply_rotary_embedding(
        self,
        name: str,  # name of the module
        blobs: Sequence[Blob],  # tensors of shape (1, heads, tokens, size)
        tables: tuple[Blob, Blob],  # cosines and sines of `rotary_tables`, of shape (1, tokens, size)
    ) -> list[Blob]:
        """Apply rotary position embeddings to queries and keys (Su et al. 2021)."""
        cos, sin = (self.view(name, table, (1, 1, *table.shape[1:]), "unsqueeze") for table in tables)
        results = []
        for blob in blobs:
            half_shape = (*blob.shape[:-1], blob.shape[-1] // 2)
            direct = self.op(f"{name}.mul", "mul", blob, cos)
            first = self.view(name, blob, half_shape, "getitem", "slice")
            second = self.view(name, blob, half_shape, "getitem", "slice")
            negated = self.op(f"{name}.neg", "neg", second)
            half_rotated = self.op(f"{name}.concat", "concat", negated, first, out=blob.shape, origin="function")
            crossed = self.op(f"{name}.mul", "mul", half_rotated, sin)
            results.append(self.op(f"{name}.add", "add", direct, crossed))
        return results

    def rotary_tables(self, name: str, positions: Blob, size: int) -> tuple[Blob, Blob]:
        """Add the cosines and sines of rotary embeddings, of shape (1, tokens, size), shared by all blocks."""
        tokens = self.lengths.queries
        column = self.view(name, positions, (1, tokens, 1), "getitem", "slice")
        column = self.view(name, column, column.shape, "float", "copy")
        frequencies = Blob((size // 2,), CONSTANT)
        angles = self.op(f"{name}.mul", "mul", column, frequencies, out=(1, tokens, size // 2))
        angles = self.op(f"{name}.concat", "concat", angles, angles, out=(1, tokens, size), origin="function")
        tables = []
        for function in ("cos", "sin"):
            table = self.op(f"{name}.{function}", function, angles, origin="method")
            tables.append(self.op(f"{name}.mul", "mul", table))
        return tables[0], tables[1]

    def position_ids(self, name: str) -> Blob:
        """Add the position of every token, of shape (1, tokens)."""
        tokens = self.lengths.queries
        return self.view(name, self._shifted_arange(name, tokens), (1, tokens), "unsqueeze")

    def attention_mask(
        self,
        name: str,  # name of the module
        positions: Blob | None,  # position ids, which are first checked for packed sequences
        window: int | None = None,  # tokens of the sliding window
        fused: bool | None = None,  # whether attention is one kernel; as the whole network by default
    ) -> Blob | None:
        """Add the attention mask; return None where attention is plainly causal and needs none.

        Fused attention needs a mask only for a sliding window shorter than the sequence. Attention of several kernels
        needs one outside the decode and prefill phases.
        """
        tokens = self.lengths.queries
        fused = self.fused if fused is None else fused
        if positions is not None:
            self._check_packed(name, positions)
        is_windowed = window is not None and self.lengths.keys > window
        if self.lengths.uses_cache or (fused and not is_windowed):
            return None
        shape = (1, 1, tokens, tokens)
        sample_indices = self._arange(name, 1, scales=True)
        head_indices = self._arange(name, 1)
        query_indices = self._shifted_arange(name, tokens)
        key_indices = self._shifted_arange(name, tokens)
        self.view(name, sample_indices, (1, 1, 1, 1), "getitem", "slice")
        self.view(name, head_indices, (1, 1, 1, 1), "getitem", "slice")
        row = self.view(name, query_indices, (1, 1, tokens, 1), "getitem", "slice")
        column = self.view(name, key_indices, (1, 1, 1, tokens), "getitem", "slice")
        in_window = None
        if is_windowed:
            ones = self.op(_join(name, "new_ones"), "fill", row, out=(), origin="method", function="new_ones")
            earliest = self.op(_join(name, "sub"), "sub", row)
            is_near = self._compare(name, "gt", column, earliest, shape)
            in_window = self._logical_and(name, ones, is_near, shape)
        allowed = self._compare(name, "le", column, row, shape)
        if in_window is not None:
            allowed = self._logical_and(name, in_window, allowed, shape)
        mask = self.view(name, allowed, shape, "expand")
        if fused:
            return mask
        zero = self.op(_join(name, "zeros"), "fill", out=(), origin="function", function="zeros")
        return self.op(_join(name, "where"), "where", mask, zero, origin="function", scales=True)

    def _check_packed(self, name: str, positions: Blob) -> None:
        """Add the operations that detect packed sequences: positions that do not rise by one."""
        first = self.view(name, positions, (1, 1), "getitem", "slice", scales=True)
        self.op(_join(name, "sub"), "sub", first)
        constant = Blob(positions.shape, CONSTANT)
        differs = self.op(
            _join(name, "ne"), "compare", constant, origin="method", no_gradient=True, function="ne", scales=True
        )
        running_sum = self.op(_join(name, "cumsum"), "scan", differs, origin="method", function="cumsum")
        last = self.op(_join(name, "getitem"), "slice", running_sum, out=(1,), function="getitem")
        is_zero = self.op(_join(name, "eq"), "compare", last, no_gradient=True, function="eq")
        self.op(_join(name, "all"), "reduce", is_zero, out=(), origin="method", function="all", scales=False)

    def _arange(self, name: str, size: int, **attributes: Any) -> Blob:
        return self.op(_join(name, "arange"), "fill", out=(size,), origin="function", function="arange", **attributes)

    def _shifted_arange(self, name: str, size: int) -> Blob:
        indices = self._arange(name, size)
        return self.op(_join(name, "add"), "add", indices)

    def _compare(self, name: str, function: str, left: Blob, right: Blob, out: Shape) -> Blob:
        return self.op(
            _join(name, function),
            "compare",
            left,
            right,
            out=out,
            origin="method",
            no_gradient=True,
            function=function,
        )

    def _logical_and(self, name: str, left: Blob, right: Blob, out: Shape) -> Blob:
        return self.op(
            _join(name, "logical_and"), "logical", left, right, out=out, no_gradient=True, function="logical_and"
        )

    def split_heads(self, name: str, blob: Blob, heads: int) -> Blob:
        """Reshape (1, tokens, heads * size) to (1, heads, tokens, size)."""
        _, tokens, width = blob.shape
        size = width // heads
        separate = self.view(name, blob, (1, tokens, heads, size))
        return self.view(name, separate, (1, heads, tokens, size), "transpose")

    def append_to_cache(self, name: str, key: Blob, value: Blob, window: int | None = None) -> tuple[Blob, Blob]:
        """Append keys and values to the KV cache and return those of all tokens so far."""
        cached_tokens = self.lengths.keys
        if window:
            cached_tokens = min(cached_tokens, window)
        # Attention over a prompt longer than the window reads the keys as they are computed.
        cached_tokens = max(cached_tokens, key.shape[2])
        key_shape = (*key.shape[:2], cached_tokens, key.shape[3])
        value_shape = (*value.shape[:2], cached_tokens, value.shape[3])
        result = self.op(f"{name}.cache", "cache", key, value, out=key_shape, origin="method")
        self.layers[-1] = self.layers[-1]._replace(outputs=(key_shape, value_shape))
        return Blob(key_shape, result.parent), Blob(value_shape, result.parent)
