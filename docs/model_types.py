"""Write the table of `model-types.md`: how each type of transformers is read, and with how many parameters.

Every type that writes text is built in its default config on the meta device, in a process of its own with limits of
memory and time, and its parameters are compared with those that the config alone gives.

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

BYTES, SECONDS = 8 * 2**30, 40
PAGE = Path(__file__).with_name("model-types.md")
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"


def model_types() -> list[str]:
    """Return the model types of `transformers` that write text."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def compare(model_type: str, connection: Any) -> None:
    """Send how a type is read, and the numbers of parameters of ours and of the module."""
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    signal.alarm(SECONDS)
    answer: dict[str, Any] = {"theirs": None, "ours": None, "how": "", "why": ""}
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
    from paleo_lite.architectures.model_config import encoder_families, read_config
    from paleo_lite.errors import PaleoError

    try:
        network = read_config(json.dumps(fields).encode(), "config.json")
    except PaleoError as error:
        why = str(error).partition(": ")[2].partition(";")[0].partition(", which is not read")[0]
        return {"how": "not read", "why": f"not read: {why[:100]}"}
    how = "guess" if "a guess with" in network.name else "record"
    if fields["model_type"] in encoder_families():
        how = "record of an encoder"
    return {"how": how, "ours": network.parameters}


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
        answer = {"theirs": None, "ours": None, "how": "not read", "why": "beyond the limit of memory or time"}
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
    lines = []
    for how in ("record", "guess"):
        compared = [row for row in found if row["how"] == how and row["ours"] and row["theirs"]]
        near = sum(abs(row["ours"] / row["theirs"] - 1) <= 0.01 for row in compared)
        lines.append(f"- by {how}: {near} of {len(compared)} types within 1%")
    lines += ["", "| type | read by | parameters | of transformers | difference |", "| :-- | :-- | --: | --: | --: |"]
    for row in found:
        ours, theirs = row["ours"], row["theirs"]
        difference = f"{100 * (ours / theirs - 1):+.1f}%" if ours and theirs else ""
        counts = [f"{count:,}" if count else "" for count in (ours, theirs)]
        reason = row["how"] if ours else row["why"]
        lines.append(f"| {row['type']} | {reason} | {counts[0]} | {counts[1]} | {difference} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text(before + BEGIN + table(rows()) + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
