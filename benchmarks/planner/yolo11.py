"""YOLO11n, written anew from its published structure, with the published figures to check it by:
2,624,080 parameters at 80 classes, 6.5 billion operations forward for an image of 640 pixels
(docs.ultralytics.com/models/yolo11)."""

import torch
import torch.nn.functional as F
from convolutional import ConvNorm
from torch import nn

BINS = 16  # a side of a box is a distribution over so many distances


def conv(inputs, outputs, kernel=1, stride=1, groups=1, is_linear=False):
    return ConvNorm(
        inputs, outputs, kernel, stride, groups, activation=None if is_linear else nn.SiLU
    )


class Residual(nn.Module):
    """Two convolutions around a narrow or an equal middle."""

    def __init__(self, width, middle):
        super().__init__()
        self.first, self.second = conv(width, middle, 3), conv(middle, width, 3)

    def forward(self, x):
        return x + self.second(self.first(x))


class C3k(nn.Module):
    def __init__(self, width):
        super().__init__()
        half = width // 2
        self.main, self.side = conv(width, half), conv(width, half)
        self.body = nn.Sequential(Residual(half, half), Residual(half, half))
        self.last = conv(2 * half, width)

    def forward(self, x):
        return self.last(torch.cat([self.body(self.main(x)), self.side(x)], 1))


class C3k2(nn.Module):
    """Split, one inner part, all of it joined; the inner part is `C3k` or a plain residual."""

    def __init__(self, inputs, outputs, *, is_deep=False, share=0.5):
        super().__init__()
        width = int(outputs * share)
        self.split = conv(inputs, 2 * width)
        self.inner = C3k(width) if is_deep else Residual(width, width // 2)
        self.join = conv(3 * width, outputs)

    def forward(self, x):
        parts = list(self.split(x).chunk(2, 1))
        return self.join(torch.cat([*parts, self.inner(parts[-1])], 1))


class Pooling(nn.Module):
    """SPPF: three poolings one after another, all of them kept."""

    def __init__(self, width):
        super().__init__()
        self.narrow, self.join = conv(width, width // 2), conv(2 * width, width)

    def forward(self, x):
        parts = [self.narrow(x)]
        for _ in range(3):
            parts.append(F.max_pool2d(parts[-1], 5, 1, 2))
        return self.join(torch.cat(parts, 1))


class PositionAttention(nn.Module):
    """Attention over positions with narrow keys, its values also through a depthwise window."""

    def __init__(self, width):
        super().__init__()
        self.heads = max(1, width // 64)
        self.of_value = width // self.heads
        self.of_key = self.of_value // 2
        self.mix = conv(width, width + 2 * self.of_key * self.heads, is_linear=True)
        self.place = conv(width, width, 3, groups=width, is_linear=True)
        self.last = conv(width, width, is_linear=True)
        self.wide, self.narrow = conv(width, 2 * width), conv(2 * width, width, is_linear=True)

    def forward(self, x):
        batch, _, height, breadth = x.shape
        mixed = self.mix(x).view(batch, self.heads, -1, height * breadth)
        q, k, v = mixed.split([self.of_key, self.of_key, self.of_value], 2)
        shares = ((q.transpose(-2, -1) @ k) * self.of_key**-0.5).softmax(-1)
        seen = (v @ shares.transpose(-2, -1)).view(x.shape)
        x = x + self.last(seen + self.place(v.reshape(x.shape)))
        return x + self.narrow(self.wide(x))


class C2psa(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.split, self.join = conv(width, width), conv(width, width)
        self.attend = PositionAttention(width // 2)

    def forward(self, x):
        kept, attended = self.split(x).chunk(2, 1)
        return self.join(torch.cat([kept, self.attend(attended)], 1))


class Yolo11(nn.Module):
    """Scores (batch, positions, classes) and box sides (batch, positions, 4, bins)."""

    def __init__(self, classes=80, scale=0.25):
        super().__init__()
        c = [int(scale * width) for width in (64, 128, 256, 512, 1024)]
        self.low = nn.Sequential(
            conv(3, c[0], 3, 2),
            conv(c[0], c[1], 3, 2),
            C3k2(c[1], c[2], share=0.25),
            conv(c[2], c[2], 3, 2),
            C3k2(c[2], c[3], share=0.25),
        )
        self.middle = nn.Sequential(conv(c[3], c[3], 3, 2), C3k2(c[3], c[3], is_deep=True))
        self.high = nn.Sequential(
            conv(c[3], c[4], 3, 2), C3k2(c[4], c[4], is_deep=True), Pooling(c[4]), C2psa(c[4])
        )
        self.up_middle, self.up_low = C3k2(c[4] + c[3], c[3]), C3k2(2 * c[3], c[2])
        self.down_low, self.down_middle = conv(c[2], c[2], 3, 2), conv(c[3], c[3], 3, 2)
        self.out_middle = C3k2(c[2] + c[3], c[3])
        self.out_high = C3k2(c[3] + c[4], c[4], is_deep=True)
        levels = (c[2], c[3], c[4])
        of_box, of_score = max(16, c[2] // 4, 4 * BINS), max(c[2], min(classes, 100))
        self.boxes = nn.ModuleList(self._boxes(width, of_box) for width in levels)
        self.scores = nn.ModuleList(self._scores(width, of_score, classes) for width in levels)
        # The weights that make a distance of a distribution: 0 to 15, never learned.
        self.distances = nn.Parameter(torch.arange(float(BINS)), requires_grad=False)

    @staticmethod
    def _boxes(width, inner):
        return nn.Sequential(
            conv(width, inner, 3), conv(inner, inner, 3), nn.Conv2d(inner, 4 * BINS, 1)
        )

    @staticmethod
    def _scores(width, inner, classes):
        return nn.Sequential(
            nn.Sequential(conv(width, width, 3, groups=width), conv(width, inner)),
            nn.Sequential(conv(inner, inner, 3, groups=inner), conv(inner, inner)),
            nn.Conv2d(inner, classes, 1),
        )

    def forward(self, image):
        low = self.low(image)
        middle = self.middle(low)
        high = self.high(middle)
        joined = self.up_middle(torch.cat([_doubled(high), middle], 1))
        low = self.up_low(torch.cat([_doubled(joined), low], 1))
        middle = self.out_middle(torch.cat([self.down_low(low), joined], 1))
        high = self.out_high(torch.cat([self.down_middle(middle), high], 1))
        levels = (low, middle, high)
        scores = [part(level).flatten(2) for part, level in zip(self.scores, levels, strict=True)]
        boxes = [part(level).flatten(2) for part, level in zip(self.boxes, levels, strict=True)]
        sides = torch.cat(boxes, 2).transpose(1, 2).unflatten(2, (4, BINS))
        return torch.cat(scores, 2).transpose(1, 2), sides


def _doubled(x):
    return F.interpolate(x, scale_factor=2.0, mode="nearest")
