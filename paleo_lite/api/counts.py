"""`layers`, `rule` and `trace`: networks counted and traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, overload

from msgspec import structs

from ..architectures import CountsBeside, LayerCounts, Network, count_network
from ..architectures.network import Tokens
from ..counting import find_convention
from ..counting.kinds import OwnRule, add_rule
from ..counting.kinds.products import half_causal
from ..counting.work import MIXED, check_execution
from ..errors import BadValue, UnknownName
from .prediction import resolve

if TYPE_CHECKING:
    from torch import nn
    from typing_extensions import Unpack

CAUSAL = ("full", "half")
"""Whether attention that is called as causal counts all scores, or half of them."""

_HALF = (
    "causal attention counts by half in {} layer{}; where a mask is a tensor, or attention is not one kernel, in full"
)


class Counting(TypedDict, total=False):
    """What `layers` may be told; see there."""

    convention: str
    phase: str
    batch_size: int
    image_size: int | None
    sequence_length: int | None
    inputs: Sequence[str | Sequence[int]]
    ignore: Sequence[str]
    execution: str
    causal: str


@overload
def layers(network: str | Network | nn.Module, **question: Unpack[Counting]) -> LayerCounts: ...
@overload
def layers(network: Sequence[str | Network | nn.Module], **question: Unpack[Counting]) -> CountsBeside: ...


def layers(network: Any, **question: Unpack[Counting]) -> LayerCounts | CountsBeside:
    """Count a network layer by layer, or several beside each other.

    Parameters
    ----------
    network, image_size, sequence_length, inputs
        As for `predict`; or a list of networks.
    convention : str
        ``flops``, ``macs``, ``pthflops``, ``lu2017`` or ``paleo``.
    phase : str
        ``inference``, ``forward``, ``backward``, ``training``, or one pass of it.
    batch_size : int
    ignore : sequence of str
        Names of layers to leave out, or globs.
    execution : {"eager", "autocast", "channels-last", "megatron", "compiled", "folded"}
        What is cast or fused; folding changes FLOPs.
    causal : {"full", "half"}
        Whether causal attention counts in full, or by half: about what its mask leaves.

    Returns
    -------
    LayerCounts
        Of one network; of a list `CountsBeside`. Both have ``rows()``, ``to_dict()``, ``to_frame()``.

    Raises
    ------
    PaleoError
        One of its classes.
    """
    if isinstance(network, (list, tuple)) and not isinstance(network, Network):
        if not network:
            raise BadValue("name one network at least")
        return CountsBeside(tuple(_count(counted, **question) for counted in network))
    return _count(network, **question)


def _count(
    network: str | Network | nn.Module,
    convention: str = "flops",
    execution: str = "eager",
    phase: str = "inference",
    image_size: int | None = None,
    sequence_length: int | None = None,
    inputs: Sequence[str | Sequence[int]] = (),
    causal: str = "full",
    **counting: Any,
) -> LayerCounts:
    """The counts of one network."""
    find_convention(convention)
    check_execution(execution, phase)
    if causal not in CAUSAL:
        raise UnknownName("way to count causal attention", causal, CAUSAL)
    resolved = resolve(network, image_size, inputs, Tokens(sequence_length))
    if causal == "half":
        halved, number = half_causal(resolved.layers)
        resolved = resolved._replace(
            layers=tuple(halved), notes=(*resolved.notes, _HALF.format(number, "" if number == 1 else "s"))
        )
    if execution in MIXED:
        from ..counting.autocast import autocast

        resolved = resolved._replace(layers=autocast(resolved.layers))
    counts = count_network(resolved, convention, phase=phase, **counting)
    if execution == "eager":
        return counts
    from ..counting.fusion import fuse

    return structs.replace(counts, work=fuse(resolved.layers, counts.work, execution))


@overload
def rule(operation: str | type, function: OwnRule, *, macs: bool = False) -> OwnRule: ...
@overload
def rule(operation: str | type, *, macs: bool = False) -> Callable[[OwnRule], OwnRule]: ...


def rule(operation: str | type, function: OwnRule | None = None, *, macs: bool = False) -> Any:
    """Count an operation, or a class of modules, by a rule of your own.

    Parameters
    ----------
    operation : str or class
        An operation as notes name it (``"aten.erfinv"``, ``"my_library.my_operation"``), a kind of docs/counting.md
        (``"softmax"``), whose rule it replaces; or a class of modules: each that is of this very class counts as one
        layer, whatever is inside.
    function : callable, optional
        From a `Layer`, with the shapes of one sample (``inputs``, ``outputs``, ``weights``), to the FLOPs of its
        forward pass: then each gradient that is wanted takes as much. Or to three numbers: forward pass, data
        gradient, weight gradient. Without it `rule` is a decorator.
    macs : bool
        The function gives multiply-accumulates, 2 FLOPs each, which tensor cores can do.

    Notes
    -----
    Bytes are those of one kernel that reads operands and weights once and writes its result. Answers name what a rule
    of yours has counted. A later rule takes the place of an earlier one.

    Examples
    --------
    >>> import paleo_lite as pl
    >>> from math import prod
    >>> @pl.rule("aten.erfinv")  # doctest: +SKIP
    ... def erfinv(layer):
    ...     return 20 * prod(layer.outputs[0])
    """
    if function is None:
        return lambda function: rule(operation, function, macs=macs)
    if not callable(function):
        raise BadValue(f"a rule is a function from a layer to a number, not {function!r}")
    add_rule(operation, function, macs)
    return function


def trace(module: nn.Module, *inputs: Any, **named_inputs: Any) -> Network:
    """Trace a module on the meta device; see `paleo_lite.architectures.trace.trace`.

    Raises
    ------
    MissingExtra
        If torch is not installed.
    TraceFailed
        If the module's forward fails or needs the value of a tensor.
    """
    from ..architectures.torch_import import import_torch

    import_torch()
    from ..architectures.trace import trace as trace_module

    return trace_module(module, *inputs, **named_inputs)
