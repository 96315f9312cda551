"""Fit steps of servers: how much longer kernels take in company than alone, and the time of the host.

The time per output token is, to first order, linear in the factors of the kernels (`paleo_lite.engines.constants`)::

    tpot = sum over cells (launch * shortest kernels + work * rest) of a decode step
         + prompts per output token * the same of a prompt
         + host per iteration + host per sequence * sequences

Factors are products of one for the class of kernels, one for the engine and one for the format, shrunk towards 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from scipy.optimize import least_squares

from paleo_lite.engines.constants import Company, EngineConstants, Host
from paleo_lite.engines.kernels import CountedKernel
from paleo_lite.engines.step import EngineStep, Load
from paleo_lite.serving.kernel_tables import device_kernels

from .servers import Server, place

LOSS_SCALE = 0.1
LAUNCH_DEVIATIONS = {"class": 0.4, "engine": 0.2, "format": 0.05}
"""Standard deviations of the logarithms of launch factors around 1, by what they are for."""

WORK_DEVIATIONS = {"class": 0.2, "engine": 0.1, "format": 0.1}
PROMPT_KERNEL_S = {"vllm": 4e-5, "sglang": 1.2e-4, "tensorrt-llm": 8e-5}
"""Seconds per kernel of an iteration with prompts: times to first token at 4 users, less the time of the kernels."""

TYPICAL_HOST = Host(5e-4, 1e-5, 5e-5)
HOST_DEVIATION = 1.0


class StepParts(msgspec.Struct, frozen=True):
    """Parts of the time per output token of a server, with kernels alone.

    Attributes
    ----------
    server : Server
        The server.
    launch_s, work_s : dict
        Seconds of the shortest kernels and of the rest, by class of kernels and format.
    """

    server: Server
    launch_s: dict[tuple[str, str], float]
    work_s: dict[tuple[str, str], float]


def parts_of(server: Server) -> StepParts:
    """Return the parts of a server's time per output token."""
    placed = place(server)
    assert placed.kernels is not None
    step = placed.kernels.step
    scale = 0.9 if server.is_drawn else 1.0
    prompt, answer = scale * server.input_tokens, scale * server.output_tokens
    longest = round(prompt + answer)
    groups = server.attention_data
    own = np.ceil(server.concurrency / groups)
    decode = Load(tokens=own, all_tokens=server.concurrency, sampled=own, sequences=own, context=prompt + answer / 2)
    prefill = Load(tokens=prompt, all_tokens=prompt, sampled=1.0, prompts=1.0, length=prompt)
    prompts_per_token = (server.concurrency - 1) / groups / answer
    launch_s: dict[tuple[str, str], float] = {}
    work_s: dict[tuple[str, str], float] = {}
    for kernels, load, weight in (
        (device_kernels(placed, "decode", longest), decode, 1.0),
        (device_kernels(placed, "prefill", longest), prefill, prompts_per_token),
    ):
        _add_parts(step, kernels, load, weight, launch_s, work_s)
    return StepParts(server, launch_s, work_s)


def _add_parts(
    step: EngineStep,
    kernels: Sequence[CountedKernel],
    load: Load,
    weight: float,
    launch_s: dict[tuple[str, str], float],
    work_s: dict[tuple[str, str], float],
) -> None:
    for counted in kernels:
        cell = step.cell_of(counted.kernel)
        shortest_s, rest_s = step.kernel_parts_s(counted.kernel, load)
        launch_s[cell] = launch_s.get(cell, 0.0) + weight * counted.count * float(shortest_s)
        work_s[cell] = work_s.get(cell, 0.0) + weight * counted.count * float(rest_s)


class _Factors:
    """Names of all factors, and the design of the fit."""

    def __init__(self, parts: Sequence[StepParts]) -> None:
        self.parts = parts
        self.names: list[tuple[str, str, str, str]] = []  # launch or work, class, engine, format
        deviations = []
        cells = sorted({(part.server.engine, *cell) for part in parts for cell in part.launch_s})
        entries = {}
        for engine, kernels, form in cells:
            entries[kernels, "", ""] = "class"
            entries[kernels, engine, ""] = "engine"
            entries[kernels, engine, form] = "format"
        for kind, spreads in (("launch", LAUNCH_DEVIATIONS), ("work", WORK_DEVIATIONS)):
            for (kernels, engine, form), level in entries.items():
                self.names.append((kind, kernels, engine, form))
                deviations.append(spreads[level])
        self.deviations = np.array(deviations)
        self.engines = sorted({part.server.engine for part in parts})
        index = {name: position for position, name in enumerate(self.names)}
        columns = [(kind, cell) for kind in ("launch", "work") for cell in cells]
        self.design = np.zeros((len(columns), len(self.names)))
        for row, (kind, (engine, kernels, form)) in enumerate(columns):
            for name in ((kernels, "", ""), (kernels, engine, ""), (kernels, engine, form)):
                column = (kind, *name)
                self.design[row, index[column]] = 1.0
        position = {column: number for number, column in enumerate(columns)}
        self.seconds = np.zeros((len(parts), len(columns)))
        for row, part in enumerate(parts):
            for kind, values in (("launch", part.launch_s), ("work", part.work_s)):
                for cell, seconds in values.items():
                    self.seconds[row, position[kind, (part.server.engine, *cell)]] += seconds
        self.engine_rows = np.array([[float(part.server.engine == name) for name in self.engines] for part in parts])
        self.sequences = np.array([part.server.concurrency / part.server.attention_data for part in parts])
        self.measured_s = np.array([part.server.step_s for part in parts])

    def predict(self, theta: Any) -> Any:
        """Return the seconds per output token at some logarithms of factors and hosts."""
        factors = np.exp(self.design @ theta[: len(self.names)])
        hosts = np.exp(theta[len(self.names) :]).reshape(2, -1)
        host_s = self.engine_rows @ hosts[0] + (self.engine_rows @ hosts[1]) * self.sequences
        return self.seconds @ factors + host_s


def fit_steps(parts: Sequence[StepParts], constants: EngineConstants) -> EngineConstants:
    """Return constants with the factors of kernels in company and the hosts fitted to servers.

    Servers count by series: many loads of one deployment weigh little more than few.
    """
    factors = _Factors(parts)
    sizes: dict[tuple[str, ...], int] = {}
    for part in parts:
        sizes[part.server.group] = sizes.get(part.server.group, 0) + 1
    weights = np.array([3.0 / np.sqrt(sizes[part.server.group]) for part in parts])
    typical = np.log([TYPICAL_HOST.iteration_s, TYPICAL_HOST.sequence_s])
    host_start = np.repeat(typical, len(factors.engines))
    start = np.concatenate([np.zeros(len(factors.names)), host_start])
    spread = np.concatenate([factors.deviations, np.full(len(host_start), HOST_DEVIATION)])

    def residuals(theta: Any) -> Any:
        errors = np.log(factors.predict(theta) / factors.measured_s)
        return np.concatenate([weights * errors, LOSS_SCALE * (theta - start) / spread])

    solution = least_squares(residuals, start, loss="soft_l1", f_scale=LOSS_SCALE, x_scale=spread)
    errors = np.abs(np.log(factors.predict(solution.x) / factors.measured_s))
    found = dict(zip(factors.names, solution.x))
    company = []
    for kind, kernels, engine, form in factors.names:
        if kind == "launch":
            launch, work = found[kind, kernels, engine, form], found["work", kernels, engine, form]
            company.append(Company(kernels, engine, form, round(float(launch), 3), round(float(work), 3)))
    values = np.exp(solution.x[len(factors.names) :]).reshape(2, -1)
    hosts = {
        engine: Host(round(float(values[0, index]), 7), round(float(values[1, index]), 8), PROMPT_KERNEL_S[engine])
        for index, engine in enumerate(factors.engines)
    }
    deviation = 1.4826 * float(np.median(errors))
    return msgspec.structs.replace(
        constants, company=tuple(company), hosts=hosts, step_deviation=round(max(deviation, 0.08), 3)
    )


def is_fitted(server: Server) -> bool:
    """Return whether a server informs the fit: no drafting, and no host that limits it several times over."""
    return not (server.is_speculative or server.is_host_bound)
