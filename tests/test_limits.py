"""Limits of options: the value at a limit is answered, and the next one is refused by a sentence that says so."""

from __future__ import annotations

import shlex

import pytest
from click.testing import CliRunner

from paleo_lite.cli import main

COMMANDS = {
    "serve": "serve llama-3-8b --gpu h100-sxm --rate 5 --num-requests 20 --input-tokens 128 --output-tokens 8",
    "users": "serve llama-3-8b --gpu h100-sxm --concurrency 4 --num-requests 20 --input-tokens 128 --output-tokens 8",
    "train": "train llama-3.2-1b --gpu h100-sxm --workers 2 --precision bf16 --sequence-length 512",
    "experts": "train qwen3-30b-a3b --gpu h100-sxm --workers 8 --precision bf16 --expert-parallel 8",
    "layers": "train vgg16 --gpu v100-sxm2 --workers 4",
    "rl": "rl qwen3-8b --gpu h100-sxm --workers 8",
    "predict": "predict vgg16 --gpu t4",
    "video": "diffusion wan-2.1-1.3b --gpu h100-sxm",
    "picture": "diffusion flux.1-dev --gpu h100-sxm --phase inference",
    "local": "local llama-3.3-70b --gpu rtx3060",
    "gemm": "gemm 8 8 8",
}

PAIRS = [
    ("serve", "--speculation tokens=3,acceptance=0", "--speculation tokens=3,acceptance=1",
     "`--speculation acceptance` must be a probability >= 0 and < 1 (got 1)"),
    ("serve", "--speculation tokens=3,acceptance=0.5,0.5,0.4", "--speculation tokens=3,acceptance=0.5,0.6,0.4",
     "`--speculation acceptance` by position falls"),
    ("serve", "--speculation tokens=2,acceptance=0.5,0.4", "--speculation tokens=3,acceptance=0.5,0.4",
     "takes one share, or one per drafted token: 3 of them (got 2)"),
    ("serve", "--scaling max=2,target=5,min=2,start=1s", "--scaling max=2,target=5,min=3,start=1s",
     "`--scaling` needs 1 <= min <= max (got min=3,max=2)"),
    ("serve", "--replicas 3 --scaling max=3,target=5,start=1s", "--replicas 4 --scaling max=3,target=5,start=1s",
     "`--replicas` must be from min=1 to max=3 of `--scaling` (got 4)"),
    ("serve", "--scaling fail-at=1s,start=1s", "--scaling start=1s", "is for replicas that start"),
    ("serve", "--replicas 2 --router least-loaded", "--replicas 2 --router prefix", "`--router prefix` needs prefixes"),
    ("serve", "--replicas 2 --router random", "--router random", "`--router` chooses among several replicas"),
    ("serve", "--admission max-concurrent-requests=4", None, ""),
    ("users", None, "--admission max-concurrent-requests=4", "give `--rate` instead of `--concurrency`"),
    ("serve", "--slo ttft.p99=1s", "--slo start=1s", "must be limits of ttft, tpot, latency with"),
    ("serve", "--workload classes:a.priority=-1", "--workload classes:a.priority=high",
     "must be an integer, of which lower ones are admitted first (got 'high')"),
    ("serve", "--workload classes:a.share=1", "--workload classes:a.weight=1", "has no setting 'weight'"),
    ("serve", "--seed 0", "--seed -1", "`--seed` must be an integer >= 0 (got -1)"),
    ("serve", "--prefill-pool replicas=1 --decode-pool replicas=1", "--decode-pool replicas=1",
     "`--decode-pool` needs `--prefill-pool`"),
    ("serve", "--kv-cache fp8 --prefill-pool replicas=1", "--prefill-pool replicas=1,kv-cache=fp8",
     "the caches of both pools must have one format"),
    ("experts", "--experts imbalance=1", "--experts imbalance=0.99",
     "`--experts imbalance` must be >= 1, the busiest device over the mean (got 0.99)"),
    ("experts", "--experts capacity=0.01", "--experts capacity=0", "`--experts capacity` must be > 0 (got 0)"),
    ("experts", "--experts overlap=1", "--experts overlap=1.01", "must be between 0 and 1 (got 1.01)"),
    ("experts", "--experts overlap=0", None, ""),
    ("train", "--recompute selective", "--recompute selective:layernorm", "is for `--execution megatron` (got eager)"),
    ("train", "--execution megatron --recompute selective:layernorm", "--recompute selective:norms",
     "no module to recompute is called 'norms'"),
    ("train", "--recompute full:2", "--recompute full:layernorm", "takes the number of blocks"),
    ("train", "--samples 1M", "--samples 1M --tokens 1M", "give one of `--samples` and `--tokens`"),
    ("train", "--lora 8 --trainable dropout=0.99", "--lora 8 --trainable dropout=1",
     "`--trainable dropout` must be a probability >= 0 and < 1 (got 1)"),
    ("train", "--lora 8 --trainable dropout=0.1", "--trainable dropout=0.1", "is of adapters: give `--lora RANK`"),
    ("train", "--global-batch-size 4", "--global-batch-size 3", "must be divisible by 2"),
    ("train", "--micro-batch 1", "--micro-batch 0", "`--micro-batch` must be an integer >= 1 (got 0)"),
    ("train", "--pipeline 2", "--pipeline 3", "must divide the number of workers"),
    ("train", "--context-parallel 2", "--context-parallel 3", "must divide the number of workers"),
    ("layers", "--link nvlink2-x6 --tensor 2 --strategy data", "--link nvlink2-x6 --tensor 2 --strategy tensor",
     "goes with a strategy of data"),
    ("rl", "--rollout-workers 7", "--rollout-workers 8", "must leave devices of the 8 of `--workers` to the trainer"),
    ("rl", "--rollout-workers 4 --steps-off 1", "--steps-off 1", "needs devices of their own for rollouts"),
    ("rl", "--max-tokens 257 --response-tokens 1", "--max-tokens 256", "must exceed the 256 tokens"),
    ("rl", "--rollout-tensor 8", "--rollout-tensor 3", "must divide the 8 devices of rollouts"),
    ("rl", "--updates-per-step 1024", "--updates-per-step 2048", "must divide the 1,024 samples of a step"),
    ("rl", "--clipped-share 0.1", "--clipped-share 1.01", "must be a number from 0 to 1"),
    ("predict", "--time-model ppp --ppp 0.01", "--time-model ppp --ppp 0", "`--ppp` must be a number > 0"),
    ("predict", "--power-limit 14W", "--power-limit 12W", "must be above the 13 W that Tesla T4 draws"),
    ("video", "--frames 85", "--frames 86", "must be a multiple of 4 plus 1, such as 85 or 89 (got 86)"),
    ("picture", "--ulysses 4 --workers 4", "--ulysses 5 --workers 5", "--ulysses must divide the 24 heads"),
    ("local", "--gpu-layers 21", "--gpu-layers 22", "use `--gpu-layers 21`, which fits"),
    ("gemm", "--peak '1 FLOP/s'", "--peak '0 FLOP/s'", "the peak must be above 0 (got 0 FLOP/s)"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "words", "sentence"), [
    case
    for name, accepted, refused, sentence in PAIRS
    for case in ((name, accepted, None), (name, refused, sentence))
    if case[1] is not None
])  # fmt: skip
def test_a_limit_is_where_its_sentence_says(command: str, words: str, sentence: str | None) -> None:
    said = CliRunner().invoke(main, shlex.split(f"{COMMANDS[command]} {words}"))
    if sentence is None:
        assert said.exit_code == 0, said.output
    else:
        assert said.exit_code in (1, 2) and sentence in said.stderr and len(said.stderr.splitlines()) == 1
