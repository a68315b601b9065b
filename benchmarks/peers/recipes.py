"""The same works as Phalanx's recipes; the job files beside this say batch, length and rate."""

import torch.nn.functional as F
from works import (
    GPT2,
    POLICY,
    RESNET,
    ByteResnet,
    PolicyTransformer,
    action_rows,
    language_loss,
    make_gpt2,
    noise_loss,
    token_rows,
)

from phalanx.recipe import Options, Recipe, Tensors, Term


class Gpt2Options(Options):
    symbols: int = GPT2["symbols"]
    length: int = GPT2["length"]
    width: int = GPT2["width"]
    heads: int = GPT2["heads"]
    depth: int = GPT2["depth"]
    samples: int = 16_384
    test_samples: int = 64


class Gpt2(Recipe):
    """GPT-2 with 124M parameters: every token from those before it."""

    Options = Gpt2Options

    @property
    def sizes(self):
        return self.options.model_dump(exclude={"samples", "test_samples"})

    def model(self):
        return make_gpt2(self.sizes)

    def data(self, split):
        if split == "train":
            return Tensors(token_rows(self.options.samples, self.sizes, seed=1))
        return Tensors(token_rows(self.options.test_samples, self.sizes, seed=2))

    def weight(self, batch):
        return float(batch["tokens"][:, 1:].numel())

    def loss(self, model, batch, keys):
        total = language_loss(model, batch["tokens"], reduction="sum")
        return {"next": Term(total, self.weight(batch))}

    def evaluate(self, model, batch):
        total = language_loss(model, batch["tokens"], reduction="sum")
        return {"loss": total, "weight": self.weight(batch)}

    def metrics(self, sums):
        return {"loss": sums["loss"] / sums["weight"]}


class PolicyOptions(Options):
    actions: int = POLICY["actions"]
    of_action: int = POLICY["of_action"]
    of_observation: int = POLICY["of_observation"]
    observations: int = POLICY["observations"]
    width: int = POLICY["width"]
    heads: int = POLICY["heads"]
    depth: int = POLICY["depth"]
    samples: int = 65_536
    test_samples: int = 1024


class Policy(Recipe):
    """Diffusion over a robot's next 16 actions, 6M parameters."""

    Options = PolicyOptions

    @property
    def sizes(self):
        return self.options.model_dump(exclude={"samples", "test_samples"})

    def model(self):
        return PolicyTransformer(**self.sizes)

    def blocks(self, model):
        return model.blocks

    def data(self, split):
        if split == "train":
            return Tensors(action_rows(self.options.samples, self.sizes, seed=1))
        return Tensors(action_rows(self.options.test_samples, self.sizes, seed=2))

    def loss(self, model, batch, keys):
        total = noise_loss(model, **batch, reduction="sum")
        return {"noise": Term(total, len(batch["actions"]))}

    def evaluate(self, model, batch):
        total = noise_loss(model, **batch, reduction="sum")
        return {"loss": total, "weight": float(len(batch["actions"]))}

    def metrics(self, sums):
        return {"loss": sums["loss"] / sums["weight"]}


class ResnetOptions(Options):
    folder: str = ""
    """A folder with a folder of JPEGs per class."""
    image_size: int = 224
    width: int = RESNET["width"]
    depths: tuple[int, ...] = RESNET["depths"]
    classes: int = RESNET["classes"]
    is_drafted: bool = False
    """Let the JPEG library decode at a half, a quarter or an eighth where that is still at least
    as large as what is wanted: the same crops, read from a picture that was made smaller first."""
    is_whole: bool = False
    """Decode whole pictures before they are cropped, so that `--cache` can keep them."""


class Resnet(Recipe):
    """ResNet-50 on a folder of JPEGs: random crops, flipped half of the time."""

    Options = ResnetOptions

    def model(self):
        options = self.options
        return ByteResnet(
            {"width": options.width, "depths": options.depths, "classes": options.classes}
        )

    def data(self, split):
        from photos import KeyedPhotos, WholePhotos

        options = self.options
        kind = WholePhotos if options.is_whole else KeyedPhotos
        return kind(
            options.folder,
            options.image_size,
            is_drafted=options.is_drafted,
            is_training=split == "train",
        )

    def loss(self, model, batch, keys):
        total = F.cross_entropy(model(batch["pixels"]), batch["labels"], reduction="sum")
        return {"label": Term(total, len(batch["labels"]))}

    def evaluate(self, model, batch):
        total = F.cross_entropy(model(batch["pixels"]), batch["labels"], reduction="sum")
        return {"loss": total, "weight": float(len(batch["labels"]))}

    def metrics(self, sums):
        return {"loss": sums["loss"] / sums["weight"]}
