"""Fit steps of servers: how much longer kernels take in company than alone, and the time of the host.

The time per output token is, to first order, linear in the factors of the kernels (`paleo_lite.engines.constants`)::

    decode = sum over cells (launch * shortest kernels + work * rest) of a decode step
    prompt = sum over cells (shortest kernels + work in iterations with prompts * rest)
    tpot = host per iteration + host per logit * logits of all sequences, besides where they are sorted for a nucleus
         + decode + prompts per output token * prompt                    of engines that pause decoding for prompts
         + (1 - s) * decode + s * decode with prompts                    of engines that decode beside them

where s is the share of iterations with a prompt, the prompts per output token or 1.

The mean time to first token of a closed loop, in which all users send their first request at once, is::

    ttft = host per request + host per token of the prompt + host per kernel of an iteration with a prompt
         + host per layer of experts of such an iteration + waited iterations * tpot + decode with prompts
         + prompt * (prompts of the first round before this one, on average) + wait for prompts of others

Factors are products of one for the class of kernels, one for the engine and one for the format, shrunk towards 1.
Products and attention, but that of decode steps to latent vectors, take as long as alone (`AS_ALONE`), and so do
pointwise kernels in iterations with prompts (`PROMPTS_AS_ALONE`). Factors of their own fit the servers slightly better,
and those of another source, network or device worse: they take up errors of the host and of circumstances, which are
others there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from scipy.optimize import least_squares

from paleo_lite.engines.blocks import sampled_logits
from paleo_lite.engines.constants import Company, EngineConstants, Host, MeasuredServers, ServerSpread, generation_of
from paleo_lite.engines.kernels import CountedKernel, Load, count_expert_layers
from paleo_lite.engines.records import SERVERS, find_server
from paleo_lite.engines.step import UNKNOWN_HOST, EngineStep
from paleo_lite.machines import find_device
from paleo_lite.serving.kernel_timer import device_kernels
from paleo_lite.serving.requests import REQUESTS_PER_USER
from paleo_lite.timing.intervals import Z_90

from .servers import PublishedServer, place

LOSS_SCALE = 0.1
LAUNCH_DEVIATIONS = {"class": 0.4, "engine": 0.2, "format": 0.05, "generation": 0.05}
"""Standard deviations of the logarithms of launch factors around 1, by what they are for."""

WORK_DEVIATIONS = {"class": 0.2, "engine": 0.1, "format": 0.1, "generation": 0.1}

TYPICAL_HOST = {
    "iteration_s": 5e-4, "logit_s": 1e-10, "request_s": 5e-3, "request_token_s": 1e-6, "request_iterations": 1.5,
    "nucleus_logit_s": 2e-10, "request_kernel_s": 2e-5, "request_expert_s": 1e-4,
}  # fmt: skip
"""Times of a host before anything is fitted, by the attribute of `paleo_lite.engines.constants.Host`."""

AS_ALONE = (
    "decode attention", "latent prompt attention", "products", "prompt attention", "single decode attention",
)  # fmt: skip
"""Classes of kernels whose time beyond the shortest is in a server that of the kernel alone."""

PROMPTS_AS_ALONE = (*AS_ALONE, "experts", "pointwise")
"""The same in iterations with prompts.

A factor of pointwise kernels would be 0.57, with which they would move more bytes per second on an H100 than its memory
can. Without it, times per token are 10.1 instead of 10.3% off with networks held out, 9.4 instead of 9.6% with sources
and 9.5 instead of 9.6% with devices held out (medians). Factors of experts take up what hosts do to first tokens: with
other servers in the fit, that of mxfp4 under TensorRT-LLM was 1.57 or 1.08. Without them, first tokens are 0.233
instead of 0.255 off with networks held out (mean logarithms), 0.230 instead of 0.244 with sources and 0.274 instead of
0.279 with devices.
"""

LAUNCHED_AS_ALONE = ("decode attention", "single decode attention")
"""Classes of kernels of which the shortest takes in a server as long as alone."""

HOST_DEVIATION, REQUEST_DEVIATION = 0.2, 1.0
"""Standard deviations of the logarithms of times of hosts around the typical ones: of iterations, and of requests.

Engines do the same in an iteration on the hosts of a table, but tables have other hosts. With a deviation of 1.0 the
time per logit is nearly zero under vLLM and TensorRT-LLM, which networks with few users of the same source determine.
With 0.2, interval scores of times per token are 0.85 instead of 0.87 with networks held out (half of them have the
lowest at 0.1, the others at 0.2 to 0.3), 0.86 instead of 1.03 with sources, 1.00 instead of 1.01 with devices and 1.10
instead of 1.11 with engines. Requests are not alike: with 0.2 a token of a prompt takes 1.3 us under vLLM, and first
tokens of 8,192 tokens 185 ms; Mooncake measured 212 (Qwen3 8B, split pools), and with 1.0 they take 227. Engines launch
kernels and look for requests alike: with 1.0 for these, too, first tokens are 0.236 instead of 0.215 off with networks
held out (means of the logarithm), and 0.223 instead of 0.215 with devices.
"""

REQUEST_TIMES = ("request_s", "request_token_s", "request_iterations", "request_kernel_s")
"""Times of a host that follow from first tokens alone, of every network."""

OWN_TIMES = ("request_s", "request_token_s", "request_expert_s")
"""Times in which engines differ: those of their servers, and what starts a layer of experts."""

ONE_NETWORK_DEVIATION = 0.05
"""Deviation of these times where all first tokens under an engine are of one network: they stay near the typical ones.

SGLang's are all of DeepSeek-R1, which waits for 100 to 200 ms more than its kernels take. Free times turn this into ten
iterations, and four users of Qwen3 8B on an H100 would wait for 102 ms (GPUStack's performance lab measured 28).
"""

FIRST_TOKEN_WEIGHT = 0.5
"""Weight of times to first token relative to times per output token."""

MOST_USERS = 64
"""Users of the servers whose time to first token is fitted: above, queues for the cache decide it."""

SCHEDULED_ITERATIONS = 1.5
"""Iterations that every request waits for: half of the one in progress, and the one that is scheduled already."""

LARGEST_UTILISATION = 0.6

SMALLEST_STEP_DEVIATION = 0.08

TOLERANCE, HELD_OUT_TOLERANCE = 1e-8, 1e-3
"""Relative change of the loss at which a fit ends, and a fit without a part: times change by less than 1% below."""

Cell = tuple[str, str]
"""Class of kernels and format."""


class StepTimes(NamedTuple):
    """Seconds of the shortest kernels and of the rest, by cell."""

    launch_s: dict[Cell, float]
    work_s: dict[Cell, float]


class StepParts(msgspec.Struct, frozen=True):
    """Parts of the times of a server, with kernels alone.

    Attributes
    ----------
    server : PublishedServer
        The server.
    decode, prompt, mixed : StepTimes
        A decode step, an iteration with a prompt of the mean length, and one with both.
    prompts_per_token : float
        Prompts of others that are computed per output token.
    logits : float
        Logits of a sequence.
    prompt_launches : int
        Kernels of an iteration with a prompt.
    expert_layers : int
        Layers of experts of an iteration.
    variance : float
        Variance of the logarithm of a decode step, from the constants of kernels.
    """

    server: PublishedServer
    decode: StepTimes
    prompt: StepTimes
    mixed: StepTimes
    prompts_per_token: float
    logits: float
    prompt_launches: int
    variance: float
    expert_layers: int = 0

    @property
    def has_experts(self) -> bool:
        """Whether the network is a mixture of experts."""
        return any(kernels == "experts" for kernels, _ in self.decode.launch_s)


def parts_of(server: PublishedServer, constants: EngineConstants) -> StepParts:
    """Return the parts of a server's times, with the constants of kernels alone."""
    placed = place(server)
    assert placed.kernels is not None
    shipped = placed.kernels.step
    step = EngineStep(shipped.device, shipped.engine, shipped.formats, shipped.devices, constants)
    prompt, answer = server.mean_input, server.mean_output
    longest = round(prompt + answer)
    groups = server.attention_data
    users = float(server.concurrency)
    of_replica = float(np.ceil(users / groups))
    new = prompt - server.shared_tokens
    prompts_per_token = (users - 1) / groups / answer
    together = max(prompts_per_token, 1.0)
    decode = Load(
        tokens=of_replica, all_tokens=users, sampled=of_replica, sequences=of_replica, context=prompt + answer / 2
    )
    alone = Load(tokens=new, all_tokens=new, sampled=1.0, prompts=1.0, length=new, cached=server.shared_tokens)
    mixed = msgspec.structs.replace(
        decode, tokens=of_replica + together * new, all_tokens=users + together * new, prompts=together, length=new,
        cached=server.shared_tokens,
    )  # fmt: skip
    decode_kernels, prompt_kernels = (device_kernels(placed, phase, longest) for phase in ("decode", "prefill"))
    decoding = [counted_kernel for counted_kernel in decode_kernels if counted_kernel.kernel.rows == "decoding"]
    return StepParts(
        server,
        _parts(step, decode_kernels, decode),
        _parts(step, prompt_kernels, alone),
        _parts(step, [*prompt_kernels, *decoding], mixed),
        prompts_per_token,
        sampled_logits(decode_kernels),
        sum(counted.launches for counted in prompt_kernels),
        float(step.variance(decode_kernels, decode)),
        count_expert_layers(prompt_kernels),
    )


def _parts(step: EngineStep, kernels: Sequence[CountedKernel], load: Load) -> StepTimes:
    launch_s: dict[Cell, float] = {}
    work_s: dict[Cell, float] = {}
    for counted in kernels:
        cell = step.cell_of(counted.kernel)
        shortest_s, rest_s = step.kernel_parts_s(counted.kernel, load)
        launch_s[cell] = launch_s.get(cell, 0.0) + counted.count * float(shortest_s)
        work_s[cell] = work_s.get(cell, 0.0) + counted.count * float(rest_s)
    return StepTimes(launch_s, work_s)


class _Design:
    """Seconds of some iterations by cell, and the factors that multiply them."""

    def __init__(
        self,
        settings: Sequence[tuple[str, str]],
        parts: Sequence[dict[Cell, float]],
        deviations: dict[str, float],
        as_alone: Collection[str],  # classes of kernels that have no factor
    ) -> None:
        cells = sorted({(*setting, *cell) for setting, part in zip(settings, parts) for cell in part})
        levels: dict[tuple[str, str, str, str], str] = {}
        with_factors = [cell for cell in cells if cell[2] not in as_alone]
        for cell in with_factors:
            levels.update(zip(_factors_of(cell), ("class", "engine", "format", "generation")))
        self.names = list(levels)
        self.deviations = np.array([deviations[level] for level in levels.values()])
        self.factors = np.zeros((len(cells), len(self.names)))
        for cell in with_factors:
            for name in _factors_of(cell):
                self.factors[cells.index(cell), self.names.index(name)] = 1.0
        self.seconds = np.zeros((len(parts), len(cells)))
        for row, (setting, part) in enumerate(zip(settings, parts)):
            for kernel_cell, seconds in part.items():
                self.seconds[row, cells.index((*setting, *kernel_cell))] += seconds

    def total_s(self, logs: Any) -> Any:
        """Return the seconds of each iteration at some logarithms of the factors."""
        return self.seconds @ np.exp(self.factors @ logs)


def _factors_of(cell: tuple[str, str, str, str]) -> list[tuple[str, str, str, str]]:
    """Return the factors of an engine, a generation, a class of kernels and a format, as in `Company`."""
    engine, generation, kernels, form = cell
    return [
        (kernels, "", "", ""),
        (kernels, engine, "", ""),
        (kernels, engine, form, ""),
        (kernels, "", "", generation),
    ]


class _Circumstances(NamedTuple):
    """What the times of servers depend on beside their iterations; arrays with an entry per server.

    Attributes
    ----------
    mixes : ndarray
        Whether engines decode beside prompts.
    users, prompts_before : ndarray
        Users, and prompts of the first round before one of them, on average.
    logits, nucleus_logits : ndarray
        Logits of the sequences of an attention group, and those of them that are sorted.
    prompt_launches, expert_layers : ndarray
        Kernels, and layers of experts, of an iteration with a prompt.
    prompt_tokens, answers : ndarray
        Mean tokens of prompts and of answers.
    prompts_per_token : ndarray
        Prompts of others that are computed per output token.
    pausing_share : ndarray
        Share of these prompts that pause the decoding of others: those that are computed after one's own.
    waited_iterations : ndarray
        Decoding iterations until the engine looks for new requests, on average.
    measured_s : ndarray
        Measured times per output token, from which waits follow.
    """

    mixes: Any
    users: Any
    prompts_before: Any
    logits: Any
    nucleus_logits: Any
    prompt_launches: Any
    expert_layers: Any
    prompt_tokens: Any
    answers: Any
    prompts_per_token: Any
    pausing_share: Any
    waited_iterations: Any
    measured_s: Any

    @classmethod
    def of(cls, parts: Sequence[StepParts]) -> _Circumstances:
        """Return the circumstances of some servers."""
        servers = [part.server for part in parts]
        users = np.array([float(server.concurrency) for server in servers])
        groups = np.array([server.attention_data for server in servers])
        logits = users / groups * np.array([part.logits for part in parts])
        return cls(
            mixes=np.array([SERVERS[server.engine].mixes_phases for server in servers]),
            users=users,
            prompts_before=_mean_before(users),
            logits=logits,
            nucleus_logits=np.where([server.has_nucleus for server in servers], logits, 0.0),
            prompt_launches=np.array([part.prompt_launches for part in parts]),
            expert_layers=np.array([part.expert_layers for part in parts]),
            prompt_tokens=np.array([server.mean_input for server in servers]),
            answers=np.array([server.mean_output for server in servers]),
            prompts_per_token=np.array([part.prompts_per_token for part in parts]),
            pausing_share=np.array([_pausing_share(server) for server in servers]),
            waited_iterations=np.array([_waited_iterations(server) for server in servers]),
            measured_s=np.array([server.step_s for server in servers]),
        )

    def times_s(self, host: dict[str, Any], decode_s: Any, prompt_s: Any, mixed_s: Any) -> tuple[Any, Any]:
        """Return times per output token and to the first token, from the host's times and those of iterations."""
        share = np.minimum(self.prompts_per_token, 1.0)
        beside_s = (1 - share) * decode_s + share * mixed_s
        pausing_s = decode_s + self.pausing_share * self.prompts_per_token * (prompt_s + host["iteration_s"])
        host_s = host["iteration_s"] + host["logit_s"] * self.logits + host["nucleus_logit_s"] * self.nucleus_logits
        tpot_s = host_s + np.where(self.mixes, beside_s, pausing_s)
        utilisation = (self.users - 1) * prompt_s / (self.answers * self.measured_s)
        utilisation = np.minimum(utilisation, LARGEST_UTILISATION)
        wait_s = 0.5 * utilisation / (1 - utilisation) * prompt_s
        own_s = np.where(self.mixes, mixed_s, prompt_s) + self.prompts_before * prompt_s + wait_s
        ttft_s = host["request_s"] + host["request_token_s"] * self.prompt_tokens + own_s
        ttft_s += host["request_kernel_s"] * self.prompt_launches + host["request_expert_s"] * self.expert_layers
        waits = SCHEDULED_ITERATIONS + host["request_iterations"] + self.waited_iterations
        return tpot_s, ttft_s + waits * self.measured_s


def _waited_iterations(server: PublishedServer) -> float:
    """Return the iterations until the engine looks for new requests, on average."""
    return (server.script.receive_interval - 1) / 2


def _pausing_share(server: PublishedServer) -> float:
    """Return the share of the prompts of others that pause the decoding of a user.

    Users who keep step send their prompts together, in several chunks; only those in later chunks than one's own pause
    it.
    """
    if not server.keeps_step:
        return 1.0
    engine = find_server(server.engine, find_device(server.gpu))
    chunks = np.ceil(server.concurrency * server.input_tokens / engine.chunked_prefill)
    return float(1 - 1 / chunks) / 2


def predict_steps(part: StepParts, constants: EngineConstants) -> tuple[float, float]:
    """Return the time per output token and to the first token of a server with fitted factors and hosts."""
    server = part.server
    device = find_device(server.gpu)

    def seconds(iteration: StepTimes, is_prompt: bool) -> float:
        total_s = 0.0
        for cell, launch_s in iteration.launch_s.items():
            launch, work = constants.company_of(cell[0], device, server.engine, cell[1], is_prompt)
            total_s += launch * launch_s + work * iteration.work_s[cell]
        return total_s

    host = msgspec.structs.asdict(constants.hosts.get(server.engine, UNKNOWN_HOST))
    iterations = (seconds(part.decode, False), seconds(part.prompt, True), seconds(part.mixed, True))
    tpot_s, ttft_s = _Circumstances.of([part]).times_s(host, *iterations)
    return float(tpot_s[0]), float(ttft_s[0])


class _Model:
    """Times of servers as functions of the logarithms of all factors and of the hosts."""

    def __init__(self, parts: Sequence[StepParts]) -> None:
        servers = [part.server for part in parts]
        engines = [server.engine for server in servers]
        settings = [(server.engine, generation_of(find_device(server.gpu))) for server in servers]
        launches = [part.decode.launch_s for part in parts]
        self.launch = _Design(settings, launches, LAUNCH_DEVIATIONS, LAUNCHED_AS_ALONE)
        self.work = _Design(settings, [part.decode.work_s for part in parts], WORK_DEVIATIONS, AS_ALONE)
        # Both kinds of iterations with prompts have the same factors.
        with_prompts = [part.prompt for part in parts] + [part.mixed for part in parts]
        works = [part.work_s for part in with_prompts]
        self.prompt_work = _Design(2 * settings, works, WORK_DEVIATIONS, PROMPTS_AS_ALONE)
        self.prompt_launch_s = np.array([sum(part.launch_s.values()) for part in with_prompts])
        self.engines = sorted(set(engines))
        self.engine_rows = np.array([[float(engine == name) for name in self.engines] for engine in engines])
        self.circumstances = _Circumstances.of(parts)
        self.ttft_s = np.array([server.ttft_s or np.nan for server in servers])
        designs = (self.launch, self.work, self.prompt_work)
        self.ends = np.cumsum([len(design.names) for design in designs])
        host = [np.log(value) for value in TYPICAL_HOST.values() for _ in self.engines]
        self.start = np.concatenate([np.zeros(self.ends[-1]), host])
        spreads = [design.deviations for design in designs]
        self.spread = np.concatenate([*spreads, self._host_deviations(servers)])

    def _host_deviations(self, servers: Sequence[PublishedServer]) -> Any:
        """Return the deviations of the times of the hosts, by time and engine."""
        networks: dict[str, set[str]] = {engine: set() for engine in self.engines}
        for server in filter(informs_first_token, servers):
            networks[server.engine].add(server.network)
        deviations = []
        for time in TYPICAL_HOST:
            usual = REQUEST_DEVIATION if time in OWN_TIMES else HOST_DEVIATION
            of_one = ONE_NETWORK_DEVIATION if time in REQUEST_TIMES else usual
            deviations += [usual if len(networks[engine]) > 1 else of_one for engine in self.engines]
        return np.array(deviations)

    def predict(self, theta: Any) -> tuple[Any, Any]:
        """Return times per output token and to the first token."""
        launch, work, prompt_work, host = np.split(theta, self.ends)
        by_engine = np.exp(host).reshape(-1, len(self.engines)) @ self.engine_rows.T
        prompt_s, mixed_s = np.split(self.prompt_launch_s + self.prompt_work.total_s(prompt_work), 2)
        decode_s = self.launch.total_s(launch) + self.work.total_s(work)
        return self.circumstances.times_s(dict(zip(TYPICAL_HOST, by_engine)), decode_s, prompt_s, mixed_s)


def _mean_before(count: Any) -> Any:
    """Return the mean number of prompts before one of those that are sent at once, or later one by one."""
    return (0.5 * (count + 1) - 1) / REQUESTS_PER_USER


def fit_steps(parts: Sequence[StepParts], constants: EngineConstants, tolerance: float = TOLERANCE) -> EngineConstants:
    """Return constants with the factors of kernels in company and the hosts fitted to servers.

    Servers count by series: many loads of one deployment weigh little more than few. The fit ends where a step changes
    the loss by less than a relative tolerance.
    """
    model = _Model(parts)
    sizes: dict[tuple[str, ...], int] = {}
    for part in parts:
        sizes[part.server.group] = sizes.get(part.server.group, 0) + 1
    weights = np.array([3.0 / np.sqrt(sizes[part.server.group]) for part in parts])
    has_first = np.array([informs_first_token(part.server) for part in parts])

    def residuals(theta: Any) -> Any:
        tpot_s, ttft_s = model.predict(theta)
        first = np.log(ttft_s / model.ttft_s)[has_first]
        return np.concatenate([
            weights * np.log(tpot_s / model.circumstances.measured_s),
            FIRST_TOKEN_WEIGHT * weights[has_first] * first,
            LOSS_SCALE * (theta - model.start) / model.spread,
        ])  # fmt: skip

    solution = least_squares(
        residuals, model.start, loss="soft_l1", f_scale=LOSS_SCALE, x_scale=model.spread, ftol=tolerance
    )
    launch, work, prompt_work, host = np.split(solution.x, model.ends)
    company = []
    launch_logs, work_logs = dict(zip(model.launch.names, launch)), dict(zip(model.work.names, work))
    for name in {**launch_logs, **work_logs}:
        logs = (round(float(logs_by_name.get(name, 0.0)), 3) for logs_by_name in (launch_logs, work_logs))
        company.append(Company(*name, False, *logs))
    for name, work_log in zip(model.prompt_work.names, prompt_work):
        company.append(Company(*name, True, 0.0, round(float(work_log), 3)))
    first_errors = np.abs(np.log(model.predict(solution.x)[1] / model.ttft_s))
    hosts = {}
    for row, (engine, values) in enumerate(zip(model.engines, np.exp(host).reshape(-1, len(model.engines)).T)):
        times = {name: float(f"{value:.3g}") for name, value in zip(TYPICAL_HOST, values)}
        if not any(part.server.has_nucleus for part in parts if part.server.engine == engine):
            times["nucleus_logit_s"] = 0.0
        of_engine = first_errors[has_first & (model.engine_rows[:, row] > 0)]
        hosts[engine] = Host(**times, first_token_deviation=spread_of(of_engine))
    errors = np.abs(np.log(model.predict(solution.x)[0] / model.circumstances.measured_s))
    dense = np.array([not part.has_experts for part in parts])
    return msgspec.structs.replace(
        constants, company=tuple(company), hosts=hosts, spread=ServerSpread(_step_deviation(errors), 0.0),
        dense_spread=ServerSpread(_step_deviation(errors[dense] if dense.any() else errors), 0.0),
        measured=kinds_of(parts),
    )  # fmt: skip


def kinds_of(parts: Sequence[StepParts]) -> tuple[MeasuredServers, ...]:
    """Return the engines, devices and kinds of networks of which servers of several networks were measured."""
    networks: dict[MeasuredServers, set[str]] = {}
    for part in parts:
        kind = MeasuredServers(part.server.engine, part.server.gpu, part.has_experts)
        networks.setdefault(kind, set()).add(part.server.network)
    found = (kind for kind, names in networks.items() if len(names) > 1)
    return tuple(sorted(found, key=msgspec.structs.astuple))


def informs_first_token(server: PublishedServer) -> bool:
    """Return whether the time to first token of a server is fitted."""
    is_alone = server.is_drawn and server.attention_data == 1 and server.concurrency <= MOST_USERS
    waits_for_nothing = server.was_warm and server.script.gathering is None
    return is_alone and waits_for_nothing and server.ttft_s is not None


def _step_deviation(errors: Any) -> float:
    """Return the standard deviation of a normal distribution with the same median of absolute errors."""
    return round(max(1.4826 * float(np.median(errors)), SMALLEST_STEP_DEVIATION), 3)


def spread_of(errors: Any) -> float:
    """Return the standard deviation of a normal distribution with the same 90% quantile of absolute errors."""
    if not len(errors):
        return UNKNOWN_HOST.first_token_deviation
    return round(float(np.quantile(errors, 0.9)) / Z_90, 3)


def is_fitted(server: PublishedServer) -> bool:
    """Return whether a server informs the fit: no drafting, and no host that limits it several times over."""
    return server.is_captured and not (server.is_speculative or server.is_host_bound)
