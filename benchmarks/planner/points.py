"""What is measured: models, how they train, and at which micro-batches.

Chosen before anything was fitted to a measurement. A model belongs to one half with all of its
points: constants may be fitted to the `fitted` half, the `untouched` half is what counts. The
`fresh` models were added later, they and their points frozen before they were ever measured.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.job.load import load_job
from phalanx.job.schema import Job

MODELS = Path(__file__).with_name("models.py")

FITTED = {
    "ResNet50": "convolutional",
    "MobileNet": "depthwise",
    "Audio": "convolutions in time",
    "Fcos": "detection",
    "Unet64": "diffusion",
    "VitSmall": "vision transformer",
    "Bert": "encoder",
    "FrozenBert": "partly frozen",
    "Gpt2": "decoder",
    "Policy6M": "policy",
    "Lstm": "recurrent",
    "Mlp": "table",
}
UNTOUCHED = {
    "ConvNextTiny": "convolutional and depthwise",
    "SegmentationUnet": "convolutional",
    "Points": "sets of points",
    "Yolo11n": "detection",
    "Policy170M": "diffusion policy",
    "VitBase": "vision transformer",
    "T5Small": "encoder and decoder",
    "Lora": "low rank, mostly frozen",
    "Llama300M": "decoder",
    "BevPlanner60M": "planner",
    "Gru": "recurrent",
    "Dlrm": "embeddings and table",
}
FRESH = {
    "SwinTiny": "attention in windows",
    "EfficientNetB0": "depthwise, squeezed",
    "Conformer": "speech, attention and convolutions",
    "Tagger": "recurrent, both directions",
    "ConvVae": "transposed convolutions",
    "MlpMixer": "wide layers only",
    "Neox160M": "decoder, parallel",
}


@dataclass(frozen=True)
class Setting:
    """One model trained in one way, at several micro-batches."""

    model: str
    settings: str
    micro_batches: tuple[int, ...]
    options: dict = field(default_factory=dict)

    @property
    def half(self):
        if self.model in FRESH:
            return "fresh"
        return "fitted" if self.model in FITTED else "untouched"

    @property
    def is_compiled(self):
        return "compile=on" in self.settings.split()

    @property
    def name(self):
        extra = [f"{key}={value}" for key, value in self.options.items()]
        return " ".join([self.model, *extra, self.settings])

    def job(self, micro_batch) -> Job:
        """The job at one micro-batch: one pass per step, nothing saved, nothing evaluated."""
        given = {
            "recipe": f"{MODELS}:{self.model}",
            "options": self.options,
            "steps": 100,
            "global_batch_size": micro_batch,
            "micro_batch_size": micro_batch,
            "activation_checkpointing": "off",
        }
        words = self.settings.split()
        # Each rung of speed by itself, but the layout, without which nobody trains.
        rungs = [f"{rung}=off" for rung in ("compile", "cuda_graph") if rung not in self.settings]
        return load_job(given, [*words, *rungs, "strategy=single", "loader.workers=0"]).job


# Small (the host cannot start operators fast enough) to large (tens of GB on 141).
FIRST = [
    Setting("ResNet50", "precision=bf16", (8, 64, 512)),
    Setting("ConvNextTiny", "precision=bf16", (8, 64, 320)),
    Setting("Gpt2", "precision=bf16", (1, 8, 40)),
    Setting("Llama300M", "precision=bf16", (1, 6, 24)),
    Setting("VitSmall", "precision=bf16", (8, 128, 768)),
    Setting("VitBase", "precision=bf16", (8, 64, 320)),
    Setting("Unet64", "precision=bf16", (4, 32, 160)),
    Setting("Policy170M", "precision=bf16", (16, 256, 2048)),
    Setting("Fcos", "precision=bf16", (2, 12, 48)),
    Setting("Yolo11n", "precision=bf16", (4, 32, 160)),
    Setting("Bert", "precision=bf16", (4, 24, 96)),
    Setting("T5Small", "precision=bf16", (4, 32, 192)),
    Setting("Lstm", "precision=bf16", (16, 64, 320)),
    Setting("Gru", "precision=bf16", (16, 128, 1024)),
    Setting("Mlp", "precision=bf16", (256, 4096, 32768)),
    Setting("Dlrm", "precision=bf16", (512, 8192, 131072)),
    Setting("MobileNet", "precision=bf16", (16, 128, 512)),
    Setting("SegmentationUnet", "precision=bf16", (4, 24, 96)),
    Setting("Policy6M", "precision=bf16", (64, 1024, 16384)),
    Setting("BevPlanner60M", "precision=bf16", (2, 12, 64)),
    Setting("FrozenBert", "precision=bf16", (8, 64, 384)),
    Setting("Lora", "precision=bf16", (1, 6, 20)),
    Setting("Audio", "precision=bf16", (16, 128, 1024)),
    Setting("Points", "precision=bf16", (32, 256, 2048)),
]
THEN = [
    Setting("Gpt2", "precision=bf16 activation_checkpointing=on", (8, 64)),
    Setting("Llama300M", "precision=bf16 activation_checkpointing=on", (6, 48)),
    Setting("ResNet50", "precision=fp32 optimizer.name=sgd", (32, 192)),
    Setting("SegmentationUnet", "precision=fp32", (8, 32)),
    Setting("MobileNet", "precision=fp16 optimizer.name=sgd", (128, 384)),
    Setting("Yolo11n", "precision=fp16 optimizer.name=sgd", (32, 128)),
    Setting("Bert", "precision=fp16", (16, 64)),
    Setting("VitBase", "precision=fp16 optimizer.name=sgd", (32, 192)),
    Setting("Gpt2", "precision=fp32", (4, 16)),
    Setting("T5Small", "precision=fp32", (8, 64)),
    Setting("Unet64", "precision=bf16 activation_checkpointing=on ema.decay=0.999", (32, 192)),
    Setting("ConvNextTiny", "precision=bf16 activation_checkpointing=on", (64, 512)),
    Setting("Policy6M", "precision=fp32 ema.decay=0.999", (256, 4096)),
    Setting("Policy170M", "precision=tf32 ema.decay=0.999", (128, 1024)),
    Setting("Lstm", "precision=tf32", (32, 192)),
    Setting("Gru", "precision=fp32", (64, 512)),
    Setting("Mlp", "precision=fp32 optimizer.name=sgd", (1024, 16384)),
    Setting("Dlrm", "precision=fp32 optimizer.name=sgd", (2048, 65536)),
    Setting("ResNet50", "precision=bf16 activation_checkpointing=on", (64, 384)),
    Setting("VitBase", "precision=bf16 activation_checkpointing=on", (64, 512)),
    Setting("Fcos", "precision=tf32", (4, 24)),
    Setting("BevPlanner60M", "precision=tf32 optimizer.name=sgd", (6, 32)),
    Setting("FrozenBert", "precision=bf16 activation_checkpointing=on", (64, 512)),
    Setting("Lora", "precision=bf16 activation_checkpointing=on", (6, 48)),
    Setting("Audio", "precision=tf32", (64, 512)),
    Setting("Points", "precision=fp32", (128, 1024)),
]
COMPILED = [
    Setting("Gpt2", "precision=bf16 compile=on", (8, 40)),
    Setting("Llama300M", "precision=bf16 compile=on", (6, 24)),
    Setting("VitSmall", "precision=bf16 compile=on", (128, 768)),
    Setting("VitBase", "precision=bf16 compile=on", (64, 320)),
    Setting("Bert", "precision=bf16 compile=on", (24, 96)),
    Setting("T5Small", "precision=bf16 compile=on", (32, 192)),
    Setting("Mlp", "precision=bf16 compile=on", (4096, 32768)),
    Setting("ConvNextTiny", "precision=bf16 compile=on", (64, 320)),
]
# Whole steps as CUDA graphs, which is what `train` does on one GPU: every untouched model again.
# Added after the others were measured, and frozen before these were.
GRAPHED = [
    Setting(s.model, f"{s.settings} cuda_graph=on", s.micro_batches)
    for s in FIRST
    if s.model in UNTOUCHED
]
SETTINGS = [*FIRST, *THEN, *COMPILED, *GRAPHED]
"""In the order of their worth: every model once, then other ways to train them."""

FRESH_SETTINGS = [
    Setting("SwinTiny", "precision=bf16", (8, 64, 320)),
    Setting("EfficientNetB0", "precision=fp16 optimizer.name=sgd", (16, 128, 768)),
    Setting("Conformer", "precision=bf16", (4, 32, 192)),
    Setting("Tagger", "precision=bf16", (32, 256, 4096)),
    Setting("ConvVae", "precision=tf32", (32, 192, 1024)),
    Setting("MlpMixer", "precision=bf16", (8, 64, 384)),
    Setting("Neox160M", "precision=bf16", (2, 12, 64)),
]


# What the guides name or describe, and a model that is large for cards without a quick link: for
# predictions on several GPUs, which are not at hand to be measured.
SCALING = [
    Setting("Yolo11n", "precision=fp16 optimizer.name=sgd", (16,)),
    Setting("Policy170M", "precision=bf16", (64,)),
    Setting("BevPlanner60M", "precision=bf16", (8,)),
    Setting("Dense340M", "precision=fp16", (4,)),
]


def find_settings(only, also=()):
    """Settings of one of these groups or whose name holds one of these words, or all."""
    every = [*SETTINGS, *FRESH_SETTINGS, *also]
    return [s for s in every if not only or any(w == s.half or w in s.name for w in only)]


def options_key(setting):
    return json.dumps(setting.options, sort_keys=True)
