"""Caffe's GoogLeNet and ResNet-50, which Lu et al. (2017) counted; torchvision's networks of these names differ.

GoogLeNet: BVLC's bvlc_googlenet, with 5x5 branches and local response normalization, without batch normalization.
ResNet-50: the release of He et al., with the stride in the first 1x1 convolution ("v1"), and batch normalization and
scale as two layers. Caffe rounds pooled sizes up.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Inception(nn.Module):
    """Inception module: 1x1, 3x3 and 5x5 convolutions, the latter two after a 1x1 convolution, and pooling with 1x1."""

    def __init__(self, channels: int, one: int, three_in: int, three: int, five_in: int, five: int, pool: int) -> None:
        super().__init__()
        self.branch1 = _conv_relu(channels, one, 1)
        self.branch3 = nn.Sequential(_conv_relu(channels, three_in, 1), _conv_relu(three_in, three, 3, padding=1))
        self.branch5 = nn.Sequential(_conv_relu(channels, five_in, 1), _conv_relu(five_in, five, 5, padding=2))
        self.branch_pool = nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), _conv_relu(channels, pool, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Concatenate the branches."""
        return torch.cat([self.branch1(x), self.branch3(x), self.branch5(x), self.branch_pool(x)], 1)


def _conv_relu(channels_in: int, channels_out: int, kernel: int, stride: int = 1, padding: int = 0) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels_in, channels_out, kernel, stride, padding), nn.ReLU(inplace=True))


def googlenet() -> nn.Module:
    """Build BVLC GoogLeNet without its two auxiliary classifiers."""
    return nn.Sequential(
        _conv_relu(3, 64, 7, 2, 3),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.LocalResponseNorm(5),
        _conv_relu(64, 64, 1),
        _conv_relu(64, 192, 3, padding=1),
        nn.LocalResponseNorm(5),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        Inception(192, 64, 96, 128, 16, 32, 32),
        Inception(256, 128, 128, 192, 32, 96, 64),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        Inception(480, 192, 96, 208, 16, 48, 64),
        Inception(512, 160, 112, 224, 24, 64, 64),
        Inception(512, 128, 128, 256, 24, 64, 64),
        Inception(512, 112, 144, 288, 32, 64, 64),
        Inception(528, 256, 160, 320, 32, 128, 128),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        Inception(832, 256, 160, 320, 32, 128, 128),
        Inception(832, 384, 192, 384, 48, 128, 128),
        nn.AvgPool2d(7, 1),
        nn.Dropout(0.4),
        nn.Flatten(),
        nn.Linear(1024, 1000),
        nn.Softmax(1),
    )


class CaffeScale(nn.Module):
    """Scale and shift per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels, 1, 1))
        self.bias = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x * weight + bias``."""
        return torch.addcmul(self.bias, x, self.weight)


class Bottleneck(nn.Module):
    """Bottleneck block: 1x1 (with the stride), 3x3 and 1x1 convolutions, and a projection where the size changes."""

    def __init__(self, channels: int, width: int, stride: int, project: bool) -> None:
        super().__init__()
        self.branch1 = _conv_norm(channels, 4 * width, 1, stride) if project else nn.Identity()
        self.branch2 = nn.Sequential(
            _conv_norm(channels, width, 1, stride),
            nn.ReLU(inplace=True),
            _conv_norm(width, width, 3, padding=1),
            nn.ReLU(inplace=True),
            _conv_norm(width, 4 * width, 1),
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the rectified sum of the two branches."""
        shortcut: Tensor = self.branch1(x)
        out: Tensor = self.relu(shortcut + self.branch2(x))
        return out


def _conv_norm(channels_in: int, channels_out: int, kernel: int, stride: int = 1, padding: int = 0) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, kernel, stride, padding, bias=False),
        nn.BatchNorm2d(channels_out, affine=False),
        CaffeScale(channels_out),
    )


def resnet50() -> nn.Module:
    """Build the Caffe ResNet-50 of He et al."""
    layers: list[nn.Module] = [
        _conv_norm(3, 64, 7, 2, 3),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, ceil_mode=True),
    ]
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for block in range(blocks):
            is_first = block == 0
            stride = 2 if is_first and stage > 0 else 1
            layers.append(Bottleneck(channels, width, stride, project=is_first))
            channels = 4 * width
    layers += [nn.AvgPool2d(7, 1), nn.Flatten(), nn.Linear(channels, 1000), nn.Softmax(1)]
    return nn.Sequential(*layers)


NETWORKS: dict[str, Callable[[], nn.Module]] = {"googlenet-caffe": googlenet, "resnet50-caffe": resnet50}
"""Builders by name of the descriptor; both networks take 224 x 224 images."""
