"""Options of Megatron-LM for parallel configurations, with the names of its ``arguments.py``."""

from __future__ import annotations

import pytest

from asked import scaling
from paleo_lite.distributed.megatron_options import describe_adapters, megatron_options
from paleo_lite.distributed.parallel_config import ParallelConfig
from paleo_lite.timing.training_options import TrainingOptions


@pytest.mark.parametrize(
    ("config", "counts", "recipe", "expected"),
    [
        # Megatron-Bridge's recipes: Llama 3 70B on H100 (10 blocks on each of 8 devices in 5 parts), DeepSeek-V3.
        (
            ParallelConfig(4, 8, 5, True),
            ((2,) * 5,) * 8,
            "fp8",
            [
                "--tensor-model-parallel-size 4", "--pipeline-model-parallel-size 8", "--sequence-parallel",
                "--num-layers-per-virtual-pipeline-stage 2", "--fp8-recipe tensorwise", "--use-distributed-optimizer",
            ],
        ),
        (
            ParallelConfig(pipeline=4, expert=64, recompute="selective", recompute_modules=("layernorm", "moe_act")),
            ((15,), (16,), (16,), (14,)),
            "mxfp8",
            [
                f"--pipeline-model-parallel-layout 'E{'t' * 15}|{'t' * 16}|{'t' * 16}|{'t' * 14}L'",
                "--expert-model-parallel-size 64", "--moe-flex-dispatcher-backend hybridep",
                "--recompute-granularity selective --recompute-modules layernorm moe_act", "--fp8-recipe mxfp8",
            ],
        ),
        (
            ParallelConfig(zero_stage=3, recompute="full", recompute_every=2, context=2),
            ((80,),),
            "nvfp4",
            [
                "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", "--context-parallel-size 2",
                "--fp4-recipe nvfp4", "--recompute-method block --recompute-num-layers 40",
            ],
        ),
        (ParallelConfig(expert=8, dispatch="alltoall"), ((4,),), None, ["--moe-token-dispatcher-type alltoall"]),
        (ParallelConfig(pipeline=2, layout="Ett|ttL"), ((2,), (2,)), None, ["layout 'Ett|ttL'"]),
    ],
)  # fmt: skip
def test_options(config: ParallelConfig, counts: tuple, recipe: str | None, expected: list[str]) -> None:
    found = megatron_options(config, 256, 8192, counts, recipe)
    assert "--global-batch-size 256" in found and "--seq-length 8192" in found
    assert [name for name in expected if name not in found] == []
    assert "  " not in found


def test_megatron_lm_has_no_adapters() -> None:
    """Megatron Bridge, `docs/training/peft.md`: ``LoRA(dim=16, ...)`` as ``peft`` of a recipe."""
    assert describe_adapters(16).endswith(
        "adapters of rank 16 are those of Megatron Bridge, `peft=LoRA(dim=16)` of its recipes"
    )
    assert describe_adapters(None) == describe_adapters(0) == ""


@pytest.mark.slow  # every configuration of 8 devices
def test_advice_ends_with_the_options_of_the_best_configuration() -> None:
    table = scaling(
        "llama-3-8b", platform="dgx-b200", workers=8, batch_size=64, scaling="strong", precision="mxfp8", advise="time",
        sequence_length=4096, training=TrainingOptions("adam", mixed_precision=True),
    )  # fmt: skip
    best = table[0]
    options = next(note for note in best.notes if note.startswith("options of Megatron-LM: "))
    tensor = int(best.strategy.split("tensor ")[1].split(",")[0])
    assert f"--tensor-model-parallel-size {tensor} " in options and "--fp8-recipe mxfp8" in options
    assert "--optimizer adam" in options
    assert "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te" in options
    assert best.fits and best.strategy in table.why
