"""``paleo-lite scale``."""

from __future__ import annotations

import functools
from typing import Any

import click

from ..api.scaling import scale as run_scale
from ..units import parse_quantity
from . import options
from .options import Answer, Documented, command
from .values import LINK, SHARE, WHOLE, Names, Number

_documented = functools.partial(click.option, cls=Documented, of="scale")

_SPLIT = {
    "tensor": "tensor", "pipeline": "pipeline", "interleaved": "interleaved", "micro_batch": "micro_batch",
    "sequence_parallel": "sequence", "recompute": "recompute", "zero": "zero_stage", "context_parallel": "context",
    "expert_parallel": "experts",
}  # fmt: skip
"""Options that say how many devices share what, and the fields of a `Split`."""


@command()
@options.network()
@options.gpu(required=False, help="Device, by name or alias; a topology may name it.")
@options.workers()
@options.cluster
@options.batch_size(default=None, of="scale")
@options.precision()
@options.phase(
    type=options.PHASES_OF_MANY, default="training",
    help="prefill and decode are of writing text: all devices, or --tensor of them, share every matrix.",
)  # fmt: skip
@click.option(
    "--gradient-precision", type=click.Choice(("fp32", "fp16", "bf16")),
    help="Precision in which gradients are exchanged. [default: that of the arithmetic]",
)  # fmt: skip
@click.option("--bucket-size", metavar="SIZE", help="Gradients exchanged at once. [default: 25 MiB, first 1 MiB]")
@click.option("--no-overlap", is_flag=True, help="Exchange gradients after the backward pass, not beside it.")
@click.option("--micro-batches", type=WHOLE, help="Parts of a batch in a pipeline. [default: at least 4 per stage]")
@click.option("--tensor", type=WHOLE, help="Devices of a node that share every matrix; for networks from a config.")
@click.option("--pipeline", type=WHOLE, help="Stages of equal blocks, one after another.")
@click.option("--interleaved", type=WHOLE, help="Pieces of each stage, which take turns.")
@click.option("--sequence-parallel", is_flag=True, help="Devices that share matrices also share the sequence.")
@click.option("--context-parallel", type=WHOLE, help="Devices that share every sequence, in a ring.")
@click.option("--expert-parallel", type=WHOLE, help="Devices that share the experts of a mixture.")
@click.option("--micro-batch", type=WHOLE, help="Samples that pass through a pipeline at once. [default: 1]")
@click.option("--zero", type=Number(0, 3), help="What replicas share out with --tensor or --pipeline. [default: 1]")
@click.option(
    "--recompute", type=Names("recomputation", ".distributed.job:RECOMPUTATIONS"),
    help="Of each block, with --tensor or --pipeline. [default: none]",
)  # fmt: skip
@click.option(
    "--slowdown", type=float, metavar="SHARE", help="By what share computing takes longer once several devices work."
)
@click.option(
    "--interference", type=float, metavar="SHARE", help="By what share of hidden exchanges computing takes longer."
)
@click.option(
    "--measured", multiple=True, metavar="TEXT",
    help="What you measured, '16 workers: 5,900 samples/s' or '16 workers: 350 ms': several allowed.",
)  # fmt: skip
@click.option(
    "--storage", type=LINK, metavar="STORE", help="Where samples lie: hdd, ssd, nvme, memory, '500 MB/s'; of each node."
)
@click.option(
    "--decode", metavar="RATE", help="Samples a second that a node decodes: 3,000/s. [default: nothing to decode]"
)
@click.option(
    "--pageable", is_flag=True, help="One process copies the samples of a node's devices, in turn, before they compute."
)
@options.training
@options.time_model()
@options.ppp()
@options.concurrent(of="scale")
@_documented("--ppp-comm", type=SHARE)
@options.calibration()
@options.clock()
@options.unit()
@_documented("--cost", is_flag=True)
@_documented("--compat", type=click.Choice(["paleo"]))
@_documented("--revision", type=Names("revision", ".paleo:REVISIONS"), default="first", show_default=True)
@options.weights()
@options.execution()
@options.image_size()
@options.sequence_length()
@options.context()
@options.inputs()
@options.hardware_files()
def scale(**asked: Any) -> Answer:
    """Predict how NETWORK trains, or writes text, on many devices: time by part, speed-up, hours, cost, what limits it.

    \b
      paleo-lite scale resnet50 --gpu k80-die --link ethernet20 --workers 1,2,4,...,128
      paleo-lite scale vgg16 --gpu p100-sxm2 --link nvlink1-x4 --workers 8 --batch-size 64 --advise
      paleo-lite scale resnet50 --topology "2x k40m @ pcie3, 16 nodes @ infiniband-fdr" --workers 2,4,8,...,32
      paleo-lite scale gpt3-175b --platform dgx-a100 --workers 1024 --tensor 8 --pipeline 16 --precision bf16
      paleo-lite scale llama-3-70b --platform p5.48xlarge --workers 2,4,8 --precision bf16 --phase decode
      paleo-lite scale vgg16 --gpu v100-sxm2 --link nvlink2-x6 --workers 8 --images 1.28M --epochs 74 --price 3.06
    """
    from ..distributed.job import BUCKET_BYTES, Settings, Split
    from ..reporting.scale import scale_page

    bucket = asked.pop("bucket_size")
    shared = {field: value for name, field in _SPLIT.items() if (value := asked.pop(name)) not in (None, False)}
    if "zero_stage" in shared:
        shared["zero_stage"] = int(shared["zero_stage"])
    settings = Settings(
        collective=asked.pop("collective"),
        gradient_precision=asked.pop("gradient_precision"),
        overlap=not asked.pop("no_overlap"),
        bucket_bytes=BUCKET_BYTES if bucket is None else parse_quantity(bucket, "B"),
        micro_batches=asked.pop("micro_batches"),
        slowdown=asked.pop("slowdown") or 0.0,
        interference=asked.pop("interference") or 0.0,
        split=Split(**shared) if shared else None,
    )
    table = run_scale(asked.pop("network"), settings=settings, training=options.trained(asked), **asked)
    return Answer(table.to_dict, lambda: scale_page(table), lambda: table)
