"""What transformers are made of, operation by operation, as an eager framework runs them: a `Tape` writes them down.

Each function adds the layers that tracing the module of Hugging Face's ``transformers`` 5 of that name gives. In the
phases `prefill` and `decode` keys and values go into a cache, and attention reads them from there. A `Config` is what
says how large all of it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..counting import CONSTANT, Shape
from ..errors import BadDescriptor
from .builder import Blob, Builder
from .network import Lengths, Tokens

TOKENS = Tokens()

ACTIVATIONS = {
    "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu", "tanh": "tanh",
    "gelu_new": "gelu_new",
}  # fmt: skip
"""Activation functions of configs, and the kind of layer that each is; ``gelu_new`` is written out in eight."""


_MODULES = {"layer_norm": "module:LayerNorm", "embedding": "module:Embedding", "linear": "module:Linear"}


def _within(name: str, what: str) -> str:
    """The name of an operation inside a module; the outermost has none."""
    return f"{name}.{what}" if name else what


class Tape(Builder):
    """Collects the layers of a transformer in the order in which they run.

    Parameters
    ----------
    where : str
        The file, for messages.
    fused : bool
        Whether attention is one kernel, or a product, a softmax and a product.
    tokens : Tokens
        How many devices share what; the layers are those of one.
    """

    def __init__(self, where: str, lengths: Lengths, fused: bool = True, tokens: Tokens = TOKENS) -> None:
        super().__init__(where)
        self.lengths, self.fused, self.ranks, self.split = lengths, fused, tokens.tensor, tokens
        self.sequence = tokens.sequence and self.ranks > 1

    def share(self, number: int) -> int:
        """What one device has of so many columns, heads or rows, rounded up."""
        return -(-number // self.ranks)

    @property
    def tokens(self) -> int:
        """Tokens of a sequence outside of the matrices, on one device."""
        return self.lengths.queries // (self.ranks if self.sequence else 1)

    def enter(self, name: str, blob: Blob) -> Blob:
        """What every device needs whole to multiply its columns by: nothing is sent, or shares are gathered.

        Backward the gradients are added up, and with a shared sequence each device keeps its share.
        """
        if self.ranks == 1:
            return blob
        out = (1, self.lengths.queries, *blob.shape[2:]) if self.sequence else blob.shape
        return self._exchange(name, "gather" if self.sequence else "copy", blob, out)

    def leave(self, name: str, blob: Blob) -> Blob:
        """The sum of what every device has from its rows; with a shared sequence each keeps its share of it."""
        if self.ranks == 1:
            return blob
        out = (1, self.tokens, *blob.shape[2:])
        return self._exchange(name, "scatter" if self.sequence else "sum", blob, out)

    def routed(self, name: str, blob: Blob) -> Blob:
        """Rows sent to the devices that hold their experts, or back: as many come as go where experts are balanced."""
        if self.split.experts == 1:
            return blob
        return self._exchange(name, "all_to_all", blob, blob.shape)

    def _exchange(self, name: str, function: str, blob: Blob, out: Shape) -> Blob:
        return self.op(f"{name}.{function}", "exchange", blob, out=out, function=function, ranks=self.ranks)

    def op(
        self, name: str, kind: str, *inputs: Blob, out: Shape | None = None, weights: tuple[Shape, ...] = (),
        origin: str = "operator", own: int | None = None, **attributes: Any,
    ) -> Blob:  # fmt: skip
        """One operation, whose result has the shape of its first operand unless `out` says otherwise.

        `own` is how many of its parameters no earlier layer has, where that is not all.
        """
        blob = self.add(name, kind, inputs, inputs[0].shape if out is None else out, weights, attributes)
        layer = self.layers[-1]
        parameters = layer.parameters if own is None else own
        self.layers[-1] = layer._replace(parameters=parameters, origin=origin)
        return blob

    def module(self, name: str, kind: str, *inputs: Blob, **rest: Any) -> Blob:
        """An operation that is a layer class of ``torch.nn``."""
        return self.op(name, kind, *inputs, **{"origin": _MODULES[kind], **rest})

    def parts(
        self, name: str, blob: Blob, function: str, shapes: Sequence[Shape], origin: str = "function"
    ) -> list[Blob]:
        """A tensor taken apart."""
        made = self.op(name, "slice", blob, out=shapes[0], origin=origin, function=function)
        self.layers[-1] = self.layers[-1]._replace(outputs=tuple(shapes))
        return [Blob(shape, made.parent) for shape in shapes]

    def view(
        self, name: str, blob: Blob, shape: Shape, function: str = "", kind: str = "view", **attributes: Any
    ) -> Blob:
        """The same numbers in another shape or order."""
        attributes |= {"function": function} if function else {}
        origin = "operator" if function == "getitem" else "method"
        return self.op(_within(name, function or "view"), kind, blob, out=shape, origin=origin, **attributes)

    def linear(self, name: str, blob: Blob, outputs: int, bias: bool = True, **rest: Any) -> Blob:
        """``torch.nn.Linear`` over the last dimension."""
        weights: tuple[Shape, ...] = ((outputs, blob.shape[-1]),) + (((outputs,),) if bias else ())
        return self.module(name, "linear", blob, out=(*blob.shape[:-1], outputs), weights=weights, **rest)

    def transposed_linear(self, name: str, blob: Blob, outputs: int) -> Blob:
        """GPT-2's ``Conv1D``: a linear layer with its weight the other way round."""
        rows, inner = prod(blob.shape[:-1]), blob.shape[-1]
        flat = self.view(name, blob, (rows, inner))
        made = self.op(
            name, "matmul", flat, out=(rows, outputs), weights=((inner, outputs), (outputs,)), origin="function",
            inner=inner, bias=True, function="addmm",
        )  # fmt: skip
        return self.view(name, made, (*blob.shape[:-1], outputs))

    def layer_norm(self, name: str, blob: Blob) -> Blob:
        """Layer norm over the last dimension, with scale and shift."""
        return self.module(name, "layer_norm", blob, weights=((blob.shape[-1],),) * 2)

    def rms_norm(self, name: str, blob: Blob, from_one: bool = False) -> Blob:
        """Root-mean-square norm as it is written out; ``from_one`` scales by one plus the weight (Gemma)."""
        rows, size = (*blob.shape[:-1], 1), (blob.shape[-1],)
        squared = self.op(f"{name}.pow", "pow", blob, origin="method")
        mean = self.op(f"{name}.mean", "reduce", squared, out=rows, origin="method", function="mean")
        root = self.op(f"{name}.rsqrt", "rsqrt", self.op(f"{name}.add", "add", mean), origin="function")
        scaled = self.op(f"{name}.mul", "mul", blob, root)
        if from_one:
            return self.op(f"{name}.mul", "mul", scaled, self.op(name, "add", out=size, weights=(size,)))
        return self.op(name, "mul", scaled, weights=(size,))

    def dropout(self, name: str, blob: Blob, share: float, origin: str = "module:Dropout") -> Blob:
        """Dropout, which costs nothing at inference."""
        attributes: dict[str, Any] = {} if share else {"p": 0}
        return self.op(name, "dropout", blob, origin=origin, **attributes)

    def softmax(self, name: str, scores: Blob) -> Blob:
        """``torch.nn.functional.softmax``."""
        return self.op(f"{name}.softmax", "softmax", scores, origin="function")

    def activation(self, name: str, blob: Blob, function: str) -> Blob:
        """An activation function of `ACTIVATIONS`."""
        kind = ACTIVATIONS[function]
        if kind != "gelu_new":
            return self.op(name, kind, blob, origin="module:ReLU" if kind == "relu" else "function")
        half = self.op(f"{name}.mul", "mul", blob)
        cube = self.op(f"{name}.mul", "mul", self.op(f"{name}.pow", "pow", blob, origin="function"))
        inner = self.op(f"{name}.mul", "mul", self.op(f"{name}.add", "add", blob, cube))
        outer = self.op(f"{name}.add", "add", self.op(f"{name}.tanh", "tanh", inner, origin="function"))
        return self.op(f"{name}.mul", "mul", half, outer)

    def rotated(self, name: str, blobs: Sequence[Blob], tables: tuple[Blob, Blob]) -> list[Blob]:
        """Rotary position embedding of queries and keys ``(1, heads, tokens, size)`` (Su et al. 2021)."""
        cos, sin = (self.view(name, table, (1, 1, *table.shape[1:]), "unsqueeze") for table in tables)
        made = []
        for blob in blobs:
            half = (*blob.shape[:-1], blob.shape[-1] // 2)
            direct = self.op(f"{name}.mul", "mul", blob, cos)
            first, second = (self.view(name, blob, half, "getitem", "slice") for _ in range(2))
            turned = self.op(f"{name}.neg", "neg", second)
            joined = self.op(f"{name}.concat", "concat", turned, first, out=blob.shape, origin="function")
            made.append(self.op(f"{name}.add", "add", direct, self.op(f"{name}.mul", "mul", joined, sin)))
        return made

    def rotary_tables(self, name: str, positions: Blob, size: int) -> tuple[Blob, Blob]:
        """Cosines and sines of every position, once for all layers."""
        tokens = self.lengths.queries
        column = self.view(name, positions, (1, tokens, 1), "getitem", "slice")
        column = self.view(name, column, column.shape, "float", "copy")
        frequencies = Blob((size // 2,), CONSTANT)
        angles = self.op(f"{name}.mul", "mul", column, frequencies, out=(1, tokens, size // 2))
        angles = self.op(f"{name}.concat", "concat", angles, angles, out=(1, tokens, size), origin="function")
        cos, sin = (
            self.op(f"{name}.mul", "mul", self.op(f"{name}.{function}", function, angles, origin="method"))
            for function in ("cos", "sin")
        )
        return cos, sin

    def positions(self, name: str) -> Blob:
        """The place of every token."""
        tokens = self.lengths.queries
        counted = self.op(_within(name, "arange"), "fill", out=(tokens,), origin="function", function="arange")
        return self.view(name, self.op(_within(name, "add"), "add", counted), (1, tokens), "unsqueeze")

    def mask(self, name: str, positions: Blob | None = None, window: int | None = None) -> Blob | None:
        """The mask of attention where it needs one; None where it is plainly causal.

        Fused attention needs none but for a window that is shorter than the sequence. Positions are checked for packed
        sequences first.
        """
        tokens = self.lengths.queries
        if positions is not None:
            self._check_packed(name, positions)
        windowed = window is not None and self.lengths.keys > window
        if self.lengths.cached or (self.fused and not windowed):
            return None
        sizes = (1, 1, tokens, tokens)
        ranges = [self._range(name, size, moved) for size, moved in ((1, 0), (1, 0), (tokens, 1), (tokens, 1))]
        samples = self.layers[ranges[0].parent]
        self.layers[ranges[0].parent] = samples._replace(attributes={**samples.attributes, "scales": True})
        for size, which in (((1, 1, 1, 1), 0), ((1, 1, 1, 1), 1)):
            self.view(name, ranges[which], size, "getitem", "slice")
        row = self.view(name, ranges[2], (1, 1, tokens, 1), "getitem", "slice")
        column = self.view(name, ranges[3], (1, 1, 1, tokens), "getitem", "slice")
        within = None
        if windowed:
            one = self.op(_within(name, "new_ones"), "fill", row, out=(), origin="method", function="new_ones")
            near = self._compare(name, "gt", column, self.op(_within(name, "sub"), "sub", row), sizes)
            within = self._logical(name, one, near, sizes)
        below = self._compare(name, "le", column, row, sizes)
        if within is not None:
            below = self._logical(name, within, below, sizes)
        mask = self.view(name, below, sizes, "expand")
        if self.fused:
            return mask
        zero = self.op(_within(name, "zeros"), "fill", out=(), origin="function", function="zeros")
        return self.op(_within(name, "where"), "where", mask, zero, origin="function", scales=True)

    def _check_packed(self, name: str, positions: Blob) -> None:
        first = self.view(name, positions, (1, 1), "getitem", "slice", scales=True)
        self.op(_within(name, "sub"), "sub", first)
        constant = Blob(positions.shape, CONSTANT)
        differs = self.op(
            _within(name, "ne"), "compare", constant, origin="method", no_gradient=True, function="ne", scales=True
        )
        counted = self.op(_within(name, "cumsum"), "scan", differs, origin="method", function="cumsum")
        one = self.op(_within(name, "getitem"), "slice", counted, out=(1,), function="getitem")
        one = self.op(_within(name, "eq"), "compare", one, no_gradient=True, function="eq")
        self.op(_within(name, "all"), "reduce", one, out=(), origin="method", function="all", scales=False)

    def _range(self, name: str, size: int, moved: int) -> Blob:
        counted = self.op(_within(name, "arange"), "fill", out=(size,), origin="function", function="arange")
        return self.op(_within(name, "add"), "add", counted) if moved else counted

    def _compare(self, name: str, how: str, left: Blob, right: Blob, out: Shape) -> Blob:
        return self.op(
            _within(name, how), "compare", left, right, out=out, origin="method", no_gradient=True, function=how
        )

    def _logical(self, name: str, left: Blob, right: Blob, out: Shape) -> Blob:
        how: dict[str, Any] = {"no_gradient": True, "function": "logical_and"}
        return self.op(_within(name, "logical_and"), "logical", left, right, out=out, **how)

    def heads(self, name: str, blob: Blob, heads: int) -> Blob:
        """``(1, tokens, heads * size)`` as ``(1, heads, tokens, size)``."""
        _, tokens, width = blob.shape
        apart = self.view(name, blob, (1, tokens, heads, width // heads))
        return self.view(name, apart, (1, heads, tokens, width // heads), "transpose")

    def attended(
        self, name: str, query: Blob, key: Blob, value: Blob, *, mask: Blob | None = None, causal: bool = True,
        window: int | None = None, dropout: float = 0.0, copied: str = "contiguous",
    ) -> Blob:  # fmt: skip
        """Attention of queries to keys and values, ``(1, heads, tokens, size)`` each, as ``(1, tokens, heads * size)``.

        `copied` says by which call heads come together again where attention is not fused.
        """
        if self.lengths.cached:
            key, value = self._cached(name, key, value, window)
        together = query.shape[1] // key.shape[1]
        if together > 1 and (mask is not None or not self.fused):
            key, value = self._repeated(name, key, together), self._repeated(name, value, together)
        attributes: dict[str, Any] = {"window": window} if window is not None and window < self.lengths.keys else {}
        _, heads, tokens, size = out = (*query.shape[:-1], value.shape[-1])
        if self.fused:
            if causal and mask is None and tokens > 1:
                attributes = {"causal": True} | attributes
            if self.split.ring > 1:
                attributes["ring"] = self.split.ring
            operands = [query, key, value] + ([mask] if mask is not None else [])
            made = self.op(f"{name}.attention", "attention", *operands, out=out, origin="function", **attributes)
            made = self.view(name, made, out, "reshape")
        else:
            made = self._unfused(name, query, key, value, mask, dropout)
        made = self.view(name, made, (1, tokens, heads, size), "transpose")
        if self.fused or copied == "contiguous":
            made = self.view(name, made, made.shape, "contiguous", "copy")
            return self.view(name, made, (1, tokens, heads * size), "reshape")
        return self.view(name, made, (1, tokens, heads * size), "reshape", "copy")

    def _unfused(self, name: str, query: Blob, key: Blob, value: Blob, mask: Blob | None, dropout: float) -> Blob:
        *before, keys, size = key.shape
        turned = self.view(name, key, (*before, size, keys), "transpose")
        shape = (*query.shape[:-1], keys)
        scores = self.op(f"{name}.matmul", "matmul", query, turned, out=shape, origin="function", inner=size)
        scores = self.op(f"{name}.mul", "mul", scores)
        if mask is not None:
            scores = self.op(f"{name}.add", "add", scores, mask)
        weights = self.dropout(f"{name}.dropout", self.softmax(name, scores), dropout, "function")
        out = (*query.shape[:-1], value.shape[-1])
        return self.op(f"{name}.matmul", "matmul", weights, value, out=out, origin="function", inner=keys)

    def _repeated(self, name: str, blob: Blob, times: int) -> Blob:
        _, heads, tokens, size = blob.shape
        wide = self.view(name, blob, (1, heads, 1, tokens, size), "getitem", "slice")
        wide = self.view(name, wide, (1, heads, times, tokens, size), "expand")
        return self.view(name, wide, (1, heads * times, tokens, size), "reshape", "copy")

    def _cached(self, name: str, key: Blob, value: Blob, window: int | None) -> tuple[Blob, Blob]:
        """Keys and values of all tokens so far, the new ones written beside those that are there."""
        kept = min(self.lengths.keys, window or self.lengths.keys)
        kept = max(kept, key.shape[2])  # a prompt beyond the window is attended to as it is computed
        shapes = [(*blob.shape[:2], kept, blob.shape[3]) for blob in (key, value)]
        made = self.op(f"{name}.cache", "cache", key, value, out=shapes[0], origin="method")
        self.layers[-1] = self.layers[-1]._replace(outputs=tuple(shapes))
        return Blob(shapes[0], made.parent), Blob(shapes[1], made.parent)


class Config:
    """A config as the architectures read it: every key checked, every message naming file and key."""

    def __init__(self, fields: dict[str, Any], where: str) -> None:
        self.fields, self.where = fields, where

    def fail(self, problem: str) -> BadDescriptor:
        """The error of a config that cannot be read."""
        return BadDescriptor(f"{self.where}: {problem}")

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number of 1 or more."""
        value = self.fields.get(key)
        if value is None:
            if default is None:
                raise self.fail(f"$.{key} is missing: a config of {self.fields['model_type']} needs it")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**31:
            raise self.fail(f"$.{key} must be a whole number of 1 or more, not {value!r}")
        return value

    def maybe(self, key: str) -> int | None:
        """A whole number of 1 or more, or None where the config has none."""
        return None if self.fields.get(key) is None else self.whole(key)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.fields.get(key, default)
        if not isinstance(value, bool):
            raise self.fail(f"$.{key} must be true or false, not {value!r}")
        return value

    def share(self, key: str, default: float) -> float:
        """A number from 0 to 1."""
        value = self.fields.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise self.fail(f"$.{key} must be a number from 0 to 1, not {value!r}")
        return float(value)

    def function(self, key: str, default: str) -> str:
        """An activation function."""
        value = self.fields.get(key, default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise self.fail(f"$.{key} is {value!r}, known are {', '.join(ACTIVATIONS)}")
        return str(value)

    def divided(self, key: str, whole: int, of: str) -> int:
        """A number of heads that divides a size: the size of each."""
        heads = self.whole(key)
        if whole % heads:
            raise self.fail(f"$.{key} is {heads}, which does not divide $.{of}, {whole}")
        return whole // heads
