"""``paleo-lite predict``."""

from __future__ import annotations

from typing import Any

import click

from ..api.prediction import predict as run_prediction
from ..api.prediction import predict_several
from ..errors import BadValue
from ..reporting.predictions import explain_layer, prediction_page
from . import options
from .options import Answer, Documented, Printing, command
from .values import DEVICE, LAYER, NETWORK, WHOLE, Several


@command()
@options.network(required=False, type=Several(NETWORK))
@options.gpu(type=Several(DEVICE), help="Device, by name or alias, such as k80 or v100-sxm2; several with commas.")
@options.precision(type=Several(options.PRECISIONS))
@options.batch_size(type=Several(WHOLE), help="Samples per pass; 1,8,32 or a range.")
@options.phase(
    type=Several(options.PHASES_AND_GENERATING),
    help="training is forward + backward + update; prefill and decode are of writing text.",
)
@options.time_model()
@options.ppp()
@options.concurrent()
@options.convention()
@options.clock()
@options.unit()
@click.option("--flops", cls=Documented, of="predict", metavar="COUNT")
@click.option("--macs", cls=Documented, of="predict", metavar="COUNT")
@options.calibration()
@options.execution()
@options.weights()
@options.training
@options.fit_batch()
@click.option("--memory", is_flag=True, cls=Printing, help="Show the peak memory by part.")
@options.image_size()
@options.sequence_length()
@options.context()
@options.inputs()
@options.rules()
@options.hardware_files()
@click.option(
    "--explain",
    metavar="LAYER",
    cls=Printing,
    type=LAYER,
    help="Show the arithmetic of one layer.",
)
@options.top(default="10", help="How many of the slowest layers to list.")
@click.pass_obj
def predict(
    said: dict[str, Any], /, network: str | None, explain: str | None, top: int | None, memory: bool, **question: Any
) -> Answer:
    """Predict how long NETWORK takes on a device.

    NETWORK is a shipped network (`paleo-lite networks list`), a file (a descriptor, a config.json of Hugging Face's,
    ONNX, an exported program), timm:NAME, hf:FOLDER, or package.module:factory with --input, which is imported and
    called. Of several networks, devices, precisions, phases or batch sizes, with commas between them, every combination
    is predicted, and each held against the first.

    \b
      paleo-lite predict vgg16 --gpu k80 --precision fp64
      paleo-lite predict resnet50 --gpu v100-sxm2 --precision fp16 --batch-size 64 --phase training
      paleo-lite predict resnet50 --gpu t4 --phase training --fit-batch --optimizer adam --checkpointing sqrt
      paleo-lite predict vgg16,resnet50 --gpu k80-die,k40m,p100-sxm2 --batch-size 1,8,32
      paleo-lite predict llama-3-8b --gpu h100-sxm --precision bf16 --phase decode --batch-size 8 --context 4096
      paleo-lite predict vgg16 --gpu k40m --ppp 0.62
      paleo-lite predict --macs 15503M --gpu k80
    """
    question["training"] = options.trained(question)
    asked = {name: question[name] for name in ("gpu", "precision", "phase", "batch_size")}
    if any(isinstance(value, list) for value in (network, *asked.values())):
        if explain:
            raise BadValue("--explain shows the arithmetic of one prediction: name one network, device and batch size")
        rest = {name: value for name, value in question.items() if name not in asked}
        lists = {f"{name}s": _listed(value) for name, value in asked.items()}
        several = predict_several(_listed(network), **lists, **rest)
        return Answer(several.to_dict, several.document, lambda: several, chart="devices")
    in_json = said.get("format") == "json" and network is not None
    prediction = run_prediction(network, memory=memory or in_json, **question)
    return Answer(
        prediction.to_dict,
        lambda: explain_layer(prediction, explain) if explain else prediction_page(prediction, top, memory),
        lambda: prediction,
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
