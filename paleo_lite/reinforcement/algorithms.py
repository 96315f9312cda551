"""Algorithms of reinforcement learning: which models run in a step, and how often."""

from __future__ import annotations

from typing import NamedTuple


class RlAlgorithm(NamedTuple):
    """What a step of an algorithm consists of."""

    description: str
    rolls_out: bool = True  # whether samples are generated
    samples_per_prompt: int = 8  # usual number of responses to a prompt
    # Whether the update compares with probabilities under the weights that the step starts with, which are computed
    # where several updates follow or rollouts have another precision.
    has_old_log_probs: bool = True
    has_reference: bool = False  # whether probabilities under frozen weights keep the policy near them, by default
    can_have_reference: bool = True
    has_critic: bool = False  # whether a second network of the same shape estimates values, and is trained
    # Samples that are generated per sample that is trained on: groups with equal rewards teach nothing.
    generated_per_trained: float = 1.0
    samples_trained: int = 1  # sequences in the loss per sample: two of a preferred pair


ALGORITHMS = {
    "grpo": RlAlgorithm(
        "Group relative policy optimization (Shao et al. 2024): the rewards of a group of responses are the baseline",
        samples_per_prompt=16,
        has_reference=True,
    ),
    "dapo": RlAlgorithm(
        "GRPO without reference, over groups whose rewards differ (Yu et al. 2025): about half are sampled again",
        samples_per_prompt=16,
        generated_per_trained=1.5,
    ),
    "ppo": RlAlgorithm(
        "Proximal policy optimization (Schulman et al. 2017), with a critic and a reference",
        samples_per_prompt=1,
        has_reference=True,
        has_critic=True,
    ),
    "rloo": RlAlgorithm(
        "REINFORCE with a leave-one-out baseline (Ahmadian et al. 2024)", samples_per_prompt=4, has_reference=True
    ),
    "reinforce++": RlAlgorithm(
        "REINFORCE with clipping and a baseline over the batch (Hu et al. 2025)", samples_per_prompt=1,
        has_reference=True,
    ),
    "dpo": RlAlgorithm(
        "Direct preference optimization (Rafailov et al. 2023) on pairs of given responses", rolls_out=False,
        samples_per_prompt=1, has_old_log_probs=False, has_reference=True, samples_trained=2,
    ),
    "sft": RlAlgorithm(
        "Fine-tuning on the model's own rollouts that were accepted (rejection sampling)", samples_per_prompt=4,
        has_old_log_probs=False, can_have_reference=False,
    ),
    "distillation": RlAlgorithm(
        "On-policy distillation (Agarwal et al. 2024): a teacher scores the student's rollouts", samples_per_prompt=4,
        has_old_log_probs=False, has_reference=True,
    ),
}  # fmt: skip
"""Algorithms by name."""
