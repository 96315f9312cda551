"""Write the table of `model-types.md`: how each type of transformers is read, and with how many parameters.

Every type that writes text is built in its default config on the meta device, in a process of its own with limits of
memory and processor time, and its parameters are compared with those that the config alone gives. A config names the
class that publishers name: the one with the vision tower, if there is one. Each is asked for a prompt and for a step of
decoding; types without a record are traced as `predict` does it, and the largest resident memory of a trace is noted.

    python docs/model_types.py
"""

from __future__ import annotations

import json
import multiprocessing
import resource
from pathlib import Path
from typing import Any

BYTES, PROCESSOR_TIME_S = 3 * 10**9, 300
TOKENS = 128
PAGE = Path(__file__).with_name("model-types.md")
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"

NOTHING: dict[str, Any] = {"theirs": None, "ours": None, "guess": None, "how": {}, "why": "", "resident_bytes": 0}

_LAYERS_OF_LFM2 = ["conv", "conv", "full_attention", "conv", "conv", "conv"] * 6
COMPLETED: dict[str, dict[str, Any]] = {
    "dbrx": {"attn_config": {"kv_n_heads": 8, "rope_theta": 500000.0}},
    "deepseek_v2": {"num_experts_per_tok": 6, "n_shared_experts": 2},
    "dots1": {"n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 2},
    "gemma4_assistant": {
        "text_config": {
            "model_type": "gemma4_text",
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
            "num_kv_shared_layers": 30,
        }
    },
    "glm4_moe": {"head_dim": 128},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "lfm2_moe": {"layer_types": _LAYERS_OF_LFM2[:32]},
    "ministral": {"head_dim": 128},
    "nemotron": {"head_dim": 128, "num_key_value_heads": 8},
}
"""Sizes that the default config of a type lacks, so that `transformers` does not build it, from published configs."""

EXPLAINED = {
    "got_ocr2": "the projection between its parts is left out",
    "longcat_flash": "`transformers` keeps a matrix for experts that compute nothing; the published total is 560 G",
}
"""Reasons of differences."""


def model_types() -> dict[str, str]:
    """Return the model types of `transformers` that write text, with the class that publishers name."""
    from transformers.models.auto import modeling_auto

    with_images = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    text = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return {model_type: with_images.get(model_type, name) for model_type, name in sorted(text.items())}


def compare(model_type: str, class_name: str, connection: Any) -> None:
    """Send how a type is read, and the numbers of parameters of ours and of the module."""
    resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_TIME_S, PROCESSOR_TIME_S))
    answer: dict[str, Any] = dict(NOTHING)
    try:
        import torch
        import transformers

        config = transformers.AutoConfig.for_model(model_type, **COMPLETED.get(model_type, {}))
        fields = json.loads(json.dumps(config.to_dict(), default=str))
        answer |= read({**fields, "model_type": model_type, "architectures": [class_name]})
        decoder_config = getattr(config, "decoder", None)  # of MusicGen
        with torch.device("meta"):
            factory = getattr(transformers, class_name)._from_config
            module = factory(decoder_config if isinstance(decoder_config, transformers.PreTrainedConfig) else config)
        answer["theirs"] = sum(parameter.numel() for parameter in module.parameters())
    except Exception as error:
        answer["why"] = answer["why"] or f"the default config describes no valid model ({type(error).__name__})"
    connection.send(answer)


def read(fields: dict[str, Any]) -> dict[str, Any]:
    """Return how the config of a type is read in each phase, with its parameters, or why it is not."""
    from paleo_lite.architectures import trace_process
    from paleo_lite.architectures.model_config import read_config
    from paleo_lite.architectures.network import SequenceOptions
    from paleo_lite.errors import PaleoError

    data = json.dumps(fields).encode()
    answer: dict[str, Any] = {"how": {}, "resident_bytes": 0}
    traceable, ask = trace_process.traceable_types, trace_process.ask

    def ask_here(request: trace_process.TraceRequest) -> trace_process.TraceReply:
        """Return the answer of this process, which has the limits of a tracing process."""
        answered = trace_process.answer(request)
        answer["resident_bytes"] = trace_process.resident_bytes()
        return answered

    phases = {
        "prefill": SequenceOptions(TOKENS, phase="prefill"),
        "decode": SequenceOptions(context=TOKENS - 1, phase="decode"),  # one more token is all that Blenderbot knows
    }
    try:
        trace_process.ask = ask_here
        trace_process.traceable_types = frozenset  # type: ignore[assignment]  # without transformers
        alone = read_config(data, "config.json", None, phases["decode"])
        if "a guess with" in alone.name:
            answer["guess"] = alone.parameters
    except PaleoError as error:
        answer["why"] = reason_of(error)
    finally:
        trace_process.traceable_types = traceable
    try:
        for phase, options in phases.items():
            network = read_config(data, "config.json", None, options)
            answer |= {"ours": network.parameters, "how": {**answer["how"], phase: way_of(network)}, "why": ""}
    except PaleoError as error:
        answer["why"] = reason_of(error)
    finally:
        trace_process.ask = ask
    return answer


def way_of(network: Any) -> str:
    """Return how a network was read."""
    if "a guess with" in network.name:
        return "guess"
    if not network.source.startswith("transformers "):
        return "record"
    if any("without a KV cache" in note for note in network.notes):
        return "transformers, without a cache"
    return "transformers"


def reason_of(error: Exception | str) -> str:
    """Return the reason of a failure for the table."""
    text = str(error).replace("config.json cannot be traced: ", "").replace("config.json cannot be built: ", "")
    text = text.removeprefix("config.json: ").partition(";")[0].partition(", which is not read")[0]
    return text.replace("|", "/")[:100]


def ask(named: tuple[str, str]) -> dict[str, Any]:
    """Return the row of a type and its class, from a process of its own."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=compare, args=(*named, sender))
    process.start()
    sender.close()
    try:
        answer = receiver.recv()
    except EOFError:
        answer = {**NOTHING, "why": "beyond the limit of memory or time"}
    process.join()
    return {"type": named[0], **answer}


def rows() -> list[dict[str, Any]]:
    """Return a row for each type; imports before the processes fork, so that none repeats them."""
    from paleo_lite.architectures import hugging_face, model_config, trace  # noqa: F401
    from paleo_lite.architectures.torch_import import import_torchvision

    import_torchvision("the table of model types")
    from transformers import AutoConfig, AutoModelForCausalLM, logging  # noqa: F401

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]

    return [ask(named) for named in model_types().items()]


def table(types: list[dict[str, Any]]) -> str:
    """Return the summary and the table in Markdown."""
    lines: list[str] = []
    by_record = [row for row in types if row["how"].get("prefill") == "record"]
    for how, rows_of, key in (("record", by_record, "ours"), ("guess", types, "guess")):
        compared = [row for row in rows_of if row[key] and row["theirs"]]
        near = sum(abs(row[key] / row["theirs"] - 1) <= 0.01 for row in compared)
        lines.append(f"- by {how}: {near} of {len(compared)} types within 1%")
    for phase in ("prefill", "decode"):
        ways: dict[str, int] = {}
        for row in types:
            way = row["how"].get(phase, "not read")
            ways[way] = ways.get(way, 0) + 1
        listed = ", ".join(
            f"{count} {way if way == 'not read' else f'by {way}'}" for way, count in sorted(ways.items())
        )
        lines.append(f"- of {len(types)} types in {phase}: {listed}")
    largest = max(row["resident_bytes"] for row in types)
    lines.append(f"- largest resident memory of a trace: {largest / 1e9:.2f} GB")
    lines += ["", "| type | read by | step of decoding by | parameters | of transformers | difference | of the guess |"]
    lines.append("| :-- | :-- | :-- | --: | --: | --: | --: |")
    for row in types:
        ours, theirs, how = row["ours"], row["theirs"], row["how"]
        differences = [
            f"{100 * (count / theirs - 1):+.1f}%" if count and theirs else "" for count in (ours, row["guess"])
        ]
        counts = [f"{count:,}" if count else "" for count in (ours, theirs)]
        decode = how.get("decode", f"not read: {row['why']}")
        cells = [
            row["type"],
            how.get("prefill", ""),
            "" if decode == how.get("prefill") else decode,
            *counts,
            *differences,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"`{name}`: {reason}." for name, reason in EXPLAINED.items())]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text(before + BEGIN + table(rows()) + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
