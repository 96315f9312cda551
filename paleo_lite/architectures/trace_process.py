"""Tracing of configs by ``transformers`` in a process of its own, with limits of memory and time, and a cache on disk.

Answers, also failures, are kept by the content of the config, the question and the versions of the libraries, so that
a repeated question does not import torch. The process itself begins in `trace_child`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import msgspec

from ..child import child_command, child_environment
from ..counting import Layer
from ..errors import BadDescriptor, BadFile, BadValue, FactoryFailed, MissingExtra, PaleoError, TraceFailed
from ..files import cache_folder, discard, write_atomically
from .descriptor import TRACER
from .network import Network, SequenceLengths, SequenceOptions

MEMORY_BYTES = int(2.5 * 2**30)
"""Most data of a tracing process; with the code of the libraries it stays below 3 GB."""

PROCESSOR_S = 120
"""Most processor time of a trace, which does not depend on how busy the machine is."""

PATIENCE_S = 1200
"""Longest time until a trace is given up, for a process that waits instead of computing."""

TRACE = "paleo_lite.architectures.hugging_face:trace_with_transformers"
"""Function that builds and traces a model in the process, named here because it reads configs itself."""

VERSION = 4
"""Version of the answers. Increase it when the same config gives another answer."""

_RAISED: tuple[type[PaleoError], ...] = (BadDescriptor, FactoryFailed, TraceFailed, BadValue)
"""Failures that keep their class on the way out of the process."""

_TYPE_NAME = re.compile(r'^\s*\("([\w.-]+)", "\w+"\)', re.MULTILINE)


TRACE_MODULE = "paleo_lite.architectures.pipelines.tracing:trace_config_of_part"
"""The same for a part of a pipeline."""


class TraceRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A question to the process: the config, and as what it is traced; of a part of a pipeline its class and sizes."""

    path: str
    config: bytes
    image_size: int | None
    options: SequenceOptions
    module: str = ""
    sizes: dict[str, int] = {}
    name: str = ""
    has_cache: bool = True


class TraceReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The traced network, or the class and the sentence of a failure."""

    name: str = ""
    inputs: tuple[tuple[int, ...], ...] = ()
    layers: tuple[Layer, ...] = ()
    parameters: int = 0
    source: str = ""
    notes: tuple[str, ...] = ()
    lengths: SequenceLengths | None = None
    group: str = ""
    failure: str = ""
    message: str = ""
    resident_bytes: int = 0
    """Largest resident memory of the process, where the operating system reports it."""


@lru_cache(1)
def traceable_types() -> frozenset[str]:
    """Return the model types that the installed ``transformers`` knows; none where it or torch is not installed.

    They are read from the text of its list of configs, so that neither library is imported.
    """
    if find_spec("torch") is None:
        return frozenset()
    library = find_spec("transformers")
    if library is None or not library.submodule_search_locations:
        return frozenset()
    folder = Path(library.submodule_search_locations[0]) / "models" / "auto"
    for name in ("auto_mappings.py", "configuration_auto.py"):  # the first since transformers 5
        if (folder / name).is_file():
            text = (folder / name).read_text(encoding="utf-8")
            return frozenset(_TYPE_NAME.findall(text.partition("CONFIG_MAPPING_NAMES")[2].partition("\n)")[0]))
    return frozenset()


def trace_config(
    data: bytes,  # content of the config
    path: str,  # path of the config, for messages
    image_size: int | None = None,  # height and width of the images, in place of the config's
    options: SequenceOptions | None = None,  # tokens and phase
    has_cache: bool = True,  # whether the model keeps a KV cache; otherwise every step of decoding computes all tokens
) -> Network:
    """Return the network of a config as ``transformers`` builds it.

    Raise BadDescriptor, BadValue, FactoryFailed or TraceFailed: what the library raises is told in one sentence.
    """
    network = _network_of(TraceRequest(path, data, image_size, options or SequenceOptions(), has_cache=has_cache))
    if network.lengths is None:
        return network

    def rebuild(changed: SequenceOptions) -> Network:
        return trace_config(data, path, image_size, changed, has_cache)

    return network._replace(rebuild=rebuild)


def trace_module(
    # Content of the config, and its path for messages.
    data: bytes,
    path: str,
    module: str,  # class of the module, one of `paleo_lite.architectures.pipelines.modules.MODULES`
    sizes: dict[str, int],  # free sizes, in units of the module's grid
    name: str,  # name of the network
) -> Network:
    """Return the network of a part of a pipeline, as the installed ``diffusers`` or ``transformers`` builds it.

    Raise MissingExtra if diffusers is not installed, and BadDescriptor, BadValue, FactoryFailed or TraceFailed for what
    the library raises, which is told in one sentence.
    """
    return _network_of(TraceRequest(path, data, None, SequenceOptions(), module, sizes, name))


def _network_of(request: TraceRequest) -> Network:
    """Return the network of the answer to a question."""
    reply = ask(request)
    if reply.failure:
        failures = {kind.__name__: kind for kind in _RAISED}
        raise failures.get(reply.failure, TraceFailed)(reply.message)
    return Network(
        reply.name,
        reply.inputs,
        reply.layers,
        reply.parameters,
        reply.source,
        reply.notes,
        reply.lengths,
        group=reply.group,
    )


def ask(request: TraceRequest) -> TraceReply:
    """Return the answer to a question, from the disk if it was asked before.

    Raise MissingExtra if a part of a pipeline is asked for the first time, and diffusers is not installed, and
    TraceFailed if the process is beyond its time, or ends without an answer.
    """
    file = cache_folder() / f"traced-{_key(request)}.json"
    stored = _read_answer(file)
    if stored is not None:
        return stored
    if request.module and find_spec("diffusers") is None:
        raise MissingExtra(f"tracing {request.path}", "diffusers")
    return _ask(request, file)


def _key(request: TraceRequest) -> str:
    """Return the name of an answer: a digest of the question and of the versions."""
    from hashlib import sha256

    versions = []
    for library in ("torch", "transformers", *(["diffusers"] if request.module else [])):
        try:
            versions.append(version(library))
        except PackageNotFoundError:
            versions.append("")
    parts = (VERSION, TRACER, MEMORY_BYTES, versions)
    return sha256(msgspec.json.encode(request) + msgspec.json.encode(parts)).hexdigest()[:32]


def _read_answer(file: Path) -> TraceReply | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=TraceReply)
    except OSError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError):  # a damaged file is written again
        discard(file)
        return None


def _ask(request: TraceRequest, file: Path) -> TraceReply:
    """Return the answer of a process, and write it into the file."""
    data = _run_child(request)
    answer = msgspec.json.decode(data, type=TraceReply)
    try:
        write_atomically(file, data)
    except OSError as error:
        note = f"the trace could not be cached: {error}"
        return msgspec.structs.replace(answer, notes=(*answer.notes, note))
    return answer


def _run_child(request: TraceRequest) -> bytes:
    """Return what the tracing process answers.

    It runs by the path of its file in an empty folder, so that no module of the current folder is imported.

    Raise TraceFailed if it needs more processor time than `PROCESSOR_S`, or ends without an answer.
    """
    import tempfile

    child = Path(__file__).with_name("trace_child.py")
    command = child_command(child, [str(os.getpid()), str(PROCESSOR_S), str(MEMORY_BYTES)])
    with tempfile.TemporaryDirectory(prefix="paleo-lite-") as folder:
        try:
            process = subprocess.run(
                command, input=msgspec.json.encode(request), capture_output=True, timeout=PATIENCE_S, check=False,
                cwd=folder, env=child_environment(),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise TraceFailed(f"{request.path} cannot be traced within {PATIENCE_S} s") from None
    if process.stdout:
        return process.stdout
    if _TIME_SIGNAL is not None and process.returncode == -_TIME_SIGNAL:
        raise TraceFailed(f"{request.path} cannot be traced within {PROCESSOR_S} s of processor time")
    lines = process.stderr.decode(errors="replace").strip().splitlines()
    reason = lines[-1][:200] if lines else f"it ended with {process.returncode}"
    raise TraceFailed(f"{request.path} cannot be traced: the tracing process failed: {reason}")


_TIME_SIGNAL = getattr(signal, "SIGXCPU", None)
"""Signal that ends a process beyond its processor time; Windows has no such limit."""


def resident_bytes() -> int:
    """Return the largest resident memory of this process since it began; 0 on systems other than Linux.

    ``ru_maxrss`` would begin with the memory of the process that started this one.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return 0
    match = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return 1024 * int(match[1]) if match else 0


def answer(request: TraceRequest) -> TraceReply:
    """Return the answer to a question; every exception becomes a failure in one sentence."""
    from pkgutil import resolve_name

    try:
        if request.module:
            trace_part = resolve_name(TRACE_MODULE)
            network = trace_part(request.config, request.path, request.module, request.sizes, request.name)
        else:
            trace_with_transformers = resolve_name(TRACE)
            network = trace_with_transformers(
                request.config, request.path, request.image_size, request.options, request.has_cache
            )
    except PaleoError as error:
        kind = next((kind for kind in _RAISED if isinstance(error, kind)), TraceFailed)
        text = _sentence(request.path, error)
        if kind is TraceFailed and request.path not in text:
            text = f"{request.path} cannot be traced: {text}"
        return TraceReply(failure=kind.__name__, message=text)
    except BaseException as error:
        text = _sentence(request.path, error)
        return TraceReply(
            failure="TraceFailed", message=f"{request.path} cannot be traced: {type(error).__name__}: {text}"
        )
    return TraceReply(
        name=network.name,
        inputs=network.inputs,
        layers=network.layers,
        parameters=network.parameters,
        source=network.source,
        notes=network.notes,
        lengths=network.lengths,
        group=network.group,
    )


def _sentence(path: str, error: BaseException) -> str:
    """Return an error as one line; of a lack of memory, how much a trace may allocate."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "not enough memory" in text or "allocate memory" in text:
        return f"{path} cannot be traced within {MEMORY_BYTES / 1e9:.1f} GB: building the model allocates more"
    return text[:400]


def answer_bytes(question: bytes) -> bytes:
    """Return the answer to an encoded question, as `trace_child` writes it."""
    request = msgspec.json.decode(question, type=TraceRequest)
    reply = msgspec.structs.replace(answer(request), resident_bytes=resident_bytes())
    return encode_answer(reply, request.path)


def encode_answer(reply: TraceReply, path: str) -> bytes:
    """Return an answer as JSON; the path of the config is for the message of a failure."""
    try:
        # Attributes that JSON does not know, such as types of torch's, are stored as text.
        return msgspec.json.encode(reply, enc_hook=str)
    except (TypeError, ValueError) as error:
        raise BadFile(f"{path}: the trace cannot be stored ({error})") from None
