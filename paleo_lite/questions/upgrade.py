"""Options and commands of earlier versions and of engines, each with the sentence that names the one of today."""

from __future__ import annotations

_TRAINING = "is an option of `paleo-lite train`, which predicts training on one device and on many"
_PICTURES = "is an option of `paleo-lite diffusion`, which predicts pictures and videos"
_LOCAL = "is an option of `paleo-lite local`, which predicts language models on one's own machine"

_MOVED_FROM_SWEEP = {
    "--networks": "is the first word behind the command now, as in `paleo-lite predict resnet50,vgg16`",
    "--gpus": "is `--gpu` with several names now, as in `--gpu t4,l4`; a number of one's own devices is `--workers` of "
    "`paleo-lite local`",
    "--precisions": "is `--precision` with several values now, as in `--precision fp32,fp16`",
    "--batch-sizes": "is `--batch-size` with several values now, as in `--batch-size 1:256:x2`",
    "--time-models": "is `--time-model` with several values now, as in `--time-model ppp,roofline`",
    "--links": "is `--link` with several values now, as in `--link pcie3,nvlink2`",
    "--power": "is gone: answers have the watts that are drawn, and `--power-limit` limits them",
}
_MOVED_FROM_PREDICT = {
    **_MOVED_FROM_SWEEP,
    **dict.fromkeys(
        (
            "--optimizer", "--mixed-precision", "--checkpointing", "--accumulation", "--lora", "--lora-modules",
            "--freeze", "--train-only", "--fused-loss", "--no-fused-loss", "--loss-chunks", "--fp32-gradients",
            "--loss", "--samples", "--tokens", "--epochs", "--packing", "--mean-length",
        ),
        _TRAINING,
    ),
    "--offload": "is an option of `paleo-lite train`, and of `paleo-lite diffusion` for pictures and videos",
    **dict.fromkeys(
        (
            "--steps", "--guidance", "--frames", "--images", "--ulysses", "--ring", "--guidance-parallel", "--tiled",
            "--step-caching",
        ),
        _PICTURES,
    ),
    **dict.fromkeys(
        ("--backend", "--gpu-layers", "--cpu-experts", "--cpu-cache", "--device-memory", "--advise", "--cpu"),
        _LOCAL,
    ),
    "--phases": "is `--phase` with several values now, as in `--phase inference,training`",
    "--overlap": "is `--time-model ppp-overlap` now",
    "--concurrent": "is `--time-model ppp-overlap` now",
    "--workers": "is for `train`, `serve` and `diffusion`; devices that share one pass of a language model "
    "are `--tensor` of `predict`",
    "--policy": "is `--engine` now",
    "--fit-batch": "is `--batch-size fit` now",
}  # fmt: skip
_DETAILS_OF_TRAINING = {
    "--loss": "is `--training-settings loss=fp32|fused|cut|N` now",
    "--fused-loss": "is `--training-settings loss=fused` now",
    "--no-fused-loss": "is `--training-settings loss=fp32` now",
    "--loss-chunks": "is `--training-settings loss=N` now",
    "--fp32-gradients": "is `--training-settings gradients=fp32` now",
    "--lora-modules": "is `--trainable adapters=NAMES` now",
    "--freeze": "is `--trainable except=NAMES` now",
    "--train-only": "is `--trainable only=NAMES` now",
}
_MOVED_FROM_SCALE = {
    **_DETAILS_OF_TRAINING,
    **_MOVED_FROM_SWEEP,
    "--scalings": "is gone: `--batch-size` is per device (weak scaling), `--global-batch-size` of all (strong scaling)",
    "--strategies": "is `--strategy` with several values now, as in `--strategy data,zero-3`",
    "--collectives": "is `--communication collective=NAME` now",
    "--phases": "is gone: this is training, and `predict --phase` has the other phases",
    "--scaling": "is gone: `--batch-size` is per device (weak scaling), `--global-batch-size` of all (strong scaling)",
    "--collective": "is `--communication collective=NAME` now",
    "--gradient-precision": "is `--communication precision=NAME` now",
    "--bucket-size": "is `--communication bucket=SIZE` now",
    "--no-overlap": "is `--communication overlap=no` now",
    "--slowdown": "is `--communication slowdown=FRACTION` now",
    "--interference": "is `--communication interference=FRACTION` now",
    "--ppp-comm": "is `--communication ppp=FRACTION` now",
    "--micro-batches": "is `--schedule micro-batches=N` now",
    "--pipeline-layout": "is `--schedule layout=TEXT` now",
    "--interleaved": "is `--schedule interleaved=N` now",
    "--expert-dispatch": "is `--experts dispatch=LIBRARY` now",
    "--expert-kernels": "is `--experts kernels=NAME` now",
    "--expert-tensor-parallel": "is `--experts tensor=N` now",
    "--expert-imbalance": "is `--experts imbalance=FACTOR` now",
    "--expert-capacity": "is `--experts capacity=FACTOR` now",
    "--expert-overlap": "is `--experts overlap=FRACTION` now",
    "--zero": "is `--sharding zero-1`, zero-2 or zero-3 now",
    "--checkpointing": "is `--recompute` now",
    "--recompute-modules": "is `--recompute selective:MODULE+MODULE` now",
    "--recompute-every": "is `--recompute full:N` now",
    "--attention": "is `--training-settings attention=NAME` now",
    "--offloaded-activations": "is `--offload activations:FRACTION` now",
    "--sequence-parallel": "is `--communication sequence-parallel=yes` now",
    "--storage": "is `--feed storage=STORE` now",
    "--decode": "is `--feed decode=RATE` now",
    "--pageable": "is `--feed pageable=yes` now",
    "--images": "is `--samples` now",
    "--packing": "is gone: packed samples are `--tokens`, their number times their mean length",
    "--mean-length": "is gone: packed samples are `--tokens`, their number times their mean length",
    "--by": "is the value of `--advise`: time or joules",
    "--cost": "is gone: a run without a known price says so",
    "--fit-batch": "is `--batch-size fit` now",
    "--compat": "is `--time-model paleo` or paleo-last now",
    "--revision": "is `--time-model paleo-last` now",
    "--concurrent": "is `--time-model ppp-overlap` now",
    "--phase": "is gone: `predict --phase` has the phases of text generation, `diffusion` pictures and videos",
    "--policy": "is an option of `predict --phase decode`: `--engine`",
    "--kv-cache": "is an option of `paleo-lite predict --phase decode`",
    "--context": "is an option of `paleo-lite predict --phase decode`",
}
_MOVED_FROM_SERVE = {
    "--policy": "is `--engine` now",
    "--by": "is the value of `--advise`: cost or joules",
    "--draft": "is `--speculation draft=NETWORK` now",
    "--draft-length": "is `--speculation tokens=N` now",
    "--acceptance": "is `--speculation acceptance=PROBABILITY` now",
    "--block-size": "is `--engine-settings block-size=TOKENS` now",
    "--receive-interval": "is `--engine-settings receive-interval=N` now",
    "--sampling": "is `--engine-settings sampling=NAME` now",
    "--overhead": "is `--engine-settings overhead=TIME` now",
    "--prefill-workers": "is `--prefill-pool replicas=N` now; `--replicas` are those that decode",
}
_SAID_BY_ENGINES = {
    "--max-model-len": "is not needed: `--input-tokens` and `--output-tokens` say how long requests are",
    "--context-length": "is not needed: `--input-tokens` and `--output-tokens` say how long requests are",
    "--enable-prefix-caching": "is `--prefix-hit-rate FRACTION`, the part of every prompt that the cache holds",
    "--enable-chunked-prefill": "is `--chunked-prefill TOKENS`; 0 is for whole prompts",
    "--enable-expert-parallel": "is `--expert-parallel N`, with as many groups as `--tensor` has devices",
    "--enable-dp-attention": "is `--attention-data-parallel N`, the groups of the devices of `--tensor`",
    "--speculative-config": "is `--speculation tokens=N,acceptance=PROBABILITY,draft=NETWORK`",
    "--speculative-model": "is `--speculation draft=NETWORK`",
    "--num-speculative-tokens": "is `--speculation tokens=N`",
    "--scheduler-recv-interval": "is `--engine-settings receive-interval=N`",
    "--page-size": "is `--engine-settings block-size=TOKENS`",
}

MOVED = {
    "predict": _MOVED_FROM_PREDICT,
    "train": _MOVED_FROM_SCALE,
    "serve": _MOVED_FROM_SERVE | _SAID_BY_ENGINES,
    "local": {
        "--execution": "is `--engine` now",
        "--gpus": "is `--workers` now",
    },
    "diffusion": _DETAILS_OF_TRAINING
    | {
        "--images": "is `--batch-size` now",
        "--checkpointing": "is `--recompute` now",
    },
    "feeding": {"--no-overlap": "is `--no-prefetch` now"},
}
"""What became of the options of earlier versions, and what options of engines are here, by command."""

MOVED_COMMANDS = {
    "report": "`report` is an output of every question now, as in `paleo-lite predict resnet50 --gpu t4 --report "
    "report.html`, and of a profile `paleo-lite efficiency FILE --report report.html`",
    "sweep": "`sweep` is an output of every question now: give several values and `-o FILE`, as in `paleo-lite predict "
    "resnet50,vgg16 --gpu all --batch-size 1:64:x2 -o rows.parquet`",
    "scale": "`scale` is `paleo-lite train` now; `predict --phase decode --tensor N` predicts text generation on a "
    "group of devices, and `diffusion --workers N` pictures and videos",
    "pipeline": "`pipeline` is `paleo-lite feeding` now",
    "scaled": "`scaled` is `paleo-lite efficiency --method notebook` with `--durations` now",
}
"""What became of the commands of earlier versions."""

MOVED_NAMES = {
    "split": {
        split: f"`--split {split}` needs the published measurements of a checkout, and is "
        f"`python -m validation accuracy --split {split}` there"
        for split in ("layers", "profile", "collectives", "scaling")
    },
    "order": {"ppp": "`--sort ppp` is `--sort share` now, by the fraction of the peak"},
}
"""What became of the values of options, by the category of `Names`."""

MOVED_EVERYWHERE = {
    "--electricity": "is `--site electricity=PRICE` now",
    "--carbon-intensity": "is `--site carbon-intensity=GRAMS` now",
    "--pue": "is `--site pue=RATIO` now",
    "--host-watts": "is `--site host-watts=WATTS` now",
    "--price-of": "is `--price CLOUD` now",
    "--ppp-overlap": "is `--time-model ppp-overlap` now",
    "--model": "is the network, the first word behind the command",
    "--model-path": "is the network, the first word behind the command; a folder or a `config.json` is one, too",
    "--system": "is `--gpu`",
    "--device": "is `--gpu`",
}
"""What became of the options that several commands had, and what other programs call what all kinds ask."""


BROUGHT = {
    "predict": {
        "--max-model-len": "is `--context` in decode, the tokens in the KV cache, and `--sequence-length` in prefill",
        "--height": "is a part of `--image-size` of `paleo-lite diffusion`, as in 1024x768",
        "--width": "is a part of `--image-size` of `paleo-lite diffusion`, as in 1024x768",
    },
    "train": {
        "--fp16": "is `--precision fp16 --mixed-precision`",
        "--bf16": "is `--precision bf16 --mixed-precision`",
        "--attn-implementation": "is `--training-settings attention=NAME`",
        "--qlora": "is `--lora RANK --weights nf4`: adapters beside matrices in 4 bits",
        "--load-in-4bit": "is `--weights nf4`, of frozen matrices with `--lora`",
        "--load-in-8bit": "is `--weights int8`, of frozen matrices with `--lora`",
        "--zero-stage": "is a part of `--sharding`, as in `--sharding zero-3`",
        "--deepspeed": "is `--sharding zero-1`, zero-2 or zero-3, and `--offload` for its offloading",
        "--world-size": "is `--workers`",
        "--num-gpus": "is `--workers`",
        "--sequence-parallel-size": "is `--context-parallel`; with `--tensor` `--communication sequence-parallel=yes`",
        "--accumulate-allreduce-grads-in-fp32": "is `--training-settings gradients=fp32`",
        "--lora-target-modules": "is `--trainable adapters=NAMES`",
        "--target-modules": "is `--trainable adapters=NAMES`",
        "--sample-packing": "is not needed: `--tokens` are packed, `--samples` are padded",
        "--auto-find-batch-size": "is `--batch-size fit`",
        "--decoder-first-pipeline-num-layers": "is `--schedule layout=6,9,9,8`, the blocks of every stage",
        "--decoder-last-pipeline-num-layers": "is `--schedule layout=8,9,9,6`, the blocks of every stage",
        "--account-for-embedding-in-pipeline-split": "is `--schedule layout=7,8,8,8`, where a note names the layout "
        "that is fastest",
        "--account-for-loss-in-pipeline-split": "is `--schedule layout=8,8,8,7`, where a note names the layout that is "
        "fastest",
        "--recompute-granularity": "is `--recompute full` or selective",
        "--activations-checkpoint-method": "is `--recompute full` or selective",
    },
    "serve": {
        "--ttft": "is an objective: `--slo ttft=500ms`",
        "--tpot": "is an objective: `--slo tpot=50ms`",
        "--itl": "is an objective: `--slo tpot=50ms`, the time per token of an answer",
        "--goodput": "is `--slo ttft=500ms,tpot=50ms`; the answer has the goodput beside it",
        "--qps": "is `--rate`",
        "--users": "is `--concurrency`",
        "--num-users": "is `--concurrency`",
        "--num-concurrent-users": "is `--concurrency`",
        "--input-len": "is `--input-tokens`",
        "--output-len": "is `--output-tokens`",
        "--total-gpus": "is `--workers`",
        "--num-gpus": "is `--workers`",
        "--gpus": "is `--workers`",
        "--backend": "is `--engine`",
        "--ctx-size": "is not needed: `--input-tokens` and `--output-tokens` say how long requests are",
    },
    "local": {
        "--split-mode": "is not an option: `--workers` devices have whole blocks, as in the mode layer",
        "--threads": "is not an option: all cores of `--cpu` compute",
        "--flash-attn": "is not an option: the constants are those of flash attention where a backend has it",
        "--num-gpu": "is `--gpu-layers`",
        "--num-ctx": "is `--context`",
        "--predict": "is not an option: times are per token of the answer",
    },
    "diffusion": {
        "--height": "is a part of `--image-size`, as in 1024x768",
        "--width": "is a part of `--image-size`, as in 1024x768",
        "--cfg": "is `--guidance`",
        "--cfg-scale": "is `--guidance`",
        "--medvram": "is `--offload model`",
        "--lowvram": "is `--offload sequential`",
        "--enable-model-cpu-offload": "is `--offload model`",
        "--enable-sequential-cpu-offload": "is `--offload sequential`",
        "--vae-tiling": "is `--tiled`",
    },
    "rl": {
        "--colocated": "is what happens without `--rollout-workers`: trainer and engines take turns on all devices",
        "--colocate-all-models": "is what happens without `--rollout-workers`: trainer and engines take turns on all "
        "devices",
        "--reward-seconds": "is `--reward seconds=TIME`",
        "--reward-model": "is `--reward model=NETWORK`",
        "--turns": "is `--tools turns=N,seconds=TIME`",
        "--max-turns": "is `--tools turns=N,seconds=TIME`",
        "--critic": "is a part of `--algorithm ppo`, and of no other algorithm",
        "--beta": "is not needed: `--reference yes` says that a penalty is computed, whatever its weight",
        "--kl-coef": "is not needed: `--reference yes` says that a penalty is computed, whatever its weight",
        "--num-generations": "is `--samples-per-prompt`",
        "--n-samples-per-prompt": "is `--samples-per-prompt`",
        "--max-completion-length": "is `--max-tokens`, with the tokens of the prompt",
        "--rollout-max-response-len": "is `--max-tokens`, with the tokens of the prompt",
        "--max-tokens-per-gpu": "is `--micro-batch-tokens`",
        "--max-off-policy-steps": "is `--steps-off`",
        "--enforce-eager": "is `--engine-settings eager=yes`",
        "--gpu-memory-utilization": "is `--engine-settings memory-fraction=FRACTION`",
        "--vllm-gpu-memory-utilization": "is `--engine-settings memory-fraction=FRACTION`",
        "--vllm-tensor-parallel-size": "is `--rollout-tensor`",
        "--rollout-num-gpus": "is `--rollout-workers`",
        "--rollout-num-gpus-per-engine": "is `--rollout-tensor`",
    },
}
"""Options of other programs that people bring, by command, with what they are here."""


def find_moved(command: str, option: str, *, is_question: bool) -> str | None:
    """Return the sentence about an option of an earlier version, or of another program; None for any other.

    Only commands of a kind of question have what all kinds ask: the network, the device, prices.
    """
    tables = [MOVED.get(command, {})]
    if is_question:
        tables += [MOVED_EVERYWHERE, BROUGHT.get(command, {})]
    advice = next((table[option] for table in tables if option in table), None)
    return None if advice is None else f"`{option}` {advice}"
