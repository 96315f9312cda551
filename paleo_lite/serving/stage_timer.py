"""Times of the stages of a pipeline by the kernels of an engine, where no calibration knows the layers of a format.

Each stage has its share of the blocks' kernels, and the last one the head.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from ..engines.records.record import Server
from ..timing.activity import Activity
from .cache import CacheRoom, measure_room
from .kernel_timer import KernelTimer
from .pipeline import send_time_s, split_blocks
from .timer import Limits, TimedParts


class StageTimer(KernelTimer):
    """Kernels of an engine, divided among the stages of a pipeline."""

    def _key(self) -> tuple[object, ...]:
        """Return what determines the times, without the constants."""
        return (*super()._key(), self.on_device.pipeline)

    @property
    def notes(self) -> Sequence[str]:
        """A remark on what is known of stages.

        (Llama 3.3 70B under vLLM 0.8, at 1, 4 and 16 requests per second: llm-k8s, `validation/serving/published.csv`.)
        """
        return [
            "stages are timed by the kernels of the engine: no layers and no pipeline were measured in "
            f"{self.weights}. Tokens of the one published pipeline, in bf16 over two computers of four A100, take 1.2 "
            "to 1.5 times as long as such a forecast, at two of three loads longer than its 90% interval"
        ]

    def time_parts(self, limits: Limits, contexts: Sequence[int]) -> TimedParts:
        """Return the seconds of the kernels by stage, and of the sends between stages."""
        on_device = self.on_device
        pipeline, network = on_device.pipeline, on_device.workload.network
        blocks = np.array(pipeline.blocks or split_blocks(network.blocks, pipeline.degree))
        shares = (blocks / blocks.sum())[:, np.newaxis]  # shape (stages, 1)
        parts = super().time_parts(limits, contexts)
        assert parts.token_with_prompts_s is not None and parts.prompt_s is not None
        # More tokens than sequences can decode are those of prompts.
        token_s = np.where(parts.tokens > limits.sequences, parts.token_with_prompts_s, parts.token_s[0])
        head_s = np.zeros((pipeline.degree, len(parts.tokens)))
        head_s[-1] = parts.head_s[0]
        divided: TimedParts = msgspec.structs.replace(
            parts,
            token_s=shares * token_s,
            head_s=head_s,
            decode_attention_s=shares * parts.decode_attention_s,
            prompt_attention_s=parts.prompt_attention_s * shares.T,
            sent_s=send_time_s(pipeline, on_device.decode_workload(1), parts.tokens),
            prompt_s=shares[:, 0] * parts.prompt_s,
            token_with_prompts_s=None,
        )
        return divided

    def measure_room(self, engine: Server, *, mean_tokens: float, prompt_tokens: int) -> CacheRoom:
        """Return the room of the cache of the stage that has least, by its layers."""
        by_layers = self.on_device._replace(kernels=None)
        return measure_room(by_layers, engine, mean_tokens=mean_tokens, prompt_tokens=prompt_tokens)

    def decode_activity(self, sequences: float, context: float, tokens_per_sequence: int = 1) -> Activity:
        """Return what a device does in an iteration without prompts, on average over the stages."""
        activity = super().decode_activity(sequences, context, tokens_per_sequence)
        return activity.times(1 / self.on_device.pipeline.degree)

    def prompt_activity(self, tokens: float, cached: float = 0.0) -> Activity:
        """Return what a device does for a prompt, on average over the stages."""
        return super().prompt_activity(tokens, cached).times(1 / self.on_device.pipeline.degree)
