"""Defaults of `serve` for networks that write what is said, and the options that it refuses for them."""

from __future__ import annotations

from ..errors import BadValue
from .records import settings_of
from .serve_options import Serve

FIRST_TOKENS = 4
"""Tokens with which an answer begins: its start, the language, the task, and that it has no times (Radford et al. 2022,
figure 1)."""

SPOKEN_TOKENS = 100
"""Tokens of what is said in a window of 30 s: 75 words at 150 words a minute, of 4/3 tokens each (as OpenAI's pages
count English words: https://help.openai.com, "What are tokens")."""

_NOT_MODELLED = (
    "workload", "cache_tiers", "prefix_hit_rate", "chunked_prefill", "speculation", "prefill_pool", "decode_pool",
)  # fmt: skip
"""Options without an effect or a model for speech."""

_DEGREES = ("tensor", "pipeline", "expert_parallel", "attention_data_parallel")
"""Options that divide a replica, for which these networks are small."""


def is_speech_model(question: Serve) -> bool:
    """Return whether the network of a question writes what is said."""
    from ..architectures import Network, find_network
    from ..architectures.catalog import is_factory

    network = question.network
    if isinstance(network, str) and not is_factory(network):
        network = find_network(network)
    return isinstance(network, Network) and network.is_speech_model


def check_options_of_speech(question: Serve) -> None:
    """Raise BadValue for an option that is not modelled for networks that write what is said."""
    if not is_speech_model(question):
        return
    from ..engines.records import LOCAL_ENGINES

    given = [name for name in _NOT_MODELLED if getattr(question, name) not in (None, 0)]
    given += [name for name in _DEGREES if getattr(question, name) not in (None, 1)]
    if "adapters" in settings_of(question.engine_settings):
        raise BadValue("adapters=N of `--engine-settings` is not modelled for networks that read sound: leave it out")
    if question.engine in LOCAL_ENGINES:
        raise BadValue(f"`--engine {question.engine}` is not modelled for networks that read sound: give vllm")
    if given:
        option = f"--{given[0].replace('_', '-')}"
        raise BadValue(f"`{option}` is not modelled for networks that read sound: leave it out")
