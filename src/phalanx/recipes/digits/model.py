"""The digits network: two convolutions, two linear layers, 8x8 input."""

from __future__ import annotations

from torch import Tensor, nn


class ConvNet(nn.Module):
    """conv - conv - pool - linear - linear, 85,066 parameters at width 32."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.classifier = nn.Sequential(
            nn.Linear(2 * width * 16, 2 * width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(2 * width, 10),
        )

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(image))
        return logits
