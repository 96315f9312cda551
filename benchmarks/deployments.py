"""Time and answer of `paleo-lite serve` and `serve --advise`, compared with aiconfigurator's command line.

Both are asked the same: a network on one device under vLLM with a number of users, and the best deployment of that
network on eight devices whose users wait at most so long. Each command is timed as a separate process, from start to
exit, and its answer stands beside its time.

aiconfigurator (on the package index) pins other versions of libraries: install it into an environment of its own, and
name its executable in AICONFIGURATOR or put it on the PATH. Without it, only paleo-lite is timed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

from .turns import Turns, take_turns


class Question(NamedTuple):
    """A network on a device under traffic, by its names on both sides."""

    network: str = "llama-3.1-8b"
    gpu: str = "h100-sxm"
    peer_network: str = "meta-llama/Meta-Llama-3.1-8B"
    peer_gpu: str = "h100_sxm"
    input_tokens: int = 1024
    output_tokens: int = 256
    users: int = 128
    first_token_ms: int = 1000
    token_ms: int = 30


QUESTION = Question()

_RATE = re.compile(r"(?:tokens/s/gpu|Per-GPU Throughput):\s+([\d.,]+)")
_FIRST = re.compile(r"TTFT:\s+([\d.]+) ?ms")
_TOKEN = re.compile(r"TPOT:\s+([\d.]+) ?ms")


def own_command(question: Question, *, advise: bool) -> list[str]:
    """Return the command of paleo-lite."""
    lengths = ["--input-tokens", str(question.input_tokens), "--output-tokens", str(question.output_tokens)]
    command = [sys.executable, "-m", "paleo_lite", "serve", question.network, "--gpu", question.gpu, *lengths]
    command += ["--weights", "bf16", "--format", "json"]
    if advise:
        return [*command, "--advise", "cost", "--slo", f"ttft={question.first_token_ms}ms,tpot={question.token_ms}ms"]
    return [*command, "--concurrency", str(question.users)]


def peer_command(executable: str, question: Question, *, advise: bool) -> list[str]:
    """Return the command of aiconfigurator."""
    load = ["--model-path", question.peer_network, "--system", question.peer_gpu, "--backend", "vllm"]
    load += ["--isl", str(question.input_tokens), "--osl", str(question.output_tokens), "--no-color"]
    if advise:
        limits = ["--ttft", str(question.first_token_ms), "--tpot", str(question.token_ms)]
        return [executable, "cli", "default", *load, "--total-gpus", "8", "--serving-mode", "agg", *limits]
    return [executable, "cli", "estimate", *load, "--batch-size", str(question.users), "--ctx-tokens", "8192"]


def read_own(text: str) -> str:
    """Return the answer of paleo-lite: tokens per second of a device, time to first token, and time per token."""
    answer = json.loads(text)
    if answer["advice"] is not None:
        best = answer["advice"]["best"]
        return _describe(best["tokens_per_s_per_gpu"], best["ttft_s"], best["tpot_s"])
    latencies = answer["latencies"]
    rate = answer["figures"]["output_tokens_per_s_per_gpu"]["value"]
    return _describe(rate, latencies["ttft_s"]["p50"]["value"], latencies["tpot_s"]["p50"]["value"])


def read_peer(text: str) -> str:
    """Return the answer of aiconfigurator, from the lines that it prints."""
    rate, first_ms, token_ms = (_find_number(pattern, text) for pattern in (_RATE, _FIRST, _TOKEN))
    return _describe(rate, first_ms / 1000, token_ms / 1000)


def _find_number(pattern: re.Pattern[str], text: str) -> float:
    """Return the number that a pattern finds in the output of aiconfigurator."""
    match = pattern.search(text)
    if match is None:
        raise SystemExit(f"aiconfigurator printed no throughput or no latency:\n{text[-2000:]}")
    return float(match[1].replace(",", ""))


def _describe(tokens_per_s: float, first_token_s: float, token_s: float) -> str:
    return f"{tokens_per_s:,.0f} tokens/s per GPU, {1e3 * first_token_s:.0f} ms and {1e3 * token_s:.1f} ms per token"


def _ask(name: str, command: list[str], read: Callable[[str], str], answers: dict[str, str]) -> Callable[[], object]:
    """Return a contestant that runs a command and keeps its answer by its name."""

    def ask() -> None:
        answers[name] = read(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    return ask


def measure(repeats: int) -> list[Turns]:
    """Time both questions."""
    executable = os.environ.get("AICONFIGURATOR") or shutil.which("aiconfigurator")
    tables = []
    for what, advise in (("one deployment", False), ("advice on the deployment", True)):
        answers: dict[str, str] = {}
        contestants = {"paleo-lite": _ask("paleo-lite", own_command(QUESTION, advise=advise), read_own, answers)}
        if executable:
            command = peer_command(executable, QUESTION, advise=advise)
            contestants["aiconfigurator"] = _ask("aiconfigurator", command, read_peer, answers)
        seconds = take_turns(contestants, min(repeats, 3))
        tables.append(Turns(f"{what}, {QUESTION.network} on {QUESTION.gpu}", seconds, remarks=answers))
    return tables
