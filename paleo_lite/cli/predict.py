"""``paleo-lite predict``."""

from __future__ import annotations

from typing import Any

import click
from msgspec import structs

from ..api.prediction import predict as run_prediction
from ..api.prediction import predict_several
from ..errors import BadValue
from ..local import LOCAL
from ..reporting.predictions import explain_layer, prediction_page
from ..timing.pipeline_prediction import PipelinePrediction
from ..timing.pipeline_run import PIPELINE_OFFLOADS
from . import options, pipeline_options, scale_options, serving_options, training_options
from .answers import Answer, command
from .local import answer_local, reject_options_of_local, reject_options_of_others
from .options import OutputOption
from .values import DEVICE, INTEGER, LAYER, NETWORK, CommaSeparated, Names, Quantity, to_list


@command()
@options.network(required=False, type=CommaSeparated(NETWORK))
@options.gpu(
    required=False,
    type=CommaSeparated(DEVICE),
    help="Device, by name or alias, such as k80 or v100-sxm2; several separated by commas.",
)
@options.precision(type=CommaSeparated(options.TRAINING_PRECISIONS))
@options.batch_size(type=CommaSeparated(INTEGER), help="Samples per pass; several as 1,8,32 or as a range 1:64:x2.")
@options.phase(
    type=CommaSeparated(options.PHASES_AND_GENERATING),
    help="training is forward, backward and update; prefill and decode are the phases of text generation.",
)
@options.time_model("ppp with --ppp, peak for a FLOP count, otherwise ")
@options.ppp()
@options.concurrent()
@options.convention()
@options.clock()
@options.power_limit()
@options.unit()
@click.option(
    "--flops",
    metavar="COUNT",
    help="FLOPs per sample instead of a network, such as 30.97G; a multiply-accumulate counts as 2.",
)
@click.option(
    "--macs",
    metavar="COUNT",
    help="Multiply-accumulates per sample instead of a network, such as 15503M; each is 2 FLOPs.",
)
@options.calibration()
@options.execution(
    type=Names(
        "execution",
        ".counting.fusion:EXECUTIONS",
        ".serving.engines:KERNEL_ENGINES",
        ".local.engines:EXECUTIONS",
        ".timing.pipeline_run:EXECUTIONS",
    ),
    help="Kernel fusion and casts: eager (none); autocast (casts for mixed precision); channels-last (images as NHWC); "
    "megatron (fused softmax and residuals, as Megatron-LM); compiled (fused pointwise chains); at inference folded "
    "(also batch norms folded into convolutions) and engine (fused as by an inference engine); in prefill and decode "
    "vllm, sglang and tensorrt-llm (the kernels of the engine, as in scale and serve); for a language model on one's "
    "own machine llama.cpp (GGUF), mlx (Macs) and exllama (GeForce); tensorrt is the engine of a pipeline. [default: "
    "eager; in prefill and decode vllm where its kernels are known, otherwise engine]",
)
@click.option(
    "--backend",
    type=Names("backend", ".local.engines:BACKENDS"),
    help="With llama.cpp: backend, such as rocm on a Radeon. [default: cuda, metal, cpu, otherwise vulkan]",
)
@serving_options.kv_cache(
    help="In prefill and decode under an engine: format of keys and values. [default: the precision, at least 16 bits; "
    "with llama.cpp f16]"
)
@serving_options.expert_parallel(hidden=True)
@serving_options.attention_data_parallel(hidden=True)
@click.option(
    "--gpus", type=INTEGER, default=1, show_default=True, help="With llama.cpp: devices that the layers are split over."
)
@click.option(
    "--gpu-layers",
    metavar="N|auto",
    help="With llama.cpp: transformer blocks on the device. [default: auto, the fastest that fits]",
)
@click.option("--cpu-experts", is_flag=True, help="With llama.cpp: keep experts in the memory of the host.")
@click.option("--cpu-cache", is_flag=True, help="With llama.cpp: keep keys and values in the memory of the host.")
@click.option(
    "--device-memory",
    type=Quantity("B"),
    metavar="SIZE",
    help="With llama.cpp: memory of the device, such as 16GB for a Mac. [default: the one on record]",
)
@click.option(
    "--advise",
    is_flag=True,
    help="With llama.cpp: rank formats on one device, or devices in one format.",
)
@click.option("--cpu", type=DEVICE, help="With llama.cpp: processor of the host. [default: ryzen-9-7950x]")
@options.attention()
@options.weights()
@training_options.optimizer()
@training_options.mixed_precision()
@training_options.checkpointing()
@training_options.accumulation()
@training_options.fine_tuning()
@training_options.amount_of_tokens()
@training_options.epochs()
@scale_options.price()
@scale_options.price_of()
@scale_options.facility()
@options.fit_batch()
@click.option("--memory", is_flag=True, cls=OutputOption, help="Show the peak memory by part.")
@options.picture_size()
@pipeline_options.pipeline()
@pipeline_options.images()
@options.sequence_length()
@options.context()
@options.inputs()
@options.rules()
@options.hardware_files()
@click.option("--explain", metavar="LAYER", cls=OutputOption, type=LAYER, help="Show the arithmetic of one layer.")
@options.top(default="10", help="Number of the slowest layers to list.")
@click.pass_obj
def predict(
    output: dict[str, Any],
    /,
    network: Any,
    gpu: Any,
    precision: Any,
    batch_size: Any,
    phase: Any,
    memory: bool,
    explain: str | None,
    top: int | None,
    backend: str | None,
    kv_cache: str | None,
    gpus: int,
    gpu_layers: str | None,
    cpu_experts: bool,
    cpu_cache: bool,
    device_memory: float | None,
    advise: bool,
    cpu: str | None,
    **arguments: Any,
) -> Answer:
    """Predict how long NETWORK takes on a device.

    NETWORK is a shipped network (`paleo-lite networks list`), a file (a descriptor, a config.json of Hugging Face,
    ONNX, an exported program), timm:NAME, hf:FOLDER, or package.module:factory with --input, which is imported and
    called. With several networks, devices, precisions, phases or batch sizes, separated by commas, every combination is
    predicted and compared with the first.

    \b
      paleo-lite predict vgg16 --gpu k80 --precision fp64
      paleo-lite predict resnet50 --gpu v100-sxm2 --precision fp16 --batch-size 64 --phase training
      paleo-lite predict resnet50 --gpu t4 --phase training --fit-batch --optimizer adam --checkpointing sqrt
      paleo-lite predict vgg16,resnet50 --gpu k80-die,k40m,p100-sxm2 --batch-size 1,8,32
      paleo-lite predict llama-3-8b --gpu h100-sxm --precision bf16 --phase decode --batch-size 8 --context 4096
      paleo-lite predict llama-3-8b --gpu rtx4090 --precision bf16 --phase training --lora 16 --weights int4
      paleo-lite predict llama-3.1-8b --gpu rtx3060 --execution llama.cpp --weights q4_k_m --context 8192
      paleo-lite predict qwen3-14b --gpu rtx3060 --execution llama.cpp --advise
      paleo-lite predict flux.1-dev --gpu rtx4090 --precision bf16 --steps 28 --image-size 1024 --offload model
      paleo-lite predict vgg16 --gpu k40m --ppp 0.62
      paleo-lite predict --macs 15503M --gpu k80
    """
    own = {
        "backend": backend,
        "kv_cache": kv_cache,
        "gpus": gpus if gpus != 1 else None,
        "gpu_layers": gpu_layers,
        "cpu_experts": cpu_experts,
        "cpu_cache": cpu_cache,
        "device_memory": device_memory,
        "advise": advise,
        "cpu": cpu,
    }
    if arguments["execution"] in LOCAL:
        reject_options_of_others(arguments["execution"])
        return answer_local(network, gpu, top, own, arguments)
    reject_options_of_local({**own, "kv_cache": None})
    if gpu is None:
        raise click.UsageError("Missing option '--gpu'.")
    pictures = structs.replace(pipeline_options.take_pictures(arguments), images=arguments.pop("images"))
    if arguments["offload"] in PIPELINE_OFFLOADS[1:]:
        pictures = structs.replace(pictures, offload=arguments.pop("offload"))
    training = training_options.take_training_options(arguments)
    has_several = any(isinstance(value, list) for value in (network, gpu, precision, batch_size, phase))
    if has_several:
        if explain:
            raise BadValue(
                "`--explain` needs a single prediction: give one network, device, precision, phase and batch size"
            )
        several = predict_several(
            to_list(network),
            gpus=to_list(gpu),
            precisions=to_list(precision),
            phases=to_list(phase),
            batch_sizes=to_list(batch_size),
            training=training,
            pictures=pictures,
            kv_cache=kv_cache,
            **arguments,
        )
        return Answer(several.to_dict, several.document, lambda: several, chart="devices")
    # The JSON output always includes the memory if the workload is a network.
    is_json = output.get("format") == "json"
    includes_memory = memory or (is_json and network is not None)
    prediction = run_prediction(
        network,
        gpu=gpu,
        precision=precision,
        batch_size=batch_size,
        phase=phase,
        training=training,
        memory=includes_memory,
        kv_cache=kv_cache,
        **structs.asdict(pictures),
        **arguments,
    )
    if isinstance(prediction, PipelinePrediction):
        if explain:
            raise BadValue("`--explain` is for the layers of one network, not for a pipeline")
        return Answer(prediction.to_dict, lambda: prediction.document(memory=memory), lambda: prediction)

    if explain:
        prediction.layer_index(explain)  # rejects an unknown name in every output format

    def make_document() -> Any:
        if explain:
            return explain_layer(prediction, explain)
        return prediction_page(prediction, top, memory)

    return Answer(prediction.to_dict, make_document, lambda: prediction)
