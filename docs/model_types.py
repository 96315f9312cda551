"""Write the table of `model-types.md`: how each type of transformers is read, and with how many parameters.

Every type that writes text is built in its default config on the meta device, in a process of its own with limits of
memory and time, and its parameters are compared with those that the config alone gives. Types without a record are
asked in a phase: they are traced as `predict` does it, and the largest resident memory of a trace is noted.

    python docs/model_types.py
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

BYTES, SECONDS = 3 * 10**9, 300
PAGE = Path(__file__).with_name("model-types.md")
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"


NOTHING = {"theirs": None, "ours": None, "guess": None, "how": "not read", "why": "", "resident_bytes": 0}


def model_types() -> list[str]:
    """Return the model types of `transformers` that write text."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def compare(model_type: str, connection: Any) -> None:
    """Send how a type is read, and the numbers of parameters of ours and of the module."""
    resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
    signal.alarm(SECONDS)
    answer: dict[str, Any] = dict(NOTHING)
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.for_model(model_type)
        fields = json.loads(json.dumps(config.to_dict(), default=str))
        answer |= read({**fields, "model_type": model_type, "architectures": None})
        with torch.device("meta"):
            module = AutoModelForCausalLM.from_config(config)
        answer["theirs"] = sum(parameter.numel() for parameter in module.parameters())
    except Exception as error:
        answer["why"] = answer["why"] or f"the default config is none of a model ({type(error).__name__})"
    connection.send(answer)


def read(fields: dict[str, Any]) -> dict[str, Any]:
    """Return how the config of a type is read, with the number of parameters, or why it is not."""
    from paleo_lite.architectures import trace_process
    from paleo_lite.architectures.language_models.families import FAMILIES
    from paleo_lite.architectures.model_config import encoder_families, read_config
    from paleo_lite.architectures.network import SequenceOptions
    from paleo_lite.errors import PaleoError

    data = json.dumps(fields).encode()
    found: dict[str, Any] = {}
    traceable = trace_process.traceable_types
    try:
        trace_process.traceable_types = frozenset  # type: ignore[assignment]  # without transformers
        network = read_config(data, "config.json")
        how = "record of an encoder" if fields["model_type"] in encoder_families() else "record"
        if "a guess with" in network.name:
            how, found["guess"] = "guess", network.parameters
        found |= {"how": how, "ours": network.parameters}
    except PaleoError as error:
        found |= {"how": "not read", "why": f"not read: {reason_of(error)}"}
    finally:
        trace_process.traceable_types = traceable
    if found["how"].startswith("record") or fields["model_type"] in FAMILIES:
        return found
    try:
        answer = trace_process.ask(trace_process.Request("config.json", data, None, SequenceOptions()))
    except PaleoError as error:
        return {**found, "why": f"not read: {reason_of(error)}"}
    if answer.failure:
        found["why"] = f"not read: {reason_of(answer.message)}"
    else:
        found |= {"how": "transformers", "ours": answer.parameters}
    return {**found, "resident_bytes": answer.resident_bytes}


def reason_of(error: Exception | str) -> str:
    """Return the reason of a failure for the table."""
    text = str(error).replace("config.json cannot be traced: ", "").replace("config.json cannot be built: ", "")
    text = text.removeprefix("config.json: ").partition(";")[0].partition(", which is not read")[0]
    return text.replace("|", "/")[:100]


def ask(model_type: str) -> dict[str, Any]:
    """Return the row of a type, from a process of its own."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=compare, args=(model_type, sender))
    process.start()
    sender.close()
    try:
        answer = receiver.recv()
    except EOFError:
        answer = {**NOTHING, "how": "not read", "why": "beyond the limit of memory or time"}
    process.join()
    return {"type": model_type, **answer}


def rows() -> list[dict[str, Any]]:
    """Return a row for each type; imports before the processes fork, so that none repeats them."""
    from paleo_lite.architectures import model_config  # noqa: F401
    from paleo_lite.architectures.torch_import import import_torchvision

    import_torchvision("the table of model types")
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: F401

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(ask, model_types()))


def table(found: list[dict[str, Any]]) -> str:
    """Return the summary and the table in Markdown."""
    lines: list[str] = []
    for how, key in (("record", "ours"), ("guess", "guess")):
        compared = [row for row in found if row[key] and row["theirs"] and how in ("guess", row["how"])]
        near = sum(abs(row[key] / row["theirs"] - 1) <= 0.01 for row in compared)
        lines.append(f"- by {how}: {near} of {len(compared)} types within 1%")
    ways: dict[str, int] = {}
    for row in found:
        ways[row["how"]] = ways.get(row["how"], 0) + 1
    lines.append(
        f"- of {len(found)} types: "
        + ", ".join(f"{count} {how if how == 'not read' else f'by {how}'}" for how, count in sorted(ways.items()))
    )
    largest = max(row["resident_bytes"] for row in found)
    lines.append(f"- largest resident memory of a trace: {largest / 1e9:.2f} GB")
    lines += ["", "| type | read by | parameters | of transformers | difference | of the guess |"]
    lines.append("| :-- | :-- | --: | --: | --: | --: |")
    for row in found:
        ours, theirs = row["ours"], row["theirs"]
        differences = [
            f"{100 * (count / theirs - 1):+.1f}%" if count and theirs else "" for count in (ours, row["guess"])
        ]
        counts = [f"{count:,}" if count else "" for count in (ours, theirs)]
        reason = row["how"] if ours else row["why"]
        lines.append(f"| {row['type']} | {reason} | {counts[0]} | {counts[1]} | {differences[0]} | {differences[1]} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text(before + BEGIN + table(rows()) + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
