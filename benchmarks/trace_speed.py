"""Time to trace a module, compared with torch's counter; both count a module in memory on the meta device."""

from __future__ import annotations

from .turns import Turns, take_turns

NAMES = ("resnet50", "mobilenet_v3_large", "vit_b_16", "swin_t")


def measure(repeats: int) -> list[Turns]:
    """Return a table for each network."""
    from paleo_lite.architectures.torch_import import import_torchvision

    import_torchvision()
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from paleo_lite.architectures.build import torchvision_model
    from paleo_lite.architectures.trace import trace

    def contest(name: str) -> Turns:
        module, size = torchvision_model(name)
        module.eval().to("meta")

        def theirs() -> None:
            with torch.no_grad(), FlopCounterMode(display=False):
                module(torch.empty(1, 3, size, size, device="meta"))

        seconds = take_turns(
            {"paleo-lite": lambda: trace(module, (1, 3, size, size)), "FlopCounterMode": theirs}, 3 * repeats
        )
        return Turns(f"tracing {name}", seconds, wanted={"FlopCounterMode": 3.0})

    return [contest(name) for name in NAMES]
