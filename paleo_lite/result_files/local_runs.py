"""Language models on one's own machine: llama-server, Ollama, LM Studio, mlx-lm and ExLlama."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..text import format_plural
from .findings import Findings, ResultFormat
from .json_text import dig, read_documents
from .text import all_lines, find_lines, ratio, scaled, to_number, to_seconds

_MS, _NS = 1e-3, 1e-9

_LEAST_PROMPT = 64
"""Tokens of a prompt below which its rate is doubted: of fewer, llama.cpp multiplies by kernels without matrix units
(``MMQ_DP4A_MAX_BATCH_SIZE`` of its CUDA backend)."""

_LEAST_GENERATED = 64
"""Tokens of an answer below which its rate is doubted: a choice, half of the tokens that llama-bench generates."""

_EVAL = re.compile(
    r"(?P<what>prompt |generation )?eval time\s*=\s*(?P<ms>\d+(?:\.\d*)?) ms /\s*(?P<count>\d+) (?:runs?|tokens)"
    r"\s*\(\s*\d+(?:\.\d*)? ms per (?:token|run)(?:,\s*(?P<rate>\d+(?:\.\d*)?) tokens per second)?"
)
_SLOT = re.compile(r"print_timing: id +\d+ \| task (\d{1,15}) \| n_decoded = +(\d{1,15}), tg = +(\d+(?:\.\d*)?) t/s")
_OFFLOADED = re.compile(r"offloaded (\d{1,15})/(\d{1,15}) layers to GPU")
_META = re.compile(r"(?:print_info|llm_load_print_meta): general\.name\s*=\s*(.+)")
_ACCEPTED = re.compile(r"draft acceptance rate = (\d+(?:\.\d*)?)")


def read_llama_timings(path: Path, findings: Findings) -> None:
    """Read the timings that llama-server and llama-cli print, in the words of four years."""
    findings.record(engine="llama.cpp")
    tasks: dict[str, tuple[float, float]] = {}
    accepted = None
    for line in find_lines(path, ("eval time", "print_timing:", "layers to GPU", "general.name", "draft acceptance")):
        if match := _EVAL.search(line):
            count, seconds = float(match["count"]), float(match["ms"]) * _MS
            if not seconds:  # embeddings write no token
                continue
            if match["what"] == "prompt ":
                _add_prompt(count, seconds, findings)
            else:
                _add_generated(count, seconds, findings, accepted)
        elif match := _SLOT.search(line):
            tasks[match[1]] = (float(match[2]), float(match[3]))  # the last line of a task counts
        elif match := _OFFLOADED.search(line):
            findings.record(blocks_on_gpu=int(match[1]), blocks=int(match[2]))
            if match[1] != match[2]:
                findings.doubt(f"{match[1]} of {match[2]} blocks were on the GPU: the CPU computed the others")
        elif match := _META.search(line):
            findings.guess("the name in the model's file", network=match[1])
        elif match := _ACCEPTED.search(line):
            accepted = to_number(match[1])
    if not any(reading.kind == "decode" for reading in findings.readings):
        for count, rate in tasks.values():
            _add_generated(count, count / rate if rate else 0.0, findings, accepted)


def _add_prompt(count: float, seconds: float, findings: Findings) -> None:
    short = count < _LEAST_PROMPT
    doubts = (f"a prompt of {count:g} tokens is mostly overhead",) if short else ()
    findings.add("prompt", doubts, batch_size=1, tokens=count, time_s=seconds, tokens_per_s=ratio(count, seconds))


def _add_generated(count: float, seconds: float, findings: Findings, acceptance: float | None = None) -> None:
    few = count < _LEAST_GENERATED
    doubts = (f"only {format_plural(round(count), 'generated token')}: too few for a rate",) if few else ()
    findings.add(
        "decode",
        doubts,
        batch_size=1,
        generated=count,
        time_s=seconds,
        tpot_s=ratio(seconds, count),
        tokens_per_s=ratio(count, seconds),
        acceptance=acceptance,
    )


def read_llama_answers(path: Path, findings: Findings) -> None:
    """Read answers of llama-server with their `timings`, alone or in the list of a client."""
    for answer in read_documents(path, findings):
        findings.record(engine="llama.cpp", network=answer.get("model") or answer.get("gguf"))
        flags = answer.get("spec_flags")
        if flags:
            findings.record(speculative=str(flags))
        results = answer.get("results")
        for timed in results if isinstance(results, list) else [answer]:
            if isinstance(timed, dict):
                timings = timed.get("timings")
                _add_timings(timed, timings if isinstance(timings, dict) else timed, findings)


def _add_timings(answer: dict[str, Any], timings: dict[str, Any], findings: Findings) -> None:
    count, seconds = to_number(timings.get("prompt_n")), scaled(timings.get("prompt_ms"), _MS)
    cached = to_number(timings.get("cache_n"))
    if count and seconds:
        doubts = (f"{cached:g} more tokens were in the cache",) if cached else ()
        findings.add("prompt", doubts, batch_size=1, tokens=count, time_s=seconds, tokens_per_s=count / seconds,
                     depth=cached or None)  # fmt: skip
    rate, generated = to_number(timings.get("predicted_per_second")), to_number(timings.get("predicted_n"))
    drafted, accepted = to_number(timings.get("draft_n")), to_number(timings.get("draft_n_accepted"))
    doubts = ("a small network drafted the tokens: a step writes more than one",) if drafted else ()
    findings.add(
        "decode",
        doubts,
        label=answer.get("name"),
        batch_size=1,
        generated=generated,
        tokens_per_s=rate,
        tpot_s=ratio(1.0, rate),
        time_s=scaled(timings.get("predicted_ms"), _MS),
        acceptance=ratio(accepted, drafted),
    )


_OLLAMA = re.compile(r"^\W*(total duration|load duration|prompt eval count|prompt eval duration|prompt eval rate|"
                     r"eval count|eval duration|eval rate):\s+(\S.*?)\s*$")  # fmt: skip
_OLLAMA_RUN = re.compile(r"ollama run (\S+)")


def read_ollama_lines(path: Path, findings: Findings) -> None:
    """Read what `ollama run --verbose` prints, once for each answer."""
    answer: dict[str, str] = {}
    for line in find_lines(path, ("duration:", "eval count:", "eval rate:", "ollama run ")):
        match = _OLLAMA.match(line)
        if match is None:
            run = _OLLAMA_RUN.search(line)
            if run:
                findings.guess("the command line", network=run[1])
            continue
        if match[1] in answer and match[1] == "total duration":
            _add_ollama(answer, findings)
            answer = {}
        answer[match[1]] = match[2]
    _add_ollama(answer, findings)


def _add_ollama(answer: dict[str, str], findings: Findings) -> None:
    findings.record(engine="ollama")
    counts = {name: to_number(answer.get(f"{name} count", "").split(" ")[0]) for name in ("prompt eval", "eval")}
    seconds = {name: to_seconds(answer.get(f"{name} duration", "")) for name in ("prompt eval", "eval")}
    _add_counted(counts, seconds, to_seconds(answer.get("load duration", "")), findings)


def _add_counted(
    counts: dict[str, float | None], seconds: dict[str, float | None], load_s: float | None, findings: Findings
) -> None:
    if counts["prompt eval"] and seconds["prompt eval"]:
        _add_prompt(counts["prompt eval"], seconds["prompt eval"], findings)
    if counts["eval"] and seconds["eval"]:
        _add_generated(counts["eval"], seconds["eval"], findings)
    if load_s and load_s > 1:
        findings.doubt(f"the model was loaded in {load_s:.3g} s, which is in the total duration and not in the rates")


def read_ollama_answers(path: Path, findings: Findings) -> None:
    """Read answers of Ollama's interface, with nanoseconds."""
    for answer in read_documents(path, findings):
        if to_number(answer.get("eval_count")) is None:
            continue
        findings.record(engine="ollama", network=answer.get("model"))
        counts = {name: to_number(answer.get(f"{key}_count")) for name, key in _OLLAMA_KEYS.items()}
        seconds = {name: scaled(answer.get(f"{key}_duration"), _NS) for name, key in _OLLAMA_KEYS.items()}
        _add_counted(counts, seconds, scaled(answer.get("load_duration"), _NS), findings)


_OLLAMA_KEYS = {"prompt eval": "prompt_eval", "eval": "eval"}


def read_lm_studio(path: Path, findings: Findings) -> None:
    """Read answers of LM Studio's interface."""
    for answer in read_documents(path, findings):
        stats, usage = answer.get("stats"), answer.get("usage")
        rate, first_s = to_number(dig(stats, "tokens_per_second")), to_number(dig(stats, "time_to_first_token"))
        if rate is None:
            continue
        runtime = (dig(answer, "runtime", "name"), dig(answer, "runtime", "version"))
        findings.record(
            engine="lm studio",
            network=answer.get("model") or dig(answer, "model_info", "arch"),
            weights=dig(answer, "model_info", "quant"),
            context=dig(answer, "model_info", "context_length"),
            runtime=" ".join(str(part) for part in runtime if part),
        )
        generated, whole_s = to_number(dig(usage, "completion_tokens")), to_number(dig(stats, "generation_time"))
        doubts = []
        computed = ratio(generated, whole_s)
        if computed and abs(computed - rate) > 0.05 * rate:
            doubts.append(
                f"{rate:.4g} tokens/s are reported, and {generated:g} tokens in {whole_s:g} s are {computed:.4g}"
            )
        if generated and generated < _LEAST_GENERATED:
            doubts.append(f"only {format_plural(round(generated), 'generated token')}: too few for a rate")
        findings.add("decode", tuple(doubts), batch_size=1, generated=generated, time_s=whole_s, tokens_per_s=rate,
                     tpot_s=ratio(1.0, rate), ttft_s=first_s)  # fmt: skip
        prompt = to_number(dig(usage, "prompt_tokens"))
        findings.add("prompt", ("the time to the first token, with what surrounds the prompt",), batch_size=1,
                     tokens=prompt, time_s=first_s, tokens_per_s=ratio(prompt, first_s))  # fmt: skip


_LM_STUDIO_LINE = re.compile(r"(\d+(?:\.\d*)?) tok/sec\W+(\d{1,15}) tokens\W+(\d+(?:\.\d*)?)s to first token")


def read_lm_studio_lines(path: Path, findings: Findings) -> None:
    """Read the line below an answer in LM Studio's window."""
    findings.record(engine="lm studio")
    for line in find_lines(path, (" tok/sec",)):
        match = _LM_STUDIO_LINE.search(line)
        if match:
            rate, generated, first_s = (float(text) for text in match.groups())
            findings.add("decode", batch_size=1, generated=generated, tokens_per_s=rate, tpot_s=ratio(1.0, rate),
                         ttft_s=first_s)  # fmt: skip


_MLX_CASE = re.compile(r"prompt_tokens=(\d{1,15}), generation_tokens=(\d{1,15}), batch_size=(\d{1,15})")
_MLX_MEANS = re.compile(
    r"(Averages|Trial \d+):\s+prompt_tps=(\d+(?:\.\d*)?), generation_tps=(\d+(?:\.\d*)?), peak_memory=(\d+(?:\.\d*)?)"
)
_MLX_PRINTED = re.compile(r"(Prompt|Generation): (\d+(?:\.\d*)?) tokens, (\d+(?:\.\d*)?) tokens-per-sec")
_MLX_MEMORY = re.compile(r"Peak memory: (\d+(?:\.\d*)?) GB")


def read_mlx(path: Path, findings: Findings) -> None:
    """Read what `mlx_lm.benchmark` and `mlx_lm.generate` print."""
    findings.record(engine="mlx-lm")
    tokens = generated = batch = None
    trials: list[tuple[float, ...]] = []
    for line in find_lines(path, ("_tps=", "generation_tokens=", "tokens-per-sec", "Peak memory")):
        if match := _MLX_CASE.search(line):
            tokens, generated, batch = (float(text) for text in match.groups())
        elif match := _MLX_MEANS.search(line):
            figures = tuple(float(text) for text in match.groups()[1:])
            if match[1] == "Averages":
                _add_mlx(tokens, generated, batch, figures, findings)
                trials = []
            else:
                trials.append(figures)
        elif match := _MLX_PRINTED.search(line):
            count, rate = float(match[2]), float(match[3])
            if match[1] == "Prompt":
                _add_prompt(count, count / rate if rate else 0.0, findings)
            else:
                _add_generated(count, count / rate if rate else 0.0, findings)
        elif match := _MLX_MEMORY.search(line):
            findings.record(peak_memory_bytes=float(match[1]) * 1e9)
    for figures in trials:  # the run ended before its averages
        _add_mlx(tokens, generated, batch, figures, findings)


def _add_mlx(
    tokens: float | None, generated: float | None, batch: float | None, figures: tuple[float, ...], findings: Findings
) -> None:
    prompt_rate, rate, memory_gb = figures
    findings.add("prompt", batch_size=batch, tokens=tokens, tokens_per_s=prompt_rate, memory_bytes=memory_gb * 1e9)
    findings.add("decode", batch_size=batch, depth=tokens, generated=generated, tokens_per_s=rate,
                 tpot_s=ratio(batch or 1.0, rate), memory_bytes=memory_gb * 1e9)  # fmt: skip


_EXLLAMA = re.compile(
    r"^\W*(?:(Length|Context|Position)\s+(\d{1,15})(?: \+ \d+)?(?: tokens)?:\s+([\d.,]+) (?:tokens/s|t/s))\s*$",
    re.MULTILINE,
)
_BITRATE = re.compile(r"Bitrate: (\d+(?:\.\d*)?) bpw")


def read_exllama(path: Path, findings: Findings) -> None:
    """Read the speeds that ExLlamaV2 and V3 print for lengths of prompts and of contexts."""
    findings.record(engine="exllama")
    for line in all_lines(path):
        bits = _BITRATE.search(line)
        if bits:
            findings.record(weights=f"{bits[1]} bits")
        match = _EXLLAMA.match(line)
        if match is None:
            continue
        count, rate = float(match[2]), to_number(match[3])
        if match[1] == "Length":
            findings.add("prompt", batch_size=1, tokens=count, tokens_per_s=rate, time_s=ratio(count, rate))
        else:
            findings.add("decode", batch_size=1, depth=count, tokens_per_s=rate, tpot_s=ratio(1.0, rate))


FORMATS = (
    ResultFormat(
        "llama-server", "llama-server", "the timings of llama-server and llama-cli, printed or in answers",
        read_llama_answers, keys=("predicted_n", "predicted_per_second"),
    ),
    ResultFormat(
        "llama-timings", "llama.cpp", "", read_llama_timings,
        sign=re.compile(f"{_EVAL.pattern}|{_SLOT.pattern}"), markers=("eval time", "print_timing:"),
    ),
    ResultFormat(
        "ollama-answers", "Ollama", "Ollama's answers, and what `--verbose` prints", read_ollama_answers,
        keys=("eval_count", "eval_duration"),
    ),
    ResultFormat(
        "ollama", "Ollama", "", read_ollama_lines,
        sign=re.compile(r"^\W*eval rate:\s+\d+(?:\.\d*)? tokens/s", re.MULTILINE), markers=("eval rate:",),
    ),
    ResultFormat(
        "lm-studio", "LM Studio", "answers of LM Studio", read_lm_studio, keys=("stats", "tokens_per_second"),
    ),
    ResultFormat(
        "lm-studio-lines", "LM Studio", "", read_lm_studio_lines, sign=_LM_STUDIO_LINE, markers=(" tok/sec",),
    ),
    ResultFormat(
        "mlx-lm", "mlx-lm", "what `mlx_lm.benchmark` and `mlx_lm.generate` print", read_mlx,
        sign=re.compile(f"{_MLX_MEANS.pattern}|{_MLX_PRINTED.pattern}"), markers=("_tps=", "tokens-per-sec"),
    ),
    ResultFormat(
        "exllama", "ExLlama", "the speeds that ExLlama prints", read_exllama, sign=_EXLLAMA,
        markers=("tokens/s", "t/s"),
    ),
)  # fmt: skip
