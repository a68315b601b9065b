"""Convolutional networks in plain torch, at the sizes they are published with."""

import torch
import torch.nn.functional as F
from torch import nn


class ConvNorm(nn.Sequential):
    """Convolution, BatchNorm, activation."""

    def __init__(self, inputs, outputs, kernel=3, stride=1, groups=1, activation=nn.ReLU):
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(outputs),
        )
        if activation is not None:
            self.append(activation(inplace=True))


class Bottleneck(nn.Module):
    """ResNet's block of three convolutions."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        self.body = nn.Sequential(
            ConvNorm(inputs, width, 1),
            ConvNorm(width, width, 3, stride),
            ConvNorm(width, 4 * width, 1, activation=None),
        )
        changes = stride > 1 or inputs != 4 * width
        self.skip = ConvNorm(inputs, 4 * width, 1, stride, activation=None) if changes else None

    def forward(self, x):
        return F.relu(self.body(x) + (x if self.skip is None else self.skip(x)))


class ResNetBody(nn.Module):
    """Features at strides 4, 8, 16 and 32; 23.5M parameters as ResNet-50."""

    def __init__(self, width=64, depths=(3, 4, 6, 3)):
        super().__init__()
        self.stem = nn.Sequential(ConvNorm(3, width, 7, 2), nn.MaxPool2d(3, 2, 1))
        self.stages, inputs = nn.ModuleList(), width
        for index, depth in enumerate(depths):
            inner = width * 2**index
            stage = nn.Sequential()
            for block in range(depth):
                stage.append(Bottleneck(inputs, inner, 2 if block == 0 and index else 1))
                inputs = 4 * inner
            self.stages.append(stage)
        self.channels = [4 * width * 2**index for index in range(len(depths))]

    def forward(self, x):
        x, features = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        return features


class ResNetClassifier(nn.Module):
    def __init__(self, width, depths, classes):
        super().__init__()
        self.body = ResNetBody(width, depths)
        self.head = nn.Linear(self.body.channels[-1], classes)

    def forward(self, x):
        return self.head(self.body(x)[-1].mean((2, 3)))


class InvertedResidual(nn.Module):
    """MobileNetV2's block: wide, depthwise, narrow."""

    def __init__(self, inputs, outputs, stride, expansion):
        super().__init__()
        wide = inputs * expansion
        layers = [ConvNorm(inputs, wide, 1, activation=nn.ReLU6)] if expansion > 1 else []
        layers += [
            ConvNorm(wide, wide, 3, stride, groups=wide, activation=nn.ReLU6),
            ConvNorm(wide, outputs, 1, activation=None),
        ]
        self.body = nn.Sequential(*layers)
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, x):
        return x + self.body(x) if self.is_residual else self.body(x)


class MobileNetV2(nn.Module):
    """3.5M parameters at 1000 classes."""

    rows = (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
        (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    )  # fmt: skip

    def __init__(self, classes, repeats=None):
        super().__init__()
        self.stem, inputs = ConvNorm(3, 32, 3, 2, activation=nn.ReLU6), 32
        self.blocks = nn.Sequential()
        for expansion, outputs, count, stride in self.rows:
            for block in range(min(count, repeats or count)):
                first = stride if block == 0 else 1
                self.blocks.append(InvertedResidual(inputs, outputs, first, expansion))
                inputs = outputs
        self.last = ConvNorm(inputs, 1280, 1, activation=nn.ReLU6)
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))

    def forward(self, x):
        return self.head(self.last(self.blocks(self.stem(x))).mean((2, 3)))


class ConvNextBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(1e-6 * torch.ones(width))

    def forward(self, x):
        inner = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        inner = self.scale * self.narrow(F.gelu(self.wide(inner)))
        return x + inner.permute(0, 3, 1, 2)


class ConvNext(nn.Module):
    """ConvNeXt-T at widths from 96: 28.6M parameters."""

    def __init__(self, width, depths, classes):
        super().__init__()
        widths = [width * 2**index for index in range(len(depths))]
        self.stem = nn.Conv2d(3, width, 4, 4)
        self.down, self.stages = nn.ModuleList(), nn.ModuleList()
        for index, (inner, depth) in enumerate(zip(widths, depths, strict=True)):
            step = nn.Identity()
            if index:
                step = nn.Sequential(
                    nn.GroupNorm(1, widths[index - 1]), nn.Conv2d(widths[index - 1], inner, 2, 2)
                )
            self.down.append(step)
            self.stages.append(nn.Sequential(*(ConvNextBlock(inner) for _ in range(depth))))
        self.norm, self.head = nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], classes)

    def forward(self, x):
        x = self.stem(x)
        for down, stage in zip(self.down, self.stages, strict=True):
            x = stage(down(x))
        return self.head(self.norm(x.mean((2, 3))))


class Detector(nn.Module):
    """FCOS: ResNet, feature pyramid, towers that all levels share; 32M parameters."""

    def __init__(self, width, depths, pyramid, classes):
        super().__init__()
        self.body = ResNetBody(width, depths)
        channels = self.body.channels[1:]
        self.inner = nn.ModuleList(nn.Conv2d(c, pyramid, 1) for c in channels)
        self.outer = nn.ModuleList(nn.Conv2d(pyramid, pyramid, 3, padding=1) for _ in channels)
        self.towers = nn.ModuleList(nn.Sequential(*self._tower(pyramid)) for _ in range(2))
        self.scores = nn.Conv2d(pyramid, classes, 3, padding=1)
        self.boxes = nn.Conv2d(pyramid, 4, 3, padding=1)

    @staticmethod
    def _tower(width):
        for _ in range(4):
            yield nn.Conv2d(width, width, 3, padding=1)
            yield nn.GroupNorm(min(32, width), width)
            yield nn.ReLU(inplace=True)

    def forward(self, x):
        levels, above = [], None
        features = self.body(x)[1:]
        for index in reversed(range(len(features))):
            level = self.inner[index](features[index])
            if above is not None:
                level = level + F.interpolate(above, size=level.shape[-2:], mode="nearest")
            above = level
            levels.append(self.outer[index](level))
        scores = [self.scores(self.towers[0](level)).flatten(2) for level in levels]
        boxes = [self.boxes(self.towers[1](level)).flatten(2) for level in levels]
        return torch.cat(scores, 2).transpose(1, 2), torch.cat(boxes, 2).transpose(1, 2)


class Segmenter(nn.Module):
    """The U-Net of medical images: BatchNorm, transposed convolutions, 31M parameters."""

    def __init__(self, width, depth, classes):
        super().__init__()
        widths = [width * 2**index for index in range(depth)]
        pairs = zip([3, *widths], widths, strict=False)
        self.down = nn.ModuleList(self._stage(a, b) for a, b in pairs)
        back = list(zip(widths[::-1], widths[-2::-1], strict=False))
        self.widen = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in back)
        self.up = nn.ModuleList(self._stage(a, b) for a, b in back)
        self.head = nn.Conv2d(width, classes, 1)

    @staticmethod
    def _stage(inputs, outputs):
        return nn.Sequential(ConvNorm(inputs, outputs), ConvNorm(outputs, outputs))

    def forward(self, x):
        kept = []
        for index, stage in enumerate(self.down):
            x = stage(F.max_pool2d(x, 2) if index else x)
            kept.append(x)
        kept.pop()
        for widen, stage in zip(self.widen, self.up, strict=True):
            x = stage(torch.cat([kept.pop(), widen(x)], 1))
        return self.head(x)


class AudioConv(nn.Module):
    """Dilated residual convolutions over a waveform's frames: a temporal convolutional network."""

    def __init__(self, width, depth, classes):
        super().__init__()
        self.stem = nn.Conv1d(1, width, 80, 16, 32)
        self.blocks = nn.Sequential(*(Dilated(width, 2 ** (i % 6)) for i in range(depth)))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean(2))


class Dilated(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.first = nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation)
        self.second = nn.Conv1d(width, width, 1)
        self.norm, self.drop = nn.BatchNorm1d(width), nn.Dropout(0.1)

    def forward(self, x):
        return x + self.second(self.drop(F.relu(self.norm(self.first(x)))))
