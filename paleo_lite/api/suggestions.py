"""`calibrate --suggest`: the next measurements that would most reduce the variance of forecasts."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from ..calibration.evidence_file import EvidenceCalibration, SuggestedRow, best_rows
from ..calibration.posterior import Observation
from ..distributed import link_causes
from ..distributed.links import Topology
from ..errors import PaleoError
from ..machines import find_device
from ..own_machines import causes as local_causes
from ..own_machines.contents import read_contents
from ..own_machines.step import local_constants
from ..serving.learned import KIND as SERVER
from ..text import format_plural
from .deployments import find_decoder
from .observations import observe_server

USERS = (1, 4, 16, 64, 256)
PROMPTS = (128, 1024, 4096)
CONTEXTS = (0, 8192)
MESSAGES = (2**13, 2**18, 2**23, 2**28)
"""Situations among which the next measurement is suggested."""


def suggest_rows(calibration: EvidenceCalibration, number: int, hardware_files: list[Path]) -> list[SuggestedRow]:
    """Return the measurements that would most reduce the variance of forecasts of the same servers and machines."""
    suggestions: list[SuggestedRow] = []
    for kind in calibration.kinds:
        candidates = _candidates(calibration.posterior(kind).rows[-1], hardware_files)
        suggestions += best_rows(calibration.posterior(kind), candidates, number)
    return suggestions


def _candidates(row: Observation, hardware_files: list[Path]) -> list[Observation]:
    """Return situations of the server or the machine of a row that could be measured."""
    if row.kind == SERVER:
        return _server_candidates(row, hardware_files)
    make = _CANDIDATES.get(row.kind)
    return [] if make is None else make(row)


def _link_candidates(row: Observation) -> list[Observation]:
    traits, devices = row.traits, int(row.traits["devices"])
    link = link_causes.expected_rate(traits["link"], traits["operation"])
    topology = Topology(None, devices, link, 1, None)
    candidates = []
    for size in MESSAGES:
        shares = link_causes.collective_shares(topology, traits["operation"], size)
        situation = f"{traits['operation']} of {size:,} bytes on {devices:,} devices"
        candidates.append(Observation(row.kind, link_causes.TIME, situation, traits, 1.0, 1.0, shares))
    return candidates


def _server_candidates(row: Observation, hardware_files: list[Path]) -> list[Observation]:
    from ..questions.serve import serve

    traits = row.traits
    precision, _, weights = traits["format"].partition(" ")
    tensor, experts, attention = map(int, traits["division"].split())
    candidates = []
    for users, prompt in product(USERS, PROMPTS):
        try:
            answer: Any = serve(
                traits["network"], gpu=traits["device"], precision=precision, weights=weights or None, tensor=tensor,
                expert_parallel=experts, attention_data_parallel=attention, engine=traits["engine"],
                input_tokens=prompt, output_tokens=256, concurrency=users, num_requests=4 * users + 16,
                hardware_files=hardware_files,
            )  # fmt: skip
        except PaleoError:  # a server that does not hold its cache has no such situation
            continue
        forecasts = {name: answer.latencies[name]["mean"].value for name in ("tpot_s", "ttft_s")}
        facts = {"network": traits["network"], "input_tokens": prompt, "output_tokens": 256}
        situation = f"a benchmark with {format_plural(users, 'user')} and prompts of {prompt:,} tokens"
        rows = observe_server(forecasts, facts, situation, answer, forecasts, hardware_files)
        candidates += [msgspec.structs.replace(candidate, traits=traits) for candidate in rows]
    return candidates


def _local_candidates(row: Observation) -> list[Observation]:
    traits = row.traits
    device = find_device(traits["device"])
    contents = read_contents(find_decoder(traits["network"]), traits["format"]).merged()
    constants = local_constants().backends[traits["engine"]]
    candidates = []
    for tokens in PROMPTS:
        shares = local_causes.shares_of_prompt(contents, device, constants, tokens)
        candidates.append(
            Observation(row.kind, local_causes.PROMPT, f"llama-bench -p {tokens} -n 0", traits, 1.0, 1.0, shares)
        )
    for context in CONTEXTS:
        shares = local_causes.shares_of_token(contents, device, constants, context)
        candidates.append(
            Observation(row.kind, local_causes.TOKEN, f"llama-bench -p 0 -n 128 -d {context}", traits, 1.0, 1.0, shares)
        )
    return candidates


_CANDIDATES = {local_causes.KIND: _local_candidates, link_causes.KIND: _link_candidates}
"""Situations of a kind that could be measured; those of servers are simulated, and steps of training have none."""
