"""Models of different kinds as recipes, for predicted against measured: `models.py:ResNet50`.

Plain torch, data made in memory, sizes as published. Every size is an option, so that a test can
make each of them small. Recipes and networks are in the files beside this one.
"""

from fresh_recipes import (
    Conformer,
    ConvVae,
    EfficientNetB0,
    MlpMixer,
    Neox160M,
    SwinTiny,
    Tagger,
)
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
    "Conformer",
    "ConvNextTiny",
    "ConvVae",
    "Dense340M",
    "Dlrm",
    "EfficientNetB0",
    "Fcos",
    "FrozenBert",
    "Gpt2",
    "Gru",
    "Llama300M",
    "Lora",
    "Lstm",
    "Mlp",
    "MlpMixer",
    "MobileNet",
    "Neox160M",
    "Points",
    "Policy6M",
    "Policy170M",
    "ResNet50",
    "SegmentationUnet",
    "SwinTiny",
    "T5Small",
    "Tagger",
    "Unet64",
    "VitBase",
    "VitSmall",
    "Yolo11n",
]
