"""Models of different kinds as recipes, for predicted against measured: `models.py:ResNet50`.

Plain torch, data made in memory, sizes as published. Every size is an option, so that a test can
make each of them small. The networks are in the files beside this one.
"""

import torch
import torch.nn.functional as F
from attention import T5, Decoder, Encoder, Llama, VisionTransformer
from convolutional import (
    AudioConv,
    ConvNext,
    Detector,
    MobileNetV2,
    ResNetClassifier,
    Segmenter,
)
from denoising import BevPlanner, DiffusionUnet, PolicyTransformer
from others import GruAudio, LstmLanguage, PointNet, Recommender, TableMlp
from synthetic import (
    Classifier,
    ImageClassifier,
    NextToken,
    Sized,
    Synthetic,
    choices,
    normal,
    pixels,
    scaled,
    tokens,
)
from yolo11 import BINS, Yolo11

from phalanx.recipe import Term


class ImageOptions(Sized):
    size: int = 224
    classes: int = 1000
    width: int = 64
    depths: tuple[int, ...] = (3, 4, 6, 3)


class ResNet50(ImageClassifier):
    Options = ImageOptions

    def model(self):
        return ResNetClassifier(self.options.width, self.options.depths, self.options.classes)


class MobileOptions(Sized):
    size: int = 224
    classes: int = 1000
    repeats: int | None = None


class MobileNet(ImageClassifier):
    Options = MobileOptions

    def model(self):
        return MobileNetV2(self.options.classes, self.options.repeats)


class ConvNextOptions(ImageOptions):
    width: int = 96
    depths: tuple[int, ...] = (3, 3, 9, 3)


class ConvNextTiny(ImageClassifier):
    Options = ConvNextOptions

    def model(self):
        return ConvNext(self.options.width, self.options.depths, self.options.classes)


class VitOptions(Sized):
    size: int = 224
    patch: int = 16
    width: int = 384
    heads: int = 6
    depth: int = 12
    classes: int = 1000


class VitSmall(ImageClassifier):
    Options = VitOptions

    def model(self):
        return VisionTransformer(**self.options.model_dump(exclude={"samples"}))


class VitBaseOptions(VitOptions):
    width: int = 768
    heads: int = 12


class VitBase(VitSmall):
    Options = VitBaseOptions


class DetectorOptions(Sized):
    size: int = 640
    classes: int = 80
    width: int = 64
    depths: tuple[int, ...] = (3, 4, 6, 3)
    pyramid: int = 256


class Dense(Synthetic):
    """A detector's loss at every position. Who is responsible for which object is in the data:
    in training proper an assigner finds it from the predictions, which costs a little time and
    memory that is not counted here."""

    held = 32

    def rows(self, count, generator):
        positions = sum((self.options.size // stride) ** 2 for stride in (8, 16, 32))
        found = torch.randint(self.options.classes, (count, positions), generator=generator)
        is_object = torch.rand((count, positions), generator=generator) < 0.02
        return {
            "image": pixels(count, self.options.size, generator),
            "found": torch.where(is_object, found, -1),
            "sides": (BINS - 1) * torch.rand((count, positions, 4), generator=generator),
        }

    def loss(self, model, batch, keys):
        scores, sides = model(scaled(batch["image"]))
        found = batch["found"]
        is_object = (found >= 0).float()
        wanted = F.one_hot(found.clamp(min=0), scores.shape[-1]) * is_object[..., None]
        scored = F.binary_cross_entropy_with_logits(scores, wanted, reduction="sum")
        boxed = (self.box_loss(sides, batch["sides"]) * is_object).sum()
        return {"score": Term(scored, len(found)), "box": Term(boxed, len(found))}


class Fcos(Dense):
    Options = DetectorOptions

    def model(self):
        options = self.options
        return Detector(options.width, options.depths, options.pyramid, options.classes)

    def box_loss(self, sides, wanted):
        return F.smooth_l1_loss(sides, wanted, reduction="none").mean(-1)


class YoloOptions(Sized):
    size: int = 640
    classes: int = 80
    scale: float = 0.25


class Yolo11n(Dense):
    Options = YoloOptions

    def model(self):
        return Yolo11(self.options.classes, self.options.scale)

    def box_loss(self, sides, wanted):
        lower = wanted.floor().long()
        share = wanted - lower
        upper = (lower + 1).clamp(max=BINS - 1)
        logs = sides.flatten(0, 2)
        below = F.cross_entropy(logs, lower.flatten(), reduction="none").view_as(wanted)
        above = F.cross_entropy(logs, upper.flatten(), reduction="none").view_as(wanted)
        return (below * (1 - share) + above * share).mean(-1)


class SegmenterOptions(Sized):
    size: int = 256
    width: int = 64
    depth: int = 5
    classes: int = 8


class SegmentationUnet(Synthetic):
    Options = SegmenterOptions

    def model(self):
        return Segmenter(self.options.width, self.options.depth, self.options.classes)

    def rows(self, count, generator):
        size, shape = self.options.size, (count, self.options.size, self.options.size)
        labels = torch.randint(self.options.classes, shape, generator=generator, dtype=torch.uint8)
        return {"image": pixels(count, size, generator), "labels": labels}

    def loss(self, model, batch, keys):
        scores = model(scaled(batch["image"]))
        labels = batch["labels"].long()
        total = F.cross_entropy(scores, labels, reduction="sum") / labels[0].numel()
        return {"label": Term(total, len(labels))}


class UnetOptions(Sized):
    size: int = 64
    width: int = 128
    factors: tuple[int, ...] = (1, 2, 3, 4)
    depth: int = 2
    attended: tuple[int, ...] = (2, 3)


class Unet64(Synthetic):
    """Diffusion over images: the noise is drawn on the device, as trainers do."""

    Options = UnetOptions

    def model(self):
        return DiffusionUnet(**self.options.model_dump(exclude={"samples", "size"}))

    def rows(self, count, generator):
        return {
            "image": pixels(count, self.options.size, generator),
            "moment": torch.rand(count, generator=generator),
        }

    def loss(self, model, batch, keys):
        image, moment = scaled(batch["image"]), batch["moment"]
        noise = torch.randn_like(image)
        share = moment[:, None, None, None]
        found = model(share * noise + (1 - share) * image, moment)
        total = F.mse_loss(found.float(), noise, reduction="sum") / noise[0].numel()
        return {"noise": Term(total, len(image))}


class DecoderOptions(Sized):
    symbols: int = 50257
    length: int = 1024
    width: int = 768
    heads: int = 12
    depth: int = 12


class Gpt2(NextToken):
    Options = DecoderOptions

    def model(self):
        return Decoder(**self.options.model_dump(exclude={"samples"}))


class Dense340Options(DecoderOptions):
    symbols: int = 30522
    length: int = 512
    width: int = 1024
    heads: int = 16
    depth: int = 24


class Dense340M(Gpt2):
    """As many parameters as BERT-large."""

    Options = Dense340Options


class LoraOptions(Dense340Options):
    symbols: int = 50257
    length: int = 1024
    rank: int = 16


class Lora(Gpt2):
    """A frozen GPT-2 medium, 355M parameters in fp32, with additions of low rank."""

    Options = LoraOptions


class LlamaOptions(DecoderOptions):
    symbols: int = 32000
    width: int = 1024
    heads: int = 16
    groups: int = 4
    wide: int = 2816
    depth: int = 20


class Llama300M(NextToken):
    Options = LlamaOptions

    def model(self):
        return Llama(**self.options.model_dump(exclude={"samples"}))


class EncoderOptions(DecoderOptions):
    symbols: int = 30522
    length: int = 512
    dropout: float = 0.1


class Bert(Synthetic):
    """Hidden tokens found again, in texts of different lengths."""

    Options = EncoderOptions
    held = 256

    def model(self):
        return Encoder(**self.options.model_dump(exclude={"samples"}))

    def rows(self, count, generator):
        options = self.options
        shown = tokens(count, options.length, options.symbols, generator)
        hidden = torch.rand(shown.shape, generator=generator) < 0.15
        lengths = torch.randint(
            options.length // 2, options.length + 1, (count,), generator=generator
        )
        return {
            "tokens": shown,
            "wanted": torch.where(hidden, shown, -100),
            "is_there": torch.arange(options.length)[None] < lengths[:, None],
        }

    def weight(self, batch):
        return float((batch["wanted"] >= 0).sum())

    def loss(self, model, batch, keys):
        scores = model(batch["tokens"], batch["is_there"])
        wanted = batch["wanted"]
        total = F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), reduction="sum")
        return {"hidden": Term(total, (wanted >= 0).sum())}


class FrozenOptions(EncoderOptions):
    length: int = 256
    classes: int = 4
    frozen: int = 8


class FrozenBert(Bert):
    """Texts told apart; two thirds of the blocks and the embeddings stay as they are."""

    Options = FrozenOptions

    def rows(self, count, generator):
        rows = super().rows(count, generator)
        rows["wanted"] = choices(count, self.options.classes, generator)
        return rows

    def weight(self, batch):
        return float(len(batch["wanted"]))

    def loss(self, model, batch, keys):
        scores = model(batch["tokens"], batch["is_there"])
        total = F.cross_entropy(scores, batch["wanted"], reduction="sum")
        return {"class": Term(total, len(scores))}


class T5Options(Sized):
    symbols: int = 32128
    length: int = 512
    answer: int = 128
    width: int = 512
    heads: int = 8
    depth: int = 6
    dropout: float = 0.1


class T5Small(Synthetic):
    Options = T5Options
    held = 256

    def model(self):
        return T5(**self.options.model_dump(exclude={"samples", "length", "answer"}))

    def rows(self, count, generator):
        options = self.options
        return {
            "source": tokens(count, options.length, options.symbols, generator),
            "target": tokens(count, options.answer + 1, options.symbols, generator),
        }

    def weight(self, batch):
        return float(batch["target"][:, 1:].numel())

    def loss(self, model, batch, keys):
        wanted = batch["target"][:, 1:]
        scores = model(batch["source"], batch["target"][:, :-1])
        total = F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), reduction="sum")
        return {"next": Term(total, wanted.numel())}


class PolicyOptions(Sized):
    actions: int = 16
    of_action: int = 14
    of_observation: int = 512
    observations: int = 4
    width: int = 256
    heads: int = 8
    depth: int = 8


class Policy6M(Synthetic):
    """Diffusion over a robot's next actions."""

    Options = PolicyOptions
    held = 2048

    def model(self):
        return PolicyTransformer(**self.options.model_dump(exclude={"samples"}))

    def rows(self, count, generator):
        options = self.options
        return {
            "actions": normal(count, options.actions, options.of_action, generator=generator),
            "seen": normal(
                count, options.observations, options.of_observation, generator=generator
            ),
            "moment": torch.rand(count, generator=generator),
        }

    def loss(self, model, batch, keys):
        actions, moment = batch["actions"], batch["moment"]
        noise = torch.randn_like(actions)
        share = moment[:, None, None]
        found = model(share * noise + (1 - share) * actions, moment, batch["seen"])
        total = F.mse_loss(found.float(), noise, reduction="sum") / noise[0].numel()
        return {"noise": Term(total, len(actions))}


class Policy170Options(PolicyOptions):
    width: int = 1024
    heads: int = 16
    depth: int = 13


class Policy170M(Policy6M):
    Options = Policy170Options


class BevOptions(Sized):
    cameras: int = 6
    height: int = 128
    breadth: int = 352
    stem: int = 64
    depths: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 512
    heads: int = 8
    depth: int = 8
    cells: int = 400
    waypoints: int = 8
    classes: int = 12


class BevPlanner60M(Synthetic):
    Options = BevOptions
    held = 32

    def model(self):
        seen = {"samples", "cameras", "height", "breadth"}
        return BevPlanner(**self.options.model_dump(exclude=seen))

    def rows(self, count, generator):
        options = self.options
        images = pixels(count * options.cameras, (options.height, options.breadth), generator)
        cells = torch.randint(options.classes, (count, options.cells), generator=generator)
        return {
            "images": images.unflatten(0, (count, options.cameras)),
            "cells": cells,
            "path": normal(count, options.waypoints, 2, generator=generator),
        }

    def loss(self, model, batch, keys):
        cells, path = model(scaled(batch["images"]))
        wanted = batch["cells"]
        seen = F.cross_entropy(cells.flatten(0, 1), wanted.flatten(), reduction="sum")
        driven = F.l1_loss(path.float(), batch["path"], reduction="sum")
        return {
            "map": Term(seen / wanted.shape[1], len(wanted)),
            "path": Term(driven, len(wanted)),
        }


class LstmOptions(Sized):
    symbols: int = 33278
    length: int = 128
    width: int = 1024
    depth: int = 2
    dropout: float = 0.2


class Lstm(NextToken):
    Options = LstmOptions

    def model(self):
        return LstmLanguage(**self.options.model_dump(exclude={"samples", "length"}))


class GruOptions(Sized):
    bands: int = 80
    length: int = 400
    width: int = 512
    depth: int = 2
    classes: int = 35


class Gru(Classifier):
    Options = GruOptions
    held = 256

    def model(self):
        return GruAudio(**self.options.model_dump(exclude={"samples", "length"}))

    def rows(self, count, generator):
        options = self.options
        return {
            "x": normal(count, options.bands, options.length, generator=generator),
            "label": choices(count, options.classes, generator),
        }


class AudioOptions(Sized):
    length: int = 16000
    width: int = 256
    depth: int = 12
    classes: int = 35


class Audio(Classifier):
    Options = AudioOptions
    held = 256

    def model(self):
        return AudioConv(self.options.width, self.options.depth, self.options.classes)

    def rows(self, count, generator):
        return {
            "x": normal(count, 1, self.options.length, generator=generator),
            "label": choices(count, self.options.classes, generator),
        }


class TableOptions(Sized):
    columns: int = 512
    width: int = 4096
    depth: int = 4
    dropout: float = 0.1
    classes: int = 10


class Mlp(Classifier):
    Options = TableOptions
    held = 8192

    def model(self):
        return TableMlp(**self.options.model_dump(exclude={"samples"}))

    def rows(self, count, generator):
        return {
            "x": normal(count, self.options.columns, generator=generator),
            "label": choices(count, self.options.classes, generator),
        }


class RecommenderOptions(Sized):
    tables: int = 26
    rows: int = 100_000
    width: int = 64
    numbers: int = 13
    wide: int = 512


class Dlrm(Synthetic):
    Options = RecommenderOptions
    held = 16384

    def model(self):
        return Recommender(**self.options.model_dump(exclude={"samples"}))

    def rows(self, count, generator):
        options = self.options
        return {
            "categories": tokens(count, options.tables, options.rows, generator),
            "numbers": normal(count, options.numbers, generator=generator),
            "is_chosen": torch.rand(count, generator=generator).round(),
        }

    def loss(self, model, batch, keys):
        scores = model(batch["categories"], batch["numbers"])
        total = F.binary_cross_entropy_with_logits(scores, batch["is_chosen"], reduction="sum")
        return {"choice": Term(total, len(scores))}


class PointOptions(Sized):
    points: int = 1024
    width: int = 64
    classes: int = 40


class Points(Classifier):
    """PointNet."""

    Options = PointOptions
    held = 512

    def model(self):
        return PointNet(self.options.width, self.options.classes)

    def rows(self, count, generator):
        return {
            "x": normal(count, 3, self.options.points, generator=generator),
            "label": choices(count, self.options.classes, generator),
        }
