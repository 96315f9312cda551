"""Frameworks of reinforcement learning: order of the phases, how samples are batched, and how weights travel.

Sources are the code of the frameworks at the commits in each record. Constants of time were fitted to published steps
(`python -m validation accuracy --split rl`), one value for all frameworks where a record does not say otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

GATHERED = "gathered"
BROADCAST = "broadcast"
RESHARDED = "resharded"
PAIRED = "paired"
TRANSFERS = {
    GATHERED: "every device gathers whole tensors and hands them over to the engine on the same device",
    BROADCAST: "one device gathers whole tensors and broadcasts them over its port to all engines",
    RESHARDED: "every device sends the engines their own parts",
    PAIRED: "a device of the trainer for each of the engines gathers whole tensors and sends it those that it loads",
}
"""How weights get from the trainer to the engines."""

OPTIMIZER, PARAMETERS = "optimizer", "parameters"
OFFLOADS = {
    "none": "all state of the trainer stays on its devices",
    OPTIMIZER: "the optimizer's state",
    PARAMETERS: "the parameters",
    f"{OPTIMIZER}+{PARAMETERS}": "both",
}
"""State of the trainer that lies in the memory of the host while nothing of the trainer needs it."""

FREE, SLEEP = "free", "sleep"
"""What an engine does with its weights during training: drops them, or keeps them in the memory of the host."""


class Framework(NamedTuple):
    """A framework and its defaults."""

    description: str
    source: str  # repository and commit that were read
    engine: str = "vllm"
    execution: str = "megatron"  # stack of the trainer, one of `paleo_lite.distributed.parallel_config.STACKS`
    has_megatron: bool = True  # whether the trainer can be Megatron-LM, which divides matrices, blocks and experts
    sharding: str = "distributed-optimizer"  # how the trainer shards its state
    is_eager: bool = False  # whether the engine launches every kernel instead of graphs
    is_packed: bool = True  # whether micro-batches are filled with whole samples up to a number of tokens
    micro_batch_tokens: int = 16_384  # tokens of a packed micro-batch of one device, but at least one sample
    packs_longest: bool = False  # whether a packed micro-batch must have room for the longest possible sample
    pads: bool = False  # whether every sample costs the tokens of the longest possible one
    is_balanced: bool = True  # whether ranks get equal numbers of tokens
    transfer: str = GATHERED  # one of `TRANSFERS` where trainer and engines share devices
    transfer_apart: str = BROADCAST  # one of `TRANSFERS` between devices
    # Whether log-probabilities under the weights of the rollouts are always computed again by the trainer.
    recomputes_log_probs: bool = True
    keeps: str = FREE  # `FREE` or `SLEEP`
    offloads_optimizer: bool = False  # whether the optimizer's state leaves the devices during rollouts
    # Whether trainer and engines can take turns on the same devices, as they do by default.
    takes_turns: bool = True
    steps_off: int = 0  # steps by which rollouts on devices of their own may be old, by default
    # Whether more samples are generated at the same time than a step has, where rollouts may be several steps old.
    fills_ahead: bool = True
    has_reference: bool = True  # whether an algorithm with a penalty computes a reference by default
    # Whether the moments of the optimizer are in the memory of the host but for the update of the weights itself.
    moves_moments: bool = False
    offloads_parameters: bool = False  # whether the trainer's parameters leave them, too
    # Whether what is offloaded comes to the devices for every phase that needs it, through pinned memory, and leaves
    # them after it; otherwise it leaves them for the rollouts alone.
    offloads_by_phase: bool = False
    # Whether the reference lies in the memory of the host until it computes, even where no engine needs the room.
    swaps_reference: bool = False
    # Whether FSDP shards every matrix of an adapter as a unit of its own, which the host gathers in every pass.
    has_adapter_units: bool = False
    # Whether the matrices of all experts of a block are one tensor of the trainer, of which engines take their parts.
    stacks_experts: bool = False
    # Times that FSDP gathers every weight in fp32 before an engine gets it; 0 of trainers that send 16 bits.
    master_gathers: int = 0
    merges_adapters: bool = False  # whether adapters are merged into the weights, of which engines get all
    memory_fraction: float | None = None  # of the engine; None for the engine's own default
    max_sequences: int | None = None  # most live sequences of an engine; None for the engine's own default
    is_measured: bool = False  # whether the constants of `calibrations/reinforcement.toml` were fitted to its steps


FRAMEWORKS = {
    "generic": Framework(
        "A trainer in Megatron-LM and vLLM with its graphs", "", offloads_optimizer=True, offloads_parameters=True
    ),
    "nemo-rl": Framework(
        "NVIDIA NeMo-RL: Megatron-LM and vLLM",
        "NVIDIA-NeMo/RL 7ea279a",
        is_packed=False,
        packs_longest=True,  # bins of SequencePacker, nemo_rl/data/packing/algorithms.py
        is_balanced=False,
        keeps=SLEEP,
        offloads_optimizer=True,
        offloads_parameters=True,
        swaps_reference=True,  # use_reference_model, nemo_rl/models/policy
        memory_fraction=0.6,
        is_measured=True,
    ),
    "verl": Framework(
        "verl: FSDP or Megatron-LM, and vLLM or SGLang",
        "volcengine/verl b178a3c; graphs and sequences: verl/trainer/config/rollout/rollout.yaml at 035682e",
        execution="eager",
        sharding="full-shard",
        packs_longest=True,  # asserted by rearrange_micro_batches, verl/utils/seqlen_balancing.py
        # offload_fsdp_model_to_cpu and load_fsdp_model_to_gpu in verl/utils/fsdp_utils.py, around every phase of
        # verl/workers/fsdp_workers.py: `to("cpu", non_blocking=True)` copies to pinned memory.
        offloads_by_phase=True,
        has_adapter_units=True,  # get_fsdp_wrap_policy of the usual strategy fsdp, verl/utils/fsdp_utils.py
        # state_dict() gathers every unit, which PyTorch then cuts into shards (_sharded_pre_state_dict_hook), and
        # full_tensor() gathers every tensor again: verl/workers/sharding_manager/fsdp_vllm.py at 004c888.
        master_gathers=2,
        memory_fraction=0.5,
        max_sequences=1024,
    ),
    "openrlhf": Framework(
        "OpenRLHF: DeepSpeed and vLLM",
        "OpenRLHF/OpenRLHF 3c3be62",
        execution="eager",
        has_megatron=False,
        sharding="zero-3",
        keeps=SLEEP,
        offloads_optimizer=True,
        memory_fraction=0.6,
    ),
    "trl": Framework(
        "TRL of Hugging Face: Accelerate and vLLM",
        "huggingface/trl",
        execution="eager",
        has_megatron=False,
        sharding="zero-3",
        is_packed=False,
        is_balanced=False,
        pads=True,
        recomputes_log_probs=False,
        merges_adapters=True,  # merge_adapter before the weights go to vLLM, trl/trainer/grpo_trainer.py
        memory_fraction=0.3,
    ),
    "prime-rl": Framework(
        "prime-rl of Prime Intellect: FSDP2 and vLLM",
        "PrimeIntellect-ai/prime-rl 559b447; devices: packages/prime-rl-configs/src/prime_rl/configs/rl.py at 004274e; "
        "reference: packages/prime-rl-configs/src/prime_rl/configs/algorithm.py at 065a864",
        execution="eager",
        has_megatron=False,
        sharding="full-shard",
        steps_off=8,  # max_off_policy_steps, packages/prime-rl-configs/src/prime_rl/configs/orchestrator.py at 004274e
        fills_ahead=False,  # max_inflight_rollouts: batch_size times oversampling_factor, which is 1 (resolve_batching)
        takes_turns=False,  # num_train_gpus and num_infer_gpus, 1 of each, whose sum has to be in the node
        has_reference=False,  # the rl loss of GRPOAlgoConfig has none, and the policy alone is hosted
        # optim_cpu_offload: docs/scaling.md, "Optimizer Offloading" ("remains enabled by default"). It was added as
        # False on 2026-01-31 (CHANGELOG.md at 0051cbb), and its default was still that at 004274e; published steps of
        # 559b447 are nearer to forecasts with it (docs/accuracy.md).
        moves_moments=True,
        # GroupedExperts, src/prime_rl/trainer/models/layers/moe.py; NIXLWeightBroadcast, src/prime_rl/trainer/rl/
        # broadcast/nixl.py, serves tensors as they are held.
        stacks_experts=True,
        recomputes_log_probs=False,
    ),
    "slime": Framework(
        "slime: Megatron-LM and SGLang",
        "THUDM/slime 624b824",
        engine="sglang",
        offloads_optimizer=True,
        offloads_parameters=True,
    ),
}
"""Frameworks by name; the generic one is the default."""
