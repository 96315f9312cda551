"""What a text says of a run beside its report: the commands of server and client, and a line about the hardware."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from itertools import islice
from pathlib import Path

from ..units import is_integer
from .configuration import find_gpu
from .findings import Findings
from .text import find_lines, to_number

_NETWORK = r"(?:(?: +--?[a-z][\w-]*[ =]+\d\S*)* +(?P<network>[^-\s]\S*))?"
"""Network behind a command, also where options with numbers stand before it: ``vllm serve -tp 8 NETWORK``."""
_SERVERS = {
    re.compile(rf"\bvllm serve{_NETWORK}"): "vllm",
    re.compile(r"\bvllm\.entrypoints\.[\w.]+"): "vllm",
    re.compile(r"\bsglang(?:\.launch_server| serve)\b"): "sglang",
    re.compile(rf"\btrtllm-serve(?: +serve)?{_NETWORK}"): "tensorrt-llm",
}
"""Commands that start a server, with its engine; each uses one device unless told otherwise."""
_CLIENTS = {
    re.compile(r"\bvllm bench (?:serve|throughput|latency)\b"): "vllm",
    re.compile(r"\bsglang\.bench_\w+"): "sglang",
    re.compile(r"\bbenchmark_serving(?:\.py)?\b"): "",
}
"""Commands of the clients that engines bring with them; several engines have a copy of one that vLLM had."""

_OPTIONS = {
    "--model": "network", "--model-path": "network", "--tensor-parallel-size": "tensor", "-tp": "tensor",
    "--tp": "tensor", "--tp-size": "tensor", "--tp_size": "tensor", "--pipeline-parallel-size": "pipeline",
    "-pp": "pipeline", "--pp": "pipeline", "--pp-size": "pipeline", "--data-parallel-size": "data", "-dp": "data",
    "--dp": "data", "--dp-size": "data", "--ep-size": "expert_parallel", "--ep_size": "expert_parallel",
    "--dtype": "precision", "--quantization": "weights", "-q": "weights", "--kv-cache-dtype": "kv_cache",
    "--max-num-seqs": "max_num_seqs", "--max-running-requests": "max_num_seqs", "--max_batch_size": "max_num_seqs",
    "--max-num-batched-tokens": "chunk_tokens", "--chunked-prefill-size": "chunk_tokens",
}  # fmt: skip
"""Options of vLLM, SGLang and trtllm-serve, and the facts that they state."""

_VALUE = re.compile(r"""(?<!\S)(--?[a-zA-Z][\w-]*)(?:=| +)("[^"]*"|'[^']*'|[^-\s"'][^\s"']*)""")
_UNKNOWN = re.compile(r"[$`{}<>]|auto$|none$", re.IGNORECASE)
"""Values that say nothing: a variable of the shell, a place to fill in, the default."""

_HARDWARE = re.compile(r"\W*(?:hardware|gpus?|devices?|accelerators?)\b\W{1,8}(?P<text>\w.{1,200})", re.IGNORECASE)
_MOST_LINES = 20_000
"""Lines with a marker that are read: commands stand before the requests of a log."""
_MARKERS = ("vllm", "sglang", "trtllm-serve", "benchmark_serving", " -", "ardware", "GPU", "gpu", "evice", "ccelerator")


def note_description(path: Path, findings: Findings) -> None:
    """Guess facts of a run from the commands and the hardware that a text names; what it states twice must agree."""
    stated: dict[str, dict[str, None]] = defaultdict(dict)  # values of each fact, in their order
    named_gpus: dict[tuple[str, int | None], None] = {}
    in_command = is_server_shown = is_divided = False
    for line in islice(find_lines(path, _MARKERS), _MOST_LINES):
        for command, engine in {**_SERVERS, **_CLIENTS}.items():
            if match := command.search(line):
                in_command = True
                is_server_shown = is_server_shown or command in _SERVERS
                if engine:
                    stated["engine"][engine] = None
                network = match.groupdict().get("network")
                if network and not _UNKNOWN.search(network):
                    stated["network"][network] = None
        if in_command:
            for option, value in _VALUE.findall(line):
                text = value.strip("\"'")
                is_divided = is_divided or _OPTIONS.get(option) == "tensor"
                if option in _OPTIONS and text and not _UNKNOWN.search(text):
                    stated[_OPTIONS[option]][text] = None
            in_command = line.rstrip().endswith("\\")
        elif match := _HARDWARE.match(line):
            gpu, count = find_gpu(match["text"])
            if gpu:
                named_gpus[gpu, count] = None
    for fact, values in stated.items():
        if len(values) > 1:
            findings.doubt(f"the commands name several values of {fact}: {', '.join(values)}")
            continue
        (text,) = values
        number = to_number(text)
        findings.guess("a command in the text", **{fact: text if number is None else number})
    if is_server_shown and not is_divided:
        findings.guess("the default of the server's command", tensor=1)
    if len(named_gpus) > 1:
        findings.doubt(f"the text names several devices: {', '.join(gpu for gpu, _ in named_gpus)}")
    for gpu, count in named_gpus if len(named_gpus) == 1 else ():
        findings.guess("a line about the hardware", gpu=gpu, devices=count)
        _compare_devices(findings, count)


def _compare_devices(findings: Findings, count: int | None) -> None:
    """Say where a text names more devices than its server uses."""
    degrees = [findings.configuration.get(name, 1) for name in ("tensor", "pipeline", "data")]
    if count is None or "tensor" not in findings.configuration or not all(map(is_integer, degrees)):
        return
    server_devices = math.prod(degrees)
    if server_devices < count:
        findings.doubt(f"the text names {count} devices, and the command of the server uses {server_devices}")
