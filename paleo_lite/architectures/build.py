"""Builders of PyTorch modules on the meta device, where parameters and buffers take no memory."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from ..counting import Shape
from ..errors import FactoryFailed, TraceFailed, UnknownName
from .torch_import import MISSING_OPERATOR, import_torchvision

_ALLOCATING_FUNCTIONS = frozenset(("empty", "zeros", "ones", "full", "rand", "randn", "empty_strided"))


class MetaParameters(TorchFunctionMode):
    """A mode that allocates tensors on the meta device unless the call names a device.

    ``torch.device("meta")`` as a context moves every tensor there, including small tables from which some constructors
    compute widths (RegNet calls ``.tolist()`` on one). With this mode ``torch.arange``, ``torch.tensor`` and similar
    functions still return real tensors.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__name__", "") in _ALLOCATING_FUNCTIONS and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": "meta"}
        return function(*args, **kwargs)


def build_module(factory: Callable[[], Any]) -> nn.Module:
    """Call a factory with parameters on the meta device; if that fails, call it with real memory."""
    try:
        with MetaParameters():
            module: nn.Module = factory()
    except Exception:  # a factory that loads weights or reads values back needs real memory; other errors recur below
        module = factory()
    return module


def torchvision_names() -> list[str]:
    """Return the names of all classification models of the installed torchvision."""
    models = import_torchvision().models
    return list(models.list_models(module=models))


def torchvision_model(
    name: str,  # name of the model
    # Height and width of the images; the crop size of the model's first weights by default.
    image_size: int | None = None,
) -> tuple[nn.Module, int]:
    """Build a torchvision classification model on the meta device.

    Auxiliary heads are off: GoogLeNet is built without them, and Inception v3 does not call its own in evaluation mode
    (its parameters belong to the model as torchvision publishes it).

    Return the model, and the height and width of its images.

    Raise UnknownName if torchvision has no classification model with this name, and TraceFailed if the model cannot be
    built for this image size.
    """
    models = import_torchvision().models
    if name not in torchvision_names():
        raise UnknownName("torchvision classification model", name, torchvision_names())
    weights = next(iter(models.get_model_weights(name)))
    size = image_size or int(weights.transforms().crop_size[0])
    options: dict[str, Any] = {}
    if name == "googlenet":
        options["aux_logits"] = False
    if name in ("googlenet", "inception_v3"):
        options["init_weights"] = False
    if name.startswith("vit_"):
        options["image_size"] = size  # the position embedding has one entry per image patch
    if name.startswith("maxvit_"):
        options["input_size"] = (size, size)  # the attention windows divide the image
    try:
        return build_module(lambda: models.get_model(name, weights=None, **options)), size
    except Exception as error:
        raise TraceFailed(f"{name} cannot be built for images of {size} x {size}: {error}") from error


def timm_model(
    name: str,  # name of the model
    image_size: int | None,  # height and width of the images; timm's default for the model otherwise
) -> tuple[nn.Module, Shape, str]:
    """Build a timm model without weights on the meta device.

    Return it, the shape of one input sample, and the version of timm.

    Raise FactoryFailed if timm cannot build the model for this image size, and UnknownName if it has no model with this
    name.
    """
    timm = _import_module("timm")
    if not timm.is_model(name):
        raise UnknownName("timm model", name, timm.list_models())
    options = {} if image_size is None else {"img_size": image_size}
    try:
        try:
            module = build_module(lambda: timm.create_model(name, **options))
        except TypeError:  # purely convolutional models take images of any size and no `img_size`
            module = build_module(lambda: timm.create_model(name))
    except Exception as error:
        raise FactoryFailed(f"timm:{name} cannot be built: {type(error).__name__}: {error}") from error
    channels, *sides = module.default_cfg.get("input_size", (3, 224, 224))
    if image_size is not None:
        sides = [image_size, image_size]
    return module, (channels, *sides), str(timm.__version__)


def load_factory(reference: str) -> nn.Module:
    """Return the module that ``package.module:factory`` builds; the factory may also be a module itself.

    This imports the package and calls the factory, so it runs arbitrary code.

    Raise FactoryFailed if it cannot be imported, raises, or does not return a module; the message includes the original
    error.
    """
    if reference.count(":") != 1 or not all(reference.split(":")):
        raise FactoryFailed(f"{reference!r} is not a factory: expected package.module:factory")
    module_name, attribute = reference.split(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # files in the working directory can be imported, as with `python -m`
    try:
        target = _import_module(module_name)
        for part in attribute.split("."):
            target = getattr(target, part)
        result = target if isinstance(target, nn.Module) else build_module(target)
    except Exception as error:
        raise FactoryFailed(f"{reference} failed: {type(error).__name__}: {error}") from error
    if not isinstance(result, nn.Module):
        raise FactoryFailed(f"{reference} returned a {type(result).__name__}, not a torch.nn.Module")
    return result


def _import_module(name: str) -> Any:
    """Import a module; if importing torchvision fails with a CPU build of torch, repair that and try again."""
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        if MISSING_OPERATOR not in str(error):
            raise
    import_torchvision()
    return importlib.import_module(name)


__all__ = ["MetaParameters", "build_module", "load_factory", "timm_model", "torchvision_model", "torchvision_names"]
