"""Experts of attention: the query and the output projection of the experts that a token passes (JetMoE)."""

from __future__ import annotations

from typing import NamedTuple

from ..builder import Blob
from ..tape import Tape
from .block_records import Experts, HeadExperts
from .feed_forward import add_grouped_product, add_router


class Routes(NamedTuple):
    """The chosen experts of every token, and their weights; a row for each token and expert."""

    weights: Blob
    rows: int


def add_expert_queries(
    tape: Tape,
    name: str,  # name of the attention module
    experts: HeadExperts,
    x: Blob,  # input, ``(1, tokens, hidden_size)``
    width: int,  # width of all queries of a token
) -> tuple[Blob, Routes]:
    """Add the router and the query projections of the chosen experts.

    Return the queries, ``(1, tokens, width)``, and the way back.
    """
    module = f"{name}.{experts.module}"
    tokens, hidden_size = x.shape[1:]
    rows, active = tokens * experts.active, experts.active
    flat = tape.view(module, x, (tokens, hidden_size), "reshape")
    router = Experts(
        count=experts.count, active=active, inner_size=width // active, scoring="softmax_of_chosen", is_normalised=False
    )
    weights, _ = add_router(tape, f"{module}.{experts.router}", router, flat)
    weights = tape.view(module, weights, (rows,), "flatten")
    weights = tape.op(f"{module}.getitem", "gather", weights, function="getitem")
    gathered = tape.op(f"{module}.getitem", "gather", flat, out=(rows, hidden_size), function="getitem")
    query = add_grouped_product(tape, f"{module}.{experts.input}", active, gathered, experts.count, width // active)
    query = tape.op(f"{module}.getitem", "gather", query, function="getitem")
    return tape.view(module, query, (1, tokens, width)), Routes(weights, rows)


def add_expert_outputs(tape: Tape, name: str, experts: HeadExperts, x: Blob, routes: Routes, hidden_size: int) -> Blob:
    """Add the output projections of the chosen experts, the sum of their results by weight, and a bias."""
    module = f"{name}.{experts.module}"
    tokens, width = x.shape[1:]
    rows = tape.view(module, x, (routes.rows, width // experts.active), "reshape")
    rows = tape.op(f"{module}.getitem", "gather", rows, function="getitem")
    output = add_grouped_product(tape, f"{module}.{experts.output}", experts.active, rows, experts.count, hidden_size)
    factors = tape.view(module, routes.weights, (routes.rows, 1), "unsqueeze")
    output = tape.op(f"{module}.mul", "mul", output, factors)
    output = tape.view(module, output, (tokens, experts.active, hidden_size))
    output = tape.op(f"{module}.sum", "reduce", output, out=(tokens, hidden_size), origin="method", function="sum")
    output = tape.view(module, output, (1, tokens, hidden_size))
    return tape.op(module, "add", output, weights=((hidden_size,),))
