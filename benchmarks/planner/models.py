"""Models of different kinds as recipes, for predicted against measured: `models.py:ResNet50`.

Plain torch, data made in memory, sizes as published. Every size is an option, so that a test can
make each of them small. Recipes and networks are in the files beside this one.
"""

from image_recipes import (
    ConvNextTiny,
    Fcos,
    MobileNet,
    ResNet50,
    SegmentationUnet,
    Unet64,
    VitBase,
    VitSmall,
    Yolo11n,
)
from other_recipes import Audio, BevPlanner60M, Dlrm, Gru, Mlp, Points, Policy6M, Policy170M
from text_recipes import Bert, Dense340M, FrozenBert, Gpt2, Llama300M, Lora, Lstm, T5Small

__all__ = [
    "Audio",
    "Bert",
    "BevPlanner60M",
    "ConvNextTiny",
    "Dense340M",
    "Dlrm",
    "Fcos",
    "FrozenBert",
    "Gpt2",
    "Gru",
    "Llama300M",
    "Lora",
    "Lstm",
    "Mlp",
    "MobileNet",
    "Points",
    "Policy6M",
    "Policy170M",
    "ResNet50",
    "SegmentationUnet",
    "T5Small",
    "Unet64",
    "VitBase",
    "VitSmall",
    "Yolo11n",
]
