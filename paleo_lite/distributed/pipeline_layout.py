"""Placement of blocks, embedding and loss on the stages of a pipeline.

A layout is written as Megatron-LM's ``--pipeline-model-parallel-layout``: ``E`` is the embedding, ``t`` a transformer
block, ``m`` a multi-token prediction layer, ``L`` the loss, ``|`` ends a stage, and ``*`` repeats what stands before
it: ``"Et*3|(tt|)*29,L"``. The numbers of blocks are enough where embedding and loss are at the ends, as in vLLM's
``VLLM_PP_LAYER_PARTITION``: ``"6,9,9,8"``. Stages are numbered through the network; with several virtual stages per
device, stage k is on device k modulo the devices.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ..errors import BadValue

ENDS_ONLY = 4
"""Blocks that the two end stages may have fewer than the others, together, before neighbours give up blocks, too."""

_MAX_STAGES_AND_BLOCKS = 20_000
_COUNTS = re.compile(r"\d{1,5}([,+]\d{1,5})*")
_TOKEN = re.compile(r"([EtmL|()])|\*(\d{1,5})|[\s,]+")


class DeviceStages(NamedTuple):
    """Part of the network on one device of a pipeline."""

    blocks: tuple[int, ...]  # indices of its blocks
    # Whether it has the embedding, and output head and loss.
    has_embedding: bool
    has_loss: bool
    counts: tuple[int, ...]  # number of blocks of each of its virtual stages


def parse_layout(text: str) -> tuple[str, ...]:
    """Return the stages of a layout, or of its numbers of blocks, each as its letters: ``("Ettt", "tt", "ttL")``.

    Raise BadValue if the text has another form, or embedding and loss are not at the ends.
    """
    expanded = _expand(megatron_layout(text))
    stages = tuple(expanded.split("|"))
    letters = "".join(stages)
    if not re.fullmatch(r"Et+m*L", letters):
        raise BadValue(
            "`--schedule layout` must have one E (embedding) in front, blocks t, and one L (loss) at the end, such as "
            f"'Et*3|(tt|)*4,L', or the blocks of every stage, such as 6,9,9,8 (got {text!r})"
        )
    empty = [number for number, stage in enumerate(stages, 1) if not stage]
    if empty:
        raise BadValue(f"`--schedule layout`: stage {empty[0]} of {len(stages)} is empty (got {text!r})")
    return stages


def megatron_layout(text: str) -> str:
    """Return a layout as Megatron-LM reads it."""
    return _layout_of_counts(text) if _COUNTS.fullmatch(text) else text


def _layout_of_counts(text: str) -> str:
    """Return the layout of some numbers of blocks."""
    counts = [int(count) for count in re.split(r"[,+]", text)]
    if sum(counts) > _MAX_STAGES_AND_BLOCKS:
        raise BadValue(f"`--schedule layout` takes at most {_MAX_STAGES_AND_BLOCKS:,} blocks (got {text[:80]!r})")
    return f"E{'|'.join(f't*{count}' if count else '' for count in counts)}L"


def _expand(text: str) -> str:
    """Return a layout without repetitions, parentheses and commas."""
    problem = BadValue(
        "`--schedule layout` must be the blocks of each stage, such as 8,9,9,6, or consist of E, t, m, L, | and "
        f"repetitions such as t*3 or (tt|)*4, of at most {_MAX_STAGES_AND_BLOCKS:,} letters (got {text[:80]!r})"
    )
    groups: list[list[str]] = [[]]  # pieces of the text, for every open parenthesis
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise problem
        position = match.end()
        letter, count = match.groups()
        if letter == "(":
            groups.append([])
        elif letter == ")":
            if len(groups) == 1:
                raise problem
            inner = "".join(groups.pop())
            groups[-1].append(inner)
        elif letter:
            groups[-1].append(letter)
        elif count:
            if not groups[-1] or len(groups[-1][-1]) * int(count) > _MAX_STAGES_AND_BLOCKS:
                raise problem
            groups[-1][-1] *= int(count)
        if sum(map(len, groups[-1])) > _MAX_STAGES_AND_BLOCKS:
            raise problem
    if len(groups) > 1:
        raise problem
    return "".join(groups[0])


def even_layout(blocks: int, stages: int) -> tuple[int, ...] | None:
    """Return the number of blocks of each stage, as even as possible; None if a stage between the ends has none.

    The ends have fewer blocks than the others, as they have the embedding and the loss, first the last stage: 61 blocks
    in 16 stages are 3, then 14 times 4, and 2 (Megatron-Bridge's recipe of DeepSeek-V3); 126 in 16 are 7, 14 times 8,
    and 7 (Dubey et al. 2024, Llama 3, section 3.3.2).
    """
    largest = -(-blocks // stages)
    counts = [largest] * stages
    inward = [position for number in range(1, stages) for position in (-1 - number, number)]
    missing = stages * largest - blocks
    for position in [-1, 0] * (ENDS_ONLY // 2) + inward:
        if missing and counts[position]:
            counts[position] -= 1
            missing -= 1
    if any(count == 0 for count in counts[1:-1]):
        return None
    return tuple(counts)


def layout_of_pytorch(blocks: int, stages: int) -> tuple[int, ...] | None:
    """Return the number of blocks of each stage as torchtitan divides them; None if a stage has nothing.

    Embedding and output head count as one block each (``pipeline_parallel_first_stage_less_layers`` and
    ``last_stage_less_layers``, by default 1), and the first stages have what is left over
    (``generate_llm_fqn_per_model_part``).
    """
    if stages == 1:
        return (blocks,)
    least, left_over = divmod(blocks + 2, stages)
    if not least:
        return None
    counts = [least + (stage < left_over) for stage in range(stages)]
    counts[0] -= 1
    counts[-1] -= 1
    return tuple(counts)


def balanced_layout(
    blocks: int, pipeline: int, virtual_stages: int, first_blocks: float, last_blocks: float
) -> tuple[int, ...]:
    """Return the number of blocks of each stage with which no device takes longer than needed.

    The times of embedding and of output head with loss, on the first and the last device, are in blocks. Of devices
    that would take equally long the last has one more block: the first store more micro-batches.
    """
    loads = [0.0] * pipeline
    loads[0] += first_blocks
    loads[-1] += last_blocks
    of_devices = [0] * pipeline
    for _ in range(blocks):
        device = min(reversed(range(pipeline)), key=lambda number: loads[number])
        of_devices[device] += 1
        loads[device] += 1
    counts = [0] * (pipeline * virtual_stages)
    for device, block_count in enumerate(of_devices):
        least, left_over = divmod(block_count, virtual_stages)
        for part in range(virtual_stages):
            # The first device begins with the embedding, and the last ends with the output head.
            has_more = part >= virtual_stages - left_over if device == 0 else part < left_over
            counts[part * pipeline + device] = least + has_more
    return tuple(counts)


def place_stages(
    blocks: int, pipeline: int, virtual_stages: int, layout: str, network: str, divides_as_pytorch: bool = False
) -> list[DeviceStages]:
    """Return what each device of a pipeline of `pipeline` devices has, each with so many virtual stages.

    The layout is a text; empty for the most even one, or for that of torchtitan. The name of the network is for
    messages: BadValue if the layout does not add up to the blocks, or there are too few blocks.
    """
    stages = pipeline * virtual_stages
    if layout:
        parsed = parse_layout(layout)
        counts: tuple[int, ...] | None = tuple(stage.count("t") for stage in parsed)
        if sum(counts or ()) != blocks:
            raise BadValue(f"`--schedule layout` has {sum(counts or ())} blocks, but {network} has {blocks}")
    else:
        divide = layout_of_pytorch if divides_as_pytorch else even_layout
        counts = divide(blocks, stages)
    if counts is None:
        virtual = f" with {virtual_stages} virtual stages each" if virtual_stages > 1 else ""
        raise BadValue(f"{pipeline} stages{virtual} are too many for the {blocks} blocks of {network}")
    starts = [sum(counts[:number]) for number in range(stages)]
    devices = []
    for device in range(pipeline):
        device_blocks: list[int] = []
        for stage in range(device, stages, pipeline):
            device_blocks += range(starts[stage], starts[stage] + counts[stage])
        own_counts = counts[device::pipeline]
        devices.append(DeviceStages(tuple(device_blocks), device == 0, device == pipeline - 1, own_counts))
    return devices
