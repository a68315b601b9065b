"""Recipes of the `fresh` group: models frozen before they were measured."""

import torch
import torch.nn.functional as F
from fresh import ConvolutionalVae, EfficientNet, LstmTagger, Mixer, Neox, SpeechEncoder, Swin
from synthetic import ImageClassifier, NextToken, Sized, Synthetic, normal, pixels, scaled, tokens

from phalanx.recipe import Term


class SwinOptions(Sized):
    size: int = 224
    classes: int = 1000
    width: int = 96
    depths: tuple[int, ...] = (2, 2, 6, 2)
    heads: tuple[int, ...] = (3, 6, 12, 24)
    window: int = 7
    drop: float = 0.2


class SwinTiny(ImageClassifier):
    Options = SwinOptions

    def model(self):
        return Swin(**self.options.model_dump(exclude={"samples"}))


class EfficientOptions(Sized):
    size: int = 224
    classes: int = 1000
    repeats: int | None = None


class EfficientNetB0(ImageClassifier):
    Options = EfficientOptions

    def model(self):
        return EfficientNet(self.options.classes, self.options.repeats)


class MixerOptions(Sized):
    size: int = 224
    patch: int = 16
    width: int = 768
    depth: int = 12
    classes: int = 1000


class MlpMixer(ImageClassifier):
    Options = MixerOptions

    def model(self):
        return Mixer(**self.options.model_dump(exclude={"samples"}))


class VaeOptions(Sized):
    size: int = 128
    widths: tuple[int, ...] = (64, 128, 256, 512, 512)
    latent: int = 256


class ConvVae(Synthetic):
    """Images coded and drawn again; the noise is drawn on the device."""

    Options = VaeOptions
    held = 256

    def model(self):
        return ConvolutionalVae(**self.options.model_dump(exclude={"samples"}))

    def rows(self, count, generator):
        return {"image": pixels(count, self.options.size, generator)}

    def loss(self, model, batch, keys):
        image = scaled(batch["image"])
        drawn, mean, spread = model(image)
        mean, spread = mean.float(), spread.float()
        missed = F.mse_loss(drawn.float(), image, reduction="sum") / image[0].numel()
        prior = -0.5 * (1 + spread - mean.square() - spread.exp()).sum() / mean.shape[1]
        return {"image": Term(missed, len(image)), "prior": Term(prior, len(image))}


class ConformerOptions(Sized):
    bands: int = 80
    length: int = 1000
    width: int = 256
    heads: int = 4
    depth: int = 16
    kernel: int = 31
    dropout: float = 0.1
    units: int = 500


class Conformer(Synthetic):
    """Ten seconds of speech, a unit for every 40 ms: what an encoder learns before it is tuned."""

    Options = ConformerOptions
    held = 128

    def model(self):
        return SpeechEncoder(**self.options.model_dump(exclude={"samples"}))

    def rows(self, count, generator):
        options = self.options
        return {
            # Kept in 16 bits, as spectrograms are on disk.
            "frames": normal(count, options.length, options.bands, generator=generator).half(),
            "units": tokens(count, options.length // 4, options.units, generator),
        }

    def weight(self, batch):
        return float(batch["units"].numel())

    def loss(self, model, batch, keys):
        scores, wanted = model(batch["frames"].float()), batch["units"]
        total = F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), reduction="sum")
        return {"unit": Term(total, wanted.numel())}


class TaggerOptions(Sized):
    symbols: int = 50_000
    length: int = 128
    of_word: int = 300
    width: int = 512
    depth: int = 2
    dropout: float = 0.3
    tags: int = 45


class Tagger(Synthetic):
    """A tag for every word, in texts of different lengths."""

    Options = TaggerOptions
    held = 1024

    def model(self):
        return LstmTagger(**self.options.model_dump(exclude={"samples", "length"}))

    def rows(self, count, generator):
        options = self.options
        words = tokens(count, options.length, options.symbols, generator)
        tags = tokens(count, options.length, options.tags, generator)
        lengths = torch.randint(
            options.length // 2, options.length + 1, (count,), generator=generator
        )
        is_there = torch.arange(options.length)[None] < lengths[:, None]
        return {"words": words, "tags": torch.where(is_there, tags, -100)}

    def weight(self, batch):
        return float((batch["tags"] >= 0).sum())

    def loss(self, model, batch, keys):
        scores, wanted = model(batch["words"]), batch["tags"]
        total = F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), reduction="sum")
        return {"tag": Term(total, (wanted >= 0).sum())}


class NeoxOptions(Sized):
    symbols: int = 50304
    length: int = 512
    width: int = 768
    heads: int = 12
    depth: int = 12


class Neox160M(NextToken):
    Options = NeoxOptions

    def model(self):
        return Neox(**self.options.model_dump(exclude={"samples"}))
