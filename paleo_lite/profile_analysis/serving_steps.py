"""Steps of inference engines in a trace: prefill, decode or mixed, tokens per second, and the KV cache that they read.

vLLM annotates a step as ``execute_context_1(512)_generation_31(31)``: requests and tokens of prefill (context) and
decode (generation). Earlier versions annotate ``execute_new_1_cached_31``: new requests, whose prompts begin, and
cached requests, which continue; the lengths of the prompts are not recorded. With detailed annotations the parentheses
contain ``sq`` new tokens and ``sk`` tokens in the cache.
SGLang annotates ``step[DECODE bs=32]``, ``step[EXTEND bs=2 toks=4096]`` and ``step[MIXED bs=2 c=1 g=1 ...]``,
optionally with the same sums (``c_sq``, ``c_sk``, ``g_sq``, ``g_sk``). With speculative decoding it annotates
``step[TARGET_VERIFY bs=32]``, which does not record how many drafted tokens are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa

from ..profiles.table import float_column, integer_column, values_of

PHASES = ("prefill", "decode", "mixed")

_COUNTS = r"\((?:sq(?P<{0}_sq>\d+)sk(?P<{0}_sk>\d+)sqsq\d+sqsk\d+|(?P<{0}_tokens>\d+))\)"
_EXECUTE = re.compile(
    r"execute_(?:\d+_)?context_(?P<context>\d+)"
    + _COUNTS.format("context")
    + r"_generation_(?P<generation>\d+)"
    + _COUNTS.format("generation")
)
_EXECUTE_NEW = re.compile(r"execute_new_(?P<new>\d+)_cached_(?P<cached>\d+)")
_STEP = re.compile(r"step\[(?P<mode>EXTEND|DECODE|MIXED|TARGET_VERIFY) (?P<fields>[a-z_]+=\d+(?: [a-z_]+=\d+)*)\]")
_ANNOTATION_PREFIXES = ("execute_", "step[")
_STORE_CACHE = re.compile(r"(?:^|::)store_kvcache<(?P<key_bytes>\d+)l, (?:(?P<value_bytes>\d+)l, )?")
"""SGLang's kernel that stores keys and values of one layer. Its first template argument is the size of the keys of one
token in bytes. Versions with different key and value sizes have the size of the values as the second."""


class ServingStep(msgspec.Struct, frozen=True):
    """A step of an inference engine, from its annotation."""

    phase: str
    requests: int  # requests in the batch
    prefill_tokens: int | None  # new tokens of prefill; None if the annotation has requests only
    # New tokens of decode, one per request; None if drafted tokens are verified, of which some are accepted.
    decode_tokens: int | None
    # Keys that attention reads: the sum of the context lengths; None without detailed annotations.
    cached_tokens: int | None = None


class PhaseSummary(msgspec.Struct, frozen=True):
    """Steps of one phase."""

    phase: str
    steps: int
    requests: float  # mean number of requests per step
    # New tokens of all steps: prompt tokens in prefill, generated tokens in decode; None if the annotations do
    # not have the lengths of the prompts or the accepted tokens.
    tokens: int | None
    time_s: float  # sum of the times of the steps
    tokens_per_s: float | None  # new tokens per second
    # Tokens in the KV cache read by attention, summed over the steps; None without detailed annotations.
    cached_tokens: int | None
    cache_bytes: float | None  # bytes of the KV cache that these tokens have; None if the bytes per token are unknown


def parse_annotation(name: str) -> ServingStep | None:
    """Return the step of an annotation of vLLM or SGLang; None for other names."""
    match = _EXECUTE.fullmatch(name)
    if match is not None:
        return _parse_execute(match)
    match = _EXECUTE_NEW.fullmatch(name)
    if match is not None:
        return _parse_execute_new(match)
    match = _STEP.fullmatch(name)
    return None if match is None else _parse_step(match)


def _parse_execute(match: re.Match[str]) -> ServingStep:
    prefill_tokens = int(match["context_sq"] or match["context_tokens"] or 0)
    decode_tokens = int(match["generation_sq"] or match["generation_tokens"] or 0)
    cached_tokens = None
    if match["context_sk"] is not None and match["generation_sk"] is not None:
        cached_tokens = int(match["context_sk"]) + int(match["generation_sk"])
    return ServingStep(
        phase=_phase(prefill_tokens, decode_tokens),
        requests=int(match["context"]) + int(match["generation"]),
        prefill_tokens=prefill_tokens,
        decode_tokens=decode_tokens,
        cached_tokens=cached_tokens,
    )


def _parse_execute_new(match: re.Match[str]) -> ServingStep | None:
    new, cached = int(match["new"]), int(match["cached"])
    if not new and not cached:
        return None
    # A request that continues a prompt in chunks is cached, too, and counts as decode.
    return ServingStep(_phase(new, cached), new + cached, None if new else 0, cached)


def _parse_step(match: re.Match[str]) -> ServingStep | None:
    fields: dict[str, int] = {}
    for field in match["fields"].split():
        key, _, value = field.partition("=")
        fields[key] = int(value)
    requests = fields.get("bs", 0)
    cached = [fields[key] for key in ("c_sk", "g_sk") if key in fields]
    cached_tokens = sum(cached) if cached else None
    if match["mode"] == "DECODE":
        return ServingStep("decode", requests, 0, fields.get("g_sq", requests), cached_tokens)
    if match["mode"] == "TARGET_VERIFY":
        return ServingStep("decode", requests, 0, None, cached_tokens)
    if match["mode"] == "EXTEND":
        return ServingStep("prefill", requests, fields.get("toks", fields.get("c_sq", 0)), 0, cached_tokens)
    decode_tokens = fields.get("g_sq", fields.get("g", 0))
    prefill_tokens = fields.get("c_sq", max(fields.get("toks", 0) - decode_tokens, 0))
    return ServingStep("mixed", requests, prefill_tokens, decode_tokens, cached_tokens)


def _phase(prefill_tokens: int, decode_tokens: int) -> str:
    if prefill_tokens and decode_tokens:
        return "mixed"
    return "prefill" if prefill_tokens else "decode"


class EngineStepRecorder:
    """Collects the annotated steps of a trace, batch by batch."""

    def __init__(self) -> None:
        self._steps: dict[tuple[bool, str], list[tuple[float, float, ServingStep]]] = {}
        self._stored_bytes = 0.0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch with the columns category, kernel, start_ns, duration_ns and thread."""
        name_codes, names = values_of(batch, "kernel")
        steps_by_code: dict[int, ServingStep] = {}
        stored: dict[int, int] = {}
        for code, name in enumerate(names):
            if not name:
                continue
            if name.startswith(_ANNOTATION_PREFIXES):
                step = parse_annotation(name)
                if step is not None:
                    steps_by_code[code] = step
            elif "store_kvcache<" in name:
                match = _STORE_CACHE.search(name)
                if match is not None:
                    key_bytes = int(match["key_bytes"])
                    stored[code] = key_bytes + int(match["value_bytes"] or key_bytes)
        for code, layer_bytes in stored.items():
            self._stored_bytes += float(layer_bytes) * int((name_codes == code).sum())
        if not steps_by_code:
            return
        starts = float_column(batch, "start_ns")
        durations = float_column(batch, "duration_ns")
        threads = integer_column(batch, "thread")
        for index in np.flatnonzero(np.isin(name_codes, list(steps_by_code))):
            step = steps_by_code[int(name_codes[index])]
            name = names[int(name_codes[index])]
            is_on_device = bool(threads[index] < 0)
            kind = name[: name.index("_")] if name.startswith("execute_") else "step["
            key = (is_on_device, kind)
            self._steps.setdefault(key, []).append((float(starts[index]), float(durations[index]), step))

    def summarise(self) -> list[PhaseSummary]:
        """Return one summary per phase; empty for a trace without annotated steps.

        A trace can have several annotations per step. The outer one (``execute_...``) has priority, and the one on the
        device's timeline if there is one. The time of a step is the length of its annotation.
        """
        for key in ((True, "execute"), (True, "step["), (False, "execute"), (False, "step[")):
            if key in self._steps:
                return _summarise(sorted(self._steps[key], key=lambda item: item[0]), self._stored_bytes)
        return []


def _summarise(steps: Sequence[tuple[float, float, ServingStep]], stored_bytes: float) -> list[PhaseSummary]:
    # Every step runs the store kernel once per layer, so this is the sum over the layers.
    bytes_per_token = stored_bytes / len(steps) if stored_bytes else None
    summaries = []
    for phase in PHASES:
        members = [(duration_ns, step) for _, duration_ns, step in steps if step.phase == phase]
        if not members:
            continue
        time_s = sum(duration_ns for duration_ns, _ in members) * 1e-9
        counts = [count for _, step in members for count in (step.prefill_tokens, step.decode_tokens)]
        tokens = None if None in counts else sum(count or 0 for count in counts)
        cached = [step.cached_tokens for _, step in members]
        cached_tokens = None if None in cached else sum(count or 0 for count in cached)
        cache_bytes = None
        if cached_tokens is not None and bytes_per_token is not None:
            cache_bytes = cached_tokens * bytes_per_token
        summaries.append(
            PhaseSummary(
                phase=phase,
                steps=len(members),
                requests=sum(step.requests for _, step in members) / len(members),
                tokens=tokens,
                time_s=time_s,
                tokens_per_s=tokens / time_s if tokens is not None and time_s else None,
                cached_tokens=cached_tokens,
                cache_bytes=cache_bytes,
            )
        )
    return summaries
