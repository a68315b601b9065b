"""Recipes over images: classes, boxes, masks, noise."""

import torch
import torch.nn.functional as F
from attention import VisionTransformer
from convolutional import ConvNext, Detector, MobileNetV2, ResNetClassifier, Segmenter
from denoising import DiffusionUnet
from synthetic import ImageClassifier, Sized, Synthetic, pixels, scaled
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
