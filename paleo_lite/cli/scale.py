"""``paleo-lite scale``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from ..api.scaling import scale as run_scale
from ..errors import BadValue
from ..units import parse_quantity
from . import options, pipeline_options, scale_options, serving_options, training_options
from .answers import Answer, command
from .values import INTEGER, LINK, PPP, Names, Number

if TYPE_CHECKING:
    from ..distributed.parallel_config import ParallelConfig


_PARALLEL_FIELDS = {
    "tensor": "tensor",
    "pipeline": "pipeline",
    "pipeline_layout": "layout",
    "interleaved": "virtual_stages",
    "sequence_parallel": "sequence_parallel",
    "context_parallel": "context",
    "expert_parallel": "expert",
    "attention_data_parallel": "attention_data",
    "expert_dispatch": "dispatch",
    "expert_kernels": "expert_kernels",
    "expert_tensor_parallel": "expert_tensor",
    "expert_imbalance": "expert_imbalance",
    "expert_capacity": "expert_capacity",
    "expert_overlap": "expert_overlap",
    "micro_batch": "micro_batch_size",
    "zero": "zero_stage",
    "recompute": "recompute",
    "recompute_modules": "recompute_modules",
    "offloaded_activations": "offloaded_share",
    "recompute_every": "recompute_every",
    "sharding": "sharding",
}
"""Fields of `ParallelConfig` by the options that state them."""


@command()
@options.network()
@options.gpu(required=False, help="Device, by name or alias; may be omitted if the topology or platform names it.")
@scale_options.workers()
@scale_options.link()
@scale_options.topology()
@scale_options.platform()
@scale_options.scaling()
@scale_options.strategy()
@scale_options.collective()
@scale_options.advise()
@training_options.images()
@training_options.amount_of_tokens()
@training_options.epochs()
@scale_options.price()
@scale_options.price_of()
@scale_options.facility()
@options.batch_size(
    default=None,
    help="Samples per worker for weak scaling [default: 32], global batch size for strong scaling [default: 32 per "
    "worker]; number of sequences in prefill and decode [default: 1].",
)
@options.precision(type=options.TRAINING_PRECISIONS)
@options.phase(
    type=scale_options.PHASES,
    default="training",
    help="prefill and decode are the phases of text generation, divided among all devices or --tensor of them; "
    "inference is for pipelines for pictures and videos.",
)
@click.option(
    "--gradient-precision",
    type=click.Choice(("fp32", "fp16", "bf16")),
    help="Precision of gradients in the all-reduce. [default: that of the arithmetic]",
)
@click.option("--bucket-size", metavar="SIZE", help="Size of gradient buckets. [default: 25 MiB, the first 1 MiB]")
@click.option("--no-overlap", is_flag=True, help="Exchange gradients after the backward pass instead of during it.")
@click.option("--micro-batches", type=INTEGER, help="Micro-batches of a pipeline. [default: at least 4 per stage]")
@click.option("--tensor", type=INTEGER, help="Tensor-parallel size, within a node; for networks from a config.")
@click.option("--pipeline", type=INTEGER, help="Pipeline-parallel size: stages of about equally many blocks.")
@click.option(
    "--pipeline-layout",
    metavar="TEXT",
    help="Blocks of each stage, as Megatron-LM writes them: 'Et*3|(tt|)*29,L'. [default: the most even]",
)
@click.option("--interleaved", type=INTEGER, help="Virtual pipeline stages per device (interleaved 1F1B schedule).")
@click.option("--sequence-parallel", is_flag=True, help="Sequence parallelism among the devices of tensor parallelism.")
@click.option("--context-parallel", type=INTEGER, help="Context-parallel size (ring attention).")
@click.option("--expert-parallel", type=INTEGER, help="Expert-parallel size, for mixtures of experts.")
@serving_options.attention_data_parallel(
    help="In prefill and decode: groups of the devices of a replica that compute attention for sequences of their own."
)
@serving_options.expert_load(
    help="In prefill and decode: tokens per expert, uniform or power-law:ALPHA, as for serve. [default: uniform]"
)
@serving_options.policy(
    help="In prefill and decode: engine whose kernels are timed, where they are known, without --execution. "
    "[default: vllm]"
)
@serving_options.kv_cache(
    help="In prefill and decode, with an engine: format of the KV cache. [default: the precision, at least 16 bits]"
)
@click.option(
    "--expert-dispatch",
    type=Names("library", ".distributed.expert_exchange:DISPATCHERS"),
    help="Library that sends tokens to their experts. [default: hybridep with megatron on Hopper and later, otherwise "
    "alltoall]",
)
@click.option(
    "--expert-kernels",
    type=Names("kernels", ".timing.expert_kernels:EXPERT_KERNELS"),
    help="Products of experts with megatron: separate (a kernel per expert) or fused (Megatron-Bridge from 26.06 on). "
    "[default: the mean of those that are possible]",
)
@click.option(
    "--expert-tensor-parallel", type=INTEGER, help="Devices that divide the matrices of every expert. [default: 1]"
)
@click.option(
    "--expert-imbalance",
    type=float,
    metavar="FACTOR",
    help="Tokens of the busiest device's experts over the mean. [default: 1, balanced]",
)
@click.option(
    "--expert-capacity",
    type=float,
    metavar="FACTOR",
    help="Capacity factor: tokens of an expert beyond so many times the mean are dropped. [default: none is]",
)
@click.option(
    "--expert-overlap",
    type=float,
    metavar="FRACTION",
    help="Share of the exchange of tokens that computation hides. [default: as calibrated]",
)
@click.option("--micro-batch", type=INTEGER, help="Samples per micro-batch of a pipeline. [default: 1]")
@click.option(
    "--zero", type=Number(0, 3), help="ZeRO stage of data parallelism with --tensor or --pipeline. [default: 1]"
)
@click.option(
    "--recompute",
    type=Names("recomputation", ".distributed.parallel_config:RECOMPUTATIONS"),
    help="Activation recomputation in each block, with --tensor or --pipeline. [default: none; with megatron on Hopper "
    "and later as much as the memory requires]",
)
@click.option(
    "--recompute-modules",
    metavar="LIST",
    help="Modules to compute again, as Megatron-LM names them: layernorm, moe_act, core_attn, mla_up_proj, mlp, moe, "
    "shared_experts.",
)
@click.option(
    "--offloaded-activations",
    type=float,
    metavar="FRACTION",
    help="Share of the saved activations that is copied to the memory of the host and back. [default: with megatron as "
    "much as the memory requires, where the link to the host is NVLink-C2C]",
)
@click.option(
    "--recompute-every", type=INTEGER, metavar="N", help="Recompute only every n-th block, with --recompute full."
)
@click.option(
    "--sharding",
    type=Names("sharding", ".distributed.parallel_config:SHARDINGS"),
    help="Sharding of networks in blocks: ddp, zero-1 to zero-3, FSDP's full-shard, shard-grad-op and hybrid-shard, or "
    "Megatron-LM's distributed-optimizer; instead of --zero.",
)
@click.option(
    "--slowdown",
    type=float,
    metavar="FRACTION",
    help="Relative increase of the compute time as soon as several devices work.",
)
@click.option(
    "--interference",
    type=float,
    metavar="FRACTION",
    help="Slowdown of computation while communication is hidden, as a fraction of the communication time.",
)
@click.option(
    "--measured",
    multiple=True,
    metavar="TEXT",
    help="Your own measurement, '16 workers: 5,900 samples/s' or '16 workers: 350 ms'; may be given several times.",
)
@click.option(
    "--storage",
    type=LINK,
    metavar="STORE",
    help="Storage of the samples of each node: hdd, ssd, nvme, memory, '500 MB/s'.",
)
@click.option(
    "--decode", metavar="RATE", help="Samples per second that a node decodes: 3,000/s. [default: no decoding]"
)
@click.option(
    "--pageable",
    is_flag=True,
    help="One process copies the samples of all devices of a node from pageable memory, before they compute.",
)
@training_options.optimizer()
@training_options.mixed_precision()
@training_options.checkpointing()
@training_options.accumulation()
@training_options.fine_tuning()
@options.time_model()
@options.ppp()
@options.concurrent(help="With --ppp or --compat: take the larger of arithmetic and memory time instead of their sum.")
@click.option(
    "--ppp-comm",
    type=PPP,
    help="Fraction of the link bandwidth that is reached. [default: as calibrated, or 1]",
)
@options.calibration()
@options.clock()
@options.power_limit()
@options.unit()
@click.option(
    "--by",
    type=Names("ranking", ".distributed.advise:RANKINGS"),
    default="time",
    show_default=True,
    help="What --advise ranks by: the time of a step, or the joules of a sample.",
)
@click.option("--cost", is_flag=True, help="Raise an error if no price is known.")
@click.option("--compat", type=click.Choice(["paleo"]), help="Reproduce the released PALEO, including its defects.")
@click.option(
    "--revision",
    type=Names("revision", ".paleo:REVISIONS"),
    default="first",
    show_default=True,
    help="Revision of PALEO, with --compat.",
)
@options.weights()
@options.execution(
    help="Software stack: in training megatron (fused kernels of Megatron-LM), compiled (torch.compile) or eager; in "
    "prefill and decode as for predict, layer by layer. [default: megatron for networks in blocks, otherwise eager; in "
    "prefill and decode the kernels of --policy, or engine where they are not known]"
)
@options.attention()
@options.picture_size()
@pipeline_options.pipeline()
@options.sequence_length()
@options.context()
@options.inputs()
@options.hardware_files()
def scale(network: str, **arguments: Any) -> Answer:
    """Predict training or text generation of NETWORK on many devices: time by part, speed-up, hours, cost, bottleneck.

    \b
      paleo-lite scale resnet50 --gpu k80-die --link ethernet20 --workers 1,2,4,...,128
      paleo-lite scale vgg16 --gpu p100-sxm2 --link nvlink1-x4 --workers 8 --batch-size 64 --advise
      paleo-lite scale resnet50 --topology "2x k40m @ pcie3, 16 nodes @ infiniband-fdr" --workers 2,4,8,...,32
      paleo-lite scale gpt3-175b --platform dgx-a100 --workers 1024 --tensor 8 --pipeline 16 --precision bf16
      paleo-lite scale llama-3-70b --platform p5.48xlarge --workers 2,4,8 --precision bf16 --phase decode
      paleo-lite scale deepseek-r1 --gpu h200-sxm --workers 8 --precision fp8 --phase decode --expert-parallel 8
      paleo-lite scale llama-3-8b --platform dgx-h100 --precision bf16 --zero 3 --tokens 15B
      paleo-lite scale wan-2.1-14b --gpu h100-sxm --precision bf16 --phase inference --workers 1,2,4,8
      paleo-lite scale vgg16 --gpu v100-sxm2 --link nvlink2-x6 --workers 8 --images 1.28M --epochs 74 --price 3.06
    """
    from ..distributed.settings import BUCKET_BYTES, Settings
    from ..distributed.table import ScaleTable
    from ..reporting.scale import scale_page

    parallel = _take_parallel_config(arguments)
    bucket_size = arguments.pop("bucket_size")
    settings = Settings(
        collective=arguments.pop("collective"),
        gradient_precision=arguments.pop("gradient_precision"),
        overlap=not arguments.pop("no_overlap"),
        bucket_bytes=BUCKET_BYTES if bucket_size is None else parse_quantity(bucket_size, "B"),
        micro_batches=arguments.pop("micro_batches"),
        slowdown=arguments.pop("slowdown") or 0.0,
        interference=arguments.pop("interference") or 0.0,
        parallel=parallel,
    )
    pictures = pipeline_options.take_pictures(arguments)
    if arguments["phase"] == "inference":
        pictures = structs.replace(pictures, offload=arguments.pop("offload"))
    training = training_options.take_training_options(arguments)
    table = run_scale(network, settings=settings, training=training, pictures=pictures, **arguments)
    if not isinstance(table, ScaleTable):
        return Answer(table.to_dict, table.document)
    return Answer(table.to_dict, lambda: scale_page(table), lambda: table)


def _take_parallel_config(arguments: dict[str, Any]) -> ParallelConfig | None:
    """Remove the options of parallelism from the arguments of the command, and return them; None if none is given."""
    from ..distributed.parallel_config import ParallelConfig

    given = {field: arguments.pop(option) for option, field in _PARALLEL_FIELDS.items()}
    given = {field: value for field, value in given.items() if value is not None and value is not False}
    if not given:
        return None
    if "zero_stage" in given and "sharding" in given:
        raise BadValue("give `--zero` or `--sharding`, not both")
    if "zero_stage" in given:
        given["zero_stage"] = int(given["zero_stage"])
    if "recompute_modules" in given:
        given["recompute_modules"] = tuple(given["recompute_modules"].replace(",", " ").split())
        given.setdefault("recompute", "selective")
    return ParallelConfig(**given)
