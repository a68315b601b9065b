"""What is trained: one model, data and loss for every contestant, in the form each of them takes.

A `Work` gives the others a module whose forward returns {"loss": ...}, as HF Trainer wants it, and
a map-style data set of single samples. Phalanx's recipes over the same models are in recipes.py.
"""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.append(str(Path(__file__).parents[1] / "planner"))  # the models live there

from convolutional import ResNetClassifier
from denoising import PolicyTransformer

from phalanx.recipe import attend_causally

GPT2 = {"symbols": 50257, "length": 1024, "width": 768, "heads": 12, "depth": 12}
POLICY = {
    "actions": 16,
    "of_action": 14,
    "of_observation": 512,
    "observations": 4,
    "width": 256,
    "heads": 8,
    "depth": 8,
}
RESNET = {"width": 64, "depths": (3, 4, 6, 3), "classes": 1000}

MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def token_rows(samples, sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = (samples, sizes["length"] + 1)
    return {"tokens": torch.randint(sizes["symbols"], shape, generator=generator)}


def action_rows(samples, sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    seen = (samples, sizes["observations"], sizes["of_observation"])
    actions = (samples, sizes["actions"], sizes["of_action"])
    return {
        "actions": torch.randn(actions, generator=generator),
        "seen": torch.randn(seen, generator=generator),
        "moment": torch.rand(samples, generator=generator),
    }


def language_loss(model, tokens, reduction="mean"):
    """Every token from those before it."""
    scores, wanted = model(tokens[:, :-1]).logits, tokens[:, 1:]
    return F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), reduction=reduction)


def noise_loss(model, actions, seen, moment, reduction="mean"):
    """The noise that was put on the actions; a sum is over samples, each a mean."""
    noise, share = torch.randn_like(actions), moment[:, None, None]
    found = model(share * noise + (1 - share) * actions, moment, seen)
    loss = F.mse_loss(found.float(), noise, reduction=reduction)
    return loss if reduction == "mean" else loss / noise[0].numel()


class ByteResnet(nn.Module):
    """Takes pixels as bytes, as they left the file: a quarter of the copy to the device."""

    def __init__(self, sizes):
        super().__init__()
        self.net = ResNetClassifier(**sizes)
        self.register_buffer("mean", torch.tensor(MEAN)[None, :, None, None], persistent=False)
        self.register_buffer("spread", torch.tensor(SPREAD)[None, :, None, None], persistent=False)

    def forward(self, pixels):
        return self.net((pixels.float() / 255 - self.mean) / self.spread)


def make_gpt2(sizes):
    """transformers' own, as it comes: dropout of 0.1, GELU by its formula."""
    from transformers import GPT2Config, GPT2LMHeadModel

    symbols = sizes["symbols"]
    config = GPT2Config(
        vocab_size=symbols,
        n_positions=sizes["length"],
        n_embd=sizes["width"],
        n_head=sizes["heads"],
        n_layer=sizes["depth"],
        bos_token_id=symbols - 1,
        eos_token_id=symbols - 1,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config)
    attend_causally(model)  # compiled code would give attention a mask, twice the time of it
    return model


class LanguageModel(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.net = make_gpt2(sizes)

    def forward(self, tokens):
        return {"loss": language_loss(self.net, tokens)}


class Policy(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.net = PolicyTransformer(**sizes)

    def forward(self, actions, seen, moment):
        return {"loss": noise_loss(self.net, actions, seen, moment)}


class ImageClassifier(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.net = ByteResnet(sizes)

    def forward(self, pixels, labels):
        return {"loss": F.cross_entropy(self.net(pixels), labels)}


class TinyModel(nn.Module):
    """The model of benchmarks/tiny.py."""

    def __init__(self, sizes):
        super().__init__()
        columns, width, classes = sizes["columns"], sizes["width"], sizes["classes"]
        self.net = nn.Sequential(nn.Linear(columns, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, x, labels):
        return {"loss": F.cross_entropy(self.net(x), labels)}


def table_rows(samples, sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(samples, sizes["columns"], generator=generator),
        "labels": torch.randint(sizes["classes"], (samples,), generator=generator),
    }


@dataclass
class Work:
    """One row of the comparison."""

    label: str
    model_class: type
    sizes: dict
    batch: int
    samples: int
    rows: object = None
    """Makes the rows in memory; None: the samples are photographs in a folder."""
    window: int = 10
    """Steps between two readings of the clock, each of which waits for the device."""
    workers: int = 4
    lr: float = 3e-4
    clip: float = 1.0
    job: str | None = None
    """Phalanx's job file beside this module."""
    tiny_options: dict = field(default_factory=dict)
    """What makes it small enough to be tried on a CPU."""
    tiny_batch: int = 4
    image_size: int = 224

    def model(self):
        torch.manual_seed(0)
        return self.model_class(self.sizes)

    def tensors(self):
        return self.rows(self.samples, self.sizes, seed=1)

    def data(self, folder=None):
        """Single samples, as the others take them."""
        if self.rows is None:
            from photos import photo_folder

            return photo_folder(folder, self.image_size)
        return Samples(self.tensors())

    def shrunk(self):
        """The same work at a size that a CPU does in seconds."""
        sizes = {k: self.tiny_options.get(k, v) for k, v in self.sizes.items()}
        self.sizes, self.batch, self.window = sizes, self.tiny_batch, 2
        self.samples, self.workers = 64 * self.tiny_batch, min(1, self.workers)
        self.image_size = self.tiny_options.get("image_size", self.image_size)
        return self


class Samples(torch.utils.data.Dataset):
    """Rows in memory, one at a time."""

    def __init__(self, tensors):
        self.tensors = tensors

    def __len__(self):
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, index):
        return {name: tensor[index] for name, tensor in self.tensors.items()}


def find_work(name):
    return {
        "gpt2": Work(
            label="GPT-2 124M of transformers, batch 16 x 1024 tokens",
            model_class=LanguageModel,
            sizes=GPT2,
            batch=16,
            samples=16_384,
            rows=token_rows,
            job="gpt2.yaml",
            tiny_options={"symbols": 97, "length": 32, "width": 32, "heads": 2, "depth": 2},
        ),
        "policy": Work(
            label="6M-parameter diffusion policy, batch 64",
            model_class=Policy,
            sizes=POLICY,
            batch=64,
            samples=65_536,
            rows=action_rows,
            window=100,
            job="policy.yaml",
            tiny_options={"width": 32, "heads": 2, "depth": 2, "of_observation": 16},
        ),
        "resnet": Work(
            label="ResNet-50, 224 px, batch 256, from a folder of JPEGs",
            model_class=ImageClassifier,
            sizes=RESNET,
            batch=256,
            samples=2048,
            workers=len(os.sched_getaffinity(0)),
            window=4,
            job="resnet.yaml",
            tiny_options={"width": 8, "depths": (1, 1, 1, 1), "image_size": 64},
        ),
        "tiny": Work(
            label="two linear layers on a CPU, batch 64",
            model_class=TinyModel,
            sizes={"columns": 32, "width": 64, "classes": 10},
            batch=64,
            samples=65_536,
            rows=table_rows,
            window=10,
            workers=0,
            lr=1e-3,
        ),
    }[name]
