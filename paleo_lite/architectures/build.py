"""Building modules without memory: parameters and buffers come to be on the meta device."""

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

_STORAGE = frozenset(("empty", "zeros", "ones", "full", "rand", "randn", "empty_strided"))


class MetaParameters(TorchFunctionMode):
    """Puts tensors that are made to be filled later on the meta device, as long as no other is named.

    Under ``torch.device("meta")`` everything goes there, also the small tables that some constructors compute widths
    from (RegNet calls ``.tolist()`` on one). Here ``torch.arange``, ``torch.tensor`` and their kin stay real.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__name__", "") in _STORAGE and kwargs.get("device") is None:
            kwargs = {**kwargs, "device": "meta"}
        return function(*args, **kwargs)


def build(factory: Callable[[], Any]) -> nn.Module:
    """Call a factory so that its parameters take no memory; where it cannot do that, call it as it is."""
    try:
        with MetaParameters():
            module: nn.Module = factory()
    except Exception:  # a factory that loads weights or reads values back needs real memory; its own error comes below
        module = factory()
    return module


def torchvision_names() -> list[str]:
    """All classification models of the installed torchvision."""
    models = import_torchvision().models
    return list(models.list_models(module=models))


def torchvision_model(name: str, image_size: int | None = None) -> tuple[nn.Module, int]:
    """A torchvision classification model on the meta device, and its image size: by default its first weights'.

    Auxiliary heads are off: GoogLeNet is built without, Inception v3 does not call its own in evaluation mode (its
    parameters belong to the model as torchvision publishes it).

    Raises
    ------
    UnknownName
        If torchvision has no classification model of that name.
    TraceFailed
        If the model does not come in that size.
    """
    models = import_torchvision().models
    if name not in torchvision_names():
        raise UnknownName("torchvision classification model", name, torchvision_names())
    weights = next(iter(models.get_model_weights(name)))
    options: dict[str, Any] = {"googlenet": {"aux_logits": False}}.get(name, {})
    if name in ("googlenet", "inception_v3"):
        options["init_weights"] = False
    size = image_size or int(weights.transforms().crop_size[0])
    if name.startswith("vit_"):
        options["image_size"] = size  # the position embedding is as long as the image has patches
    if name.startswith("maxvit_"):
        options["input_size"] = (size, size)  # the windows are cut to the image
    try:
        return build(lambda: models.get_model(name, weights=None, **options)), size
    except Exception as error:
        raise TraceFailed(f"{name} cannot be built for images of {size} x {size}: {error}") from error


def timm_model(name: str, image_size: int | None = None) -> tuple[nn.Module, Shape, str]:
    """A model of timm's on the meta device, without weights, the shape of its input, and timm's version.

    Raises
    ------
    FactoryFailed
        If timm is not installed, or cannot build the model for such images.
    UnknownName
        If timm has no model of that name.
    """
    try:
        timm = _import("timm")
    except ImportError:
        raise FactoryFailed(f"timm:{name} needs timm: pip install timm") from None
    if not timm.is_model(name):
        raise UnknownName("model of timm's", name, timm.list_models())
    size = {} if image_size is None else {"img_size": image_size}
    try:
        try:
            module = build(lambda: timm.create_model(name, **size))
        except TypeError:  # convolutions alone take images of any size
            module = build(lambda: timm.create_model(name))
    except Exception as error:
        raise FactoryFailed(f"timm:{name} cannot be built: {type(error).__name__}: {error}") from error
    channels, *sides = module.default_cfg.get("input_size", (3, 224, 224))
    return module, (channels, *(sides if image_size is None else (image_size, image_size))), str(timm.__version__)


def load_factory(reference: str) -> nn.Module:
    """The module that ``package.module:factory`` makes; the factory may also be a module itself.

    This imports and calls, so it runs whatever code stands there.

    Raises
    ------
    FactoryFailed
        If it cannot be imported, raises or returns something else; the message carries its own error.
    """
    if reference.count(":") != 1 or not all(reference.split(":")):
        raise FactoryFailed(f"{reference!r} is not a factory: expected package.module:factory")
    module_name, attribute = reference.split(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a file beside the user, as python -m would find it
    try:
        target = _import(module_name)
        for part in attribute.split("."):
            target = getattr(target, part)
        made = target if isinstance(target, nn.Module) else build(target)
    except Exception as error:
        raise FactoryFailed(f"{reference} failed: {type(error).__name__}: {error}") from error
    if not isinstance(made, nn.Module):
        raise FactoryFailed(f"{reference} returned a {type(made).__name__}, not a torch.nn.Module")
    return made


def _import(name: str) -> Any:
    """A user's module; what it imports of torchvision works beside a CPU build of torch, too."""
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        if MISSING_OPERATOR not in str(error):
            raise
    import_torchvision()
    return importlib.import_module(name)


__all__ = ["MetaParameters", "build", "load_factory", "timm_model", "torchvision_model", "torchvision_names"]
