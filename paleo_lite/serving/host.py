"""Time of an engine's host per iteration, as it was fitted to servers."""

from __future__ import annotations

from msgspec import structs

from ..engines.blocks import sampled_logits
from ..engines.constants import Host
from ..engines.placed import CHECKED_CONTEXT, EngineKernels
from ..engines.records.record import Server

HOST_FACTOR = 2.5
"""Ends of the 90% interval of the time of a host per iteration, relative to the fitted time."""

NUCLEUS = "nucleus"
GREEDY = "greedy"
SAMPLINGS = (NUCLEUS, GREEDY)
"""How clients let a server choose tokens: by top-p or top-k, as most networks' own settings do, or the most likely."""


def with_host(server: Server, host: Host, logits: float, sampling: str = NUCLEUS) -> Server:
    """Return an engine with the time of its host as it was fitted to servers, for a vocabulary of some logits."""
    logit_s = host.logit_s + (host.nucleus_logit_s if sampling == NUCLEUS else 0.0)
    return structs.replace(
        server,
        overhead_s=host.iteration_s,
        overhead_range_s=(host.iteration_s / HOST_FACTOR, host.iteration_s * HOST_FACTOR),
        sequence_overhead_s=logit_s * logits,
        request_overhead_s=host.request_s,
        request_token_s=host.request_token_s,
        request_iterations=host.request_iterations,
    )


def has_fitted_host(server: Server, kernels: EngineKernels | None) -> bool:
    """Return whether an engine's host was fitted to servers: not where layers are timed, nor of older versions."""
    return kernels is not None and kernels.step.engine == server.name


def with_fitted_host(server: Server, kernels: EngineKernels | None, sampling: str = NUCLEUS) -> Server:
    """Return an engine with the time of its host that was fitted to servers; older versions keep hosts of their own.

    Parameters
    ----------
    server : Server
        The engine's server.
    kernels : EngineKernels or None
        Kernels of the network under the engine; None where layers are timed.
    sampling : str
        One of `SAMPLINGS`.
    """
    if kernels is None or not has_fitted_host(server, kernels):
        return server
    logits = sampled_logits(kernels.of_iteration("decode", CHECKED_CONTEXT))
    return with_host(server, kernels.step.host, logits, sampling)
