"""Document of a language model on one's own machine."""

from __future__ import annotations

from ..local.predict import LocalPrediction
from ..units import format_interval, format_si
from .document import Document


def local_page(found: LocalPrediction) -> Document:
    """Return the document of a prediction under llama.cpp."""
    devices = f"{found.gpus} x {found.device}" if found.gpus > 1 else found.device
    rate, prompt_rate = 1 / found.token_s, found.prompt_tokens / found.prompt_s
    headline = f"{found.network} in {found.weights} on {devices}, llama.cpp: {rate:.1f} tokens/s"
    low_s, high_s = found.token_interval_s
    slow_s, fast_s = found.prompt_interval_s[1], found.prompt_interval_s[0]
    on_device = found.weight_bytes + found.cache_bytes + found.buffer_bytes
    facts = [
        ("answer", f"{rate:.1f} tokens/s ({1 / high_s:.1f} to {1 / low_s:.1f} at 90%) behind {found.context} tokens"),
        (
            "prompt",
            f"{prompt_rate:.0f} tokens/s ({found.prompt_tokens / slow_s:.0f} to {found.prompt_tokens / fast_s:.0f} "
            f"at 90%): {format_si(found.prompt_s, 's')} for {found.prompt_tokens} tokens",
        ),
        ("per token", f"{format_si(found.token_s, 's')} ({format_interval(found.token_interval_s)} at 90%)"),
        ("blocks", f"{found.gpu_blocks} of {found.blocks} on the device"),
        (
            "memory",
            f"{format_si(on_device, 'B')} of {format_si(found.usable_bytes, 'B')} usable: weights "
            f"{format_si(found.weight_bytes, 'B')}, cache {format_si(found.cache_bytes, 'B')} in {found.kv_cache}, "
            f"buffers {format_si(found.buffer_bytes, 'B')}",
        ),
        ("host memory", format_si(found.host_bytes, "B")),
        ("largest context", f"{found.largest_context:,} tokens"),
        ("backend", found.backend),
    ]
    if found.cpu is not None:
        facts.append(("processor", found.cpu))
    return Document(headline, facts, [], found.notes)
