"""Traffic: requests with their arrival times and lengths, generated with a seed or read from a trace."""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from ..errors import BadFile, BadQuantity, BadValue
from ..files import NOT_TEXT, check_regular
from ..text import format_plural
from ..units import check_integer, check_positive, format_number, parse_quantity
from .lengths import MAX_TOKENS, Lengths

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]


ARRIVALS = ("poisson", "fixed")
"""Arrival processes: exponential or constant intervals."""

SHORTEST_FIRST = 0.5
"""Shortest first answer relative to the others, if these are equally long: of 0, 0.5 and 1, 0.5 came closest to the
times to first token of 93 published servers under constant lengths (30% off; 0: 36%, 1: 48%)."""

HASHED_TOKENS = 512
"""Tokens of a block of Mooncake's traces (Qin et al. 2025, FAST'25)."""

MAX_REQUESTS = 2_000_000
LEAST_RATE = 1e-9  # requests per second; more seconds between two of them have no room for milliseconds in a float

TRACE_COLUMNS = ("arrival_s", "input_tokens", "output_tokens")
"""Columns of a trace."""


def parse_rate(rate: float | str) -> float:
    """Return requests per second from a number or a text such as ``"5"``, ``"5/s"`` or ``"inf"``."""
    text = str(rate).strip().removesuffix("/s")
    if text == "inf":
        return math.inf
    try:
        return parse_quantity(text, "")
    except BadQuantity:
        raise BadValue(f"`--rate` must be a number of requests per second or inf (got {rate!r})") from None


class Traffic(msgspec.Struct, frozen=True, eq=False):
    """Requests in the order of their arrival, arrays of shape (requests,)."""

    arrival_s: Floats  # all 0 for a closed loop or an infinite rate
    input_tokens: Ints  # of the prompt, at least 1
    output_tokens: Ints  # of the answer, at least 1
    # Users of a closed loop, each of whom sends a request when the previous one is answered; None for an open loop.
    concurrency: int | None = None
    left_out: Bools | None = None  # requests that latencies leave out, shape (requests,); None: none
    # Hashes of the blocks of each prompt, each of all tokens up to the end of the block; None if nothing is known of
    # common prefixes. The last block of a prompt may have fewer tokens.
    hashes: tuple[tuple[int, ...], ...] | None = None
    hashed_tokens: int = HASHED_TOKENS  # tokens of such a block
    # Requests of sessions: the one whose answer each request waits for, -1 for the first of a session; the seconds
    # after it; and the session. None if all requests are their own.
    follows: Ints | None = None
    wait_s: Floats | None = None
    sessions: Ints | None = None
    # Sessions of a closed loop that are open at the same time, of which `concurrency` have a request under way; None
    # for as many as that.
    clients: int | None = None
    has_rounds: bool = False  # whether sessions of a closed loop wait for all others before their next turn
    # Requests after which users of a closed loop wait for all others and begin again together; 0 if they never do.
    repeats_after: int = 0
    # Class of each request, and its priority, of which lower ones are admitted first; None without classes.
    classes: Ints | None = None
    priorities: Ints | None = None
    adapters: Ints | None = None  # LoRA adapter of each request; None without adapters
    is_trace: bool = False  # whether requests were read from a file, of which there are no more

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def mean_context(self) -> float:
        """Mean tokens in the cache of a sequence over all its decode iterations: long answers decode more often."""
        centres = self.input_tokens + self.output_tokens / 2
        return float(np.average(centres, weights=self.output_tokens))

    @property
    def context_spread(self) -> float:
        """By how much contexts of decoding differ from their mean at most, if they were spread evenly around it."""
        centres = self.input_tokens + self.output_tokens / 2
        variances = (centres - self.mean_context) ** 2 + self.output_tokens**2 / 12  # of a range of length L: L^2 / 12
        return float(np.sqrt(3 * np.average(variances, weights=self.output_tokens)))

    def is_same(self, other: Traffic) -> bool:
        """Return whether the requests are those of other traffic."""
        own_arrays, other_arrays = (
            (
                traffic.arrival_s,
                traffic.input_tokens,
                traffic.output_tokens,
                np.array(traffic.left_out),
                np.array(traffic.classes),
                np.array(traffic.priorities),
                np.array(traffic.adapters),
            )
            for traffic in (self, other)
        )
        same_users = (self.concurrency, self.repeats_after, self.hashes) == (
            other.concurrency,
            other.repeats_after,
            other.hashes,
        )
        if self.follows is not None or other.follows is not None:
            return False
        return same_users and all(map(np.array_equal, own_arrays, other_arrays))

    def at_rate(self, rate_per_s: float) -> Traffic:
        """Return the same requests at another mean rate; raise BadValue if they do not arrive at one."""
        own_per_s = self.rate_per_s
        if own_per_s is None:
            raise BadValue("requests that arrive all at once have no other rate: give `--rate` and lengths")
        arrival_s = self.arrival_s * (0.0 if math.isinf(rate_per_s) else own_per_s / rate_per_s)
        return msgspec.structs.replace(self, arrival_s=arrival_s)

    def every(self, step: int, start: int) -> Traffic:
        """Return every `step`-th request from `start` on: the share of a replica under round-robin routing."""
        concurrency = self.concurrency
        if concurrency is not None:
            concurrency = (concurrency - start + step - 1) // step
        return Traffic(
            self.arrival_s[start::step],
            self.input_tokens[start::step],
            self.output_tokens[start::step],
            concurrency,
            None if self.left_out is None else self.left_out[start::step],
            None if self.hashes is None else self.hashes[start::step],
            self.hashed_tokens,
            repeats_after=requests_of_loop(concurrency) if concurrency and self.repeats_after else 0,
            classes=None if self.classes is None else self.classes[start::step],
            priorities=None if self.priorities is None else self.priorities[start::step],
            adapters=None if self.adapters is None else self.adapters[start::step],
            is_trace=self.is_trace,
        )

    @property
    def shortened_requests(self) -> int:
        """Number of requests that latencies leave out because their answers are shorter than the others."""
        if self.left_out is None:
            return 0
        return int((self.output_tokens[self.left_out] < self.output_tokens[~self.left_out].max()).sum())

    def synchronised(self) -> Traffic | None:
        """Return the requests with no answer shortened, so that users stay in step; None if none is shortened."""
        if not self.shortened_requests:
            return None
        return msgspec.structs.replace(self, output_tokens=np.full_like(self.output_tokens, self.output_tokens.max()))

    @property
    def counted(self) -> Ints:
        """Numbers of the requests that latencies count: first answers of users who drift apart are shorter."""
        return np.arange(len(self)) if self.left_out is None else np.flatnonzero(~self.left_out)

    @property
    def rate_per_s(self) -> float | None:
        """Requests per second of an open loop; None for a closed loop or if all arrive at once.

        Each session starts when its first request arrives, and has as many requests as others in the mean.
        """
        start_s = self.arrival_s if self.follows is None else self.arrival_s[self.follows < 0]
        span_s = float(start_s[-1] - start_s[0])
        if self.concurrency is not None or span_s == 0:
            return None
        return (len(start_s) - 1) / span_s * (len(self) / len(start_s))


def generate_traffic(
    inputs: Lengths,  # tokens of the prompts
    outputs: Lengths,  # tokens of the answers
    *,
    count: int,  # number of requests
    rate_per_s: float | None = None,  # requests per second of an open loop; ``inf`` lets all arrive at once
    concurrency: int | None = None,  # users of a closed loop
    arrivals: str = "poisson",  # arrival process of an open loop, one of `ARRIVALS`
    seed: int = 0,  # of arrivals and lengths; lengths do not depend on the rate
    drift_apart: bool = True,
) -> Traffic:
    """Generate requests, of an open loop with a rate or a closed one with users.

    Users of a closed loop whose lengths are all equal do not stay in step if they `drift_apart`. They do under an
    engine that computes all waiting prompts before it decodes: answers that start together end together. Users whose
    lengths are drawn begin again together after the requests of a benchmark: a longer simulation is several of these,
    since users who begin together wait the longest in the first round. Raise BadValue if not exactly one of rate and
    concurrency is given, or a number is outside its range.
    """
    if (rate_per_s is None) == (concurrency is None):
        raise BadValue("give exactly one of `--rate` and `--concurrency`, or `--requests` with a trace")
    if concurrency is not None and count == REQUESTS_PER_USER * concurrency > MAX_REQUESTS:
        raise BadValue(
            f"{concurrency:,} users with {REQUESTS_PER_USER} requests each send more than {MAX_REQUESTS:,}: give fewer "
            "users, or `--num-requests`"
        )
    check_integer("`--num-requests`", count, 1, MAX_REQUESTS)
    if arrivals not in ARRIVALS:
        raise BadValue(f"`--arrivals` must be {' or '.join(ARRIVALS)} (got {arrivals!r})")
    if concurrency is not None and (isinstance(concurrency, bool) or concurrency < 1):
        raise BadValue(f"`--concurrency` must be an integer >= 1 (got {concurrency!r})")
    if rate_per_s is not None and rate_per_s != math.inf:
        check_positive("`--rate`", rate_per_s, f"{rate_per_s:g}", "> 0 requests per second")
        if rate_per_s < LEAST_RATE:
            raise BadValue(f"`--rate` must be at least {LEAST_RATE:g} requests per second (got {rate_per_s:g})")
    lengths_generator, arrivals_generator = generators_of(seed)
    input_tokens = inputs.draw(count, lengths_generator)
    output_tokens = outputs.draw(count, lengths_generator)
    if rate_per_s is None or math.isinf(rate_per_s):
        arrival_s = np.zeros(count)
    elif arrivals == "fixed":
        arrival_s = np.arange(count) / rate_per_s
    else:
        intervals_s = arrivals_generator.exponential(1.0, count) / rate_per_s
        arrival_s = scale_to_rate(np.cumsum(intervals_s) - intervals_s[0], rate_per_s)
    left_out, repeats_after = None, 0
    if concurrency is not None and not (inputs.is_constant and outputs.is_constant):
        repeats_after = requests_of_loop(concurrency)
    elif concurrency is not None:
        output_tokens, left_out = begin_apart(output_tokens, concurrency, arrivals_generator, drift_apart=drift_apart)
    return Traffic(arrival_s, input_tokens, output_tokens, concurrency, left_out, repeats_after=repeats_after)


def generators_of(seed: int) -> tuple[np.random.Generator, np.random.Generator]:
    """Return a generator of lengths, and one of arrivals and of the first answers of users."""
    lengths, arrivals = (np.random.default_rng(part) for part in np.random.SeedSequence(seed).spawn(2))
    return lengths, arrivals


def begin_apart(
    output_tokens: Ints, users: int, generator: np.random.Generator, *, drift_apart: bool
) -> tuple[Ints, Bools | None]:
    """Return equally long answers with those that users of a closed loop begin with, and which latencies leave out.

    The first answers are shorter where users `drift_apart`. Where there is no more than one answer of each user, there
    are no others to be measured, and none is left out.
    """
    count = len(output_tokens)
    if count < 2 * users:
        return output_tokens, None
    is_first = np.arange(count) < users
    if not drift_apart:
        return output_tokens, is_first
    begins_anew = np.arange(count) % (REQUESTS_PER_USER * users) < users
    apart = output_tokens.copy()
    apart[begins_anew] = _first_answers(output_tokens[begins_anew], users, generator)
    return apart, begins_anew


def requests_of_loop(users: int, replicas: int = 1) -> int:
    """Return the requests that users of a closed loop send to some replicas in a benchmark."""
    return max(FEWEST_REQUESTS * replicas, REQUESTS_PER_USER * users)


def scale_to_rate(arrival_s: Floats, rate_per_s: float) -> Floats:
    """Return arrivals whose mean rate is the given one: a Poisson process, given the number of its arrivals."""
    if len(arrival_s) < 2:
        return arrival_s
    scaled: Floats = arrival_s * ((len(arrival_s) - 1) / rate_per_s / arrival_s[-1])
    return scaled


def _first_answers(tokens: Ints, users: int, generator: np.random.Generator) -> Ints:
    """Return answers of different lengths for the first requests of users whose other answers are equally long.

    Equal answers of users who start together end together for ever, so that every prompt waits for those of all
    others. Benchmarks with constant lengths measure less than that, and more than users who are spread evenly. As
    benchmarks send `REQUESTS_PER_USER` requests per user, users begin anew after as many: in longer simulations they
    would fall into step. They are spread then, so that answers are shorter the later they begin: otherwise each
    beginning would spread them further, up to evenly.
    """
    number = np.arange(len(tokens))
    begun_later = np.where(number < users, 0.0, (1 - SHORTEST_FIRST) * (number % users) / users)
    lengths = tokens * (generator.uniform(SHORTEST_FIRST, 1.0, len(tokens)) - begun_later)
    shortened: Ints = np.maximum(np.rint(lengths), 1).astype(np.int64)
    return shortened


def read_trace(path: Path) -> Traffic:
    """Read requests from a CSV file, or from JSON lines in the form of Mooncake's traces.

    A CSV file has the columns ``arrival_s``, ``input_tokens`` and ``output_tokens``. A line of JSON has ``timestamp``
    in ms, ``input_length``, ``output_length``, and may have ``hash_ids``, the hashes of the blocks of 512 tokens of the
    prompt. Raise BadFile if the file cannot be read, something is missing, or a value is not a number in its range; the
    message names the line.
    """
    if path.suffixes[-2:] == [".jsonl", ".gz"] or path.suffix == ".jsonl":
        return _read_json_lines(path)
    try:
        check_regular(path)
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in TRACE_COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise BadFile(f"{path}: the column {missing[0]} is missing; a trace has {', '.join(TRACE_COLUMNS)}")
            rows = []
            for row in reader:
                rows.append(_read_row(row, f"{path}, line {reader.line_num}"))
                if len(rows) > MAX_REQUESTS:
                    raise BadFile(f"{path}: the trace has more than {MAX_REQUESTS:,} requests")
    except FileNotFoundError:
        raise BadFile(f"{path}: there is no such file") from None
    except UnicodeDecodeError:
        raise BadFile(f"{path}: {NOT_TEXT}, and therefore no CSV of requests") from None
    except (OSError, csv.Error) as error:
        raise BadFile(f"{path}: {error}") from None
    if not rows:
        raise BadFile(f"{path}: the trace has no requests")
    rows.sort()
    columns = list(zip(*rows))
    return Traffic(
        np.array(columns[0], dtype=np.float64) - columns[0][0],
        np.array(columns[1], dtype=np.int64),
        np.array(columns[2], dtype=np.int64),
        is_trace=True,
    )


class _TraceLine(msgspec.Struct, frozen=True):
    """A line of JSON of a trace."""

    timestamp: float  # ms
    input_length: Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
    output_length: Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
    hash_ids: list[int] | None = None


_LONGEST_LINE = 2**20  # bytes
_LARGEST_TRACE = 2**28  # bytes of JSON lines, after they are unpacked


def _read_json_lines(path: Path) -> Traffic:
    """Read JSON lines in the form of Mooncake's traces, which may be compressed."""
    lines: list[_TraceLine] = []
    decoder = msgspec.json.Decoder(_TraceLine)
    open_lines = gzip.open if path.suffix == ".gz" else open
    number = read_bytes = 0
    try:
        check_regular(path)
        with open_lines(path, "rb") as file:
            while line := file.readline(_LONGEST_LINE + 1):
                number, read_bytes = number + 1, read_bytes + len(line)
                if read_bytes > _LARGEST_TRACE:
                    raise BadFile(f"{path}: a trace of JSON lines has at most {_LARGEST_TRACE:,} bytes: cut it")
                if len(line) > _LONGEST_LINE:
                    raise BadFile(f"{path}, line {number}: a line has at most {_LONGEST_LINE:,} bytes")
                if not line.strip():
                    continue
                lines.append(_checked_line(decoder.decode(line), lines, f"{path}, line {number}"))
                if len(lines) > MAX_REQUESTS:
                    raise BadFile(f"{path}: the trace has more than {MAX_REQUESTS:,} requests")
    except FileNotFoundError:
        raise BadFile(f"{path}: there is no such file") from None
    except msgspec.MsgspecError as error:
        raise BadFile(f"{path}, line {number}: {error}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise BadFile(f"{path}: {error}") from None
    if not lines:
        raise BadFile(f"{path}: the trace has no requests")
    hashes = None
    if lines[0].hash_ids is not None:
        hashes = tuple(tuple(line.hash_ids or ()) for line in lines)
    return Traffic(
        np.array([line.timestamp - lines[0].timestamp for line in lines]) / 1e3,
        np.array([line.input_length for line in lines], dtype=np.int64),
        np.array([line.output_length for line in lines], dtype=np.int64),
        hashes=hashes,
        is_trace=True,
    )


def _checked_line(line: _TraceLine, before: Sequence[_TraceLine], place: str) -> _TraceLine:
    """Return a line of a trace; raise BadFile if it does not fit its lengths or the lines before it."""
    if not math.isfinite(line.timestamp) or (before and line.timestamp < before[-1].timestamp):
        raise BadFile(f"{place}: timestamp must not be below that of the line before (got {line.timestamp:g})")
    if before and (line.hash_ids is None) != (before[0].hash_ids is None):
        raise BadFile(f"{place}: all lines have hash_ids, or none has")
    blocks = -(-line.input_length // HASHED_TOKENS)
    if line.hash_ids is not None and len(line.hash_ids) != blocks:
        raise BadFile(
            f"{place}: a prompt of {line.input_length:,} tokens has {blocks:,} blocks of {HASHED_TOKENS} tokens, but "
            f"hash_ids has {len(line.hash_ids):,}"
        )
    return line


def _read_row(row: dict[str, Any], place: str) -> tuple[float, int, int]:
    """Return arrival, input tokens and output tokens of one line."""
    try:
        arrival_s = float(row["arrival_s"])
        tokens = [float(row[name]) for name in TRACE_COLUMNS[1:]]
    except (TypeError, ValueError):
        raise BadFile(f"{place}: {', '.join(TRACE_COLUMNS)} must be numbers") from None
    if not math.isfinite(arrival_s) or not all(1 <= number <= MAX_TOKENS for number in tokens):
        raise BadFile(f"{place}: arrival_s must be finite and both numbers of tokens from 1 to {MAX_TOKENS:,}")
    return arrival_s, int(tokens[0]), int(tokens[1])


DEFAULT_REQUESTS = 1000
"""Requests of an open loop."""

REQUESTS_PER_USER = 10
"""Requests of a closed loop per user, as benchmarks send them (InferenceX, aiperf), if `FEWEST_REQUESTS` are fewer."""

FEWEST_REQUESTS = 200
"""Fewest requests of a closed loop, so that percentiles exist."""


class Demand(msgspec.Struct, frozen=True):
    """Requests of users: their lengths, and when they arrive."""

    inputs: Lengths  # tokens of prompts
    outputs: Lengths  # tokens of answers
    rate_per_s: float | None = None  # requests per second of an open loop, infinite if all arrive at once
    # Users of a closed loop, each of whom sends a request when the previous one is answered.
    concurrency: int | None = None
    trace: Path | None = None  # file of requests, instead of lengths and a rate
    num_requests: int | None = None  # None: `DEFAULT_REQUESTS` per replica, or `REQUESTS_PER_USER`
    arrivals: str = "poisson"  # arrival process of the rate, one of `ARRIVALS`
    seed: int = 0  # of arrivals and lengths

    def traffic(self, replicas: int, *, mixes_phases: bool) -> tuple[Traffic, str]:
        """Return the traffic of some replicas, of an engine that decodes beside prompts or not, and its description.

        Raise BadValue if not exactly one of rate, users and trace is given, or a number is outside its range, and
        BadFile if the trace cannot be read.
        """
        if self.trace is not None:
            if self.rate_per_s is not None or self.concurrency is not None or self.num_requests is not None:
                raise BadValue(
                    "`--requests` gives the traffic: leave `--rate`, `--concurrency` and `--num-requests` out"
                )
            traffic = read_trace(self.trace)
            return traffic, f"{format_plural(len(traffic), 'request')} of {self.trace.name}"
        traffic = generate_traffic(
            self.inputs,
            self.outputs,
            count=self.count(replicas),
            rate_per_s=self.rate_per_s,
            concurrency=self.concurrency,
            arrivals=self.arrivals,
            seed=self.seed,
            drift_apart=mixes_phases,
        )
        return traffic, f"{self.describe(len(traffic))}, {_describe_lengths(traffic)}"

    @property
    def finite_rate_per_s(self) -> float | None:
        """The rate that replicas have to carry; None if there is none, or all requests arrive at once."""
        return self.rate_per_s if self.rate_per_s is not None and math.isfinite(self.rate_per_s) else None

    def count(self, replicas: int) -> int:
        """Return the number of requests of some replicas."""
        if self.num_requests is not None:
            return self.num_requests
        if self.concurrency is not None:
            return requests_of_loop(self.concurrency, replicas)
        if DEFAULT_REQUESTS * replicas > MAX_REQUESTS:
            most = MAX_REQUESTS // DEFAULT_REQUESTS
            raise BadValue(
                f"`--rate` {self.rate_per_s:,g} needs {replicas:,} replicas, of which {most:,} can be simulated: ask "
                "for a part of the rate, such as a hundredth"
            )
        return DEFAULT_REQUESTS * replicas

    def describe(self, count: int) -> str:
        """Return the users or the rate as text."""
        if self.concurrency is not None:
            return "1 user" if self.concurrency == 1 else f"{self.concurrency:,} users"
        assert self.rate_per_s is not None
        if math.isinf(self.rate_per_s):
            return f"{format_plural(count, 'request')} at once"
        unit = "request/s" if self.rate_per_s == 1 else "requests/s"
        return f"{format_number(self.rate_per_s)} {unit} ({self.arrivals})"


def _describe_lengths(traffic: Traffic) -> str:
    """Return the mean lengths as text, without the first answers of a closed loop, which begins in their middle."""
    mean_input = float(traffic.input_tokens[traffic.counted].mean())
    mean_output = float(traffic.output_tokens[traffic.counted].mean())
    return f"{mean_input:,.0f} input and {format_plural(round(mean_output), 'output token')}"
