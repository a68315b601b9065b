"""Recipes over tokens: the next one, hidden ones, an answer, a class."""

import torch
import torch.nn.functional as F
from attention import T5, Decoder, Encoder, Llama
from others import LstmLanguage
from synthetic import NextToken, Sized, Synthetic, choices, tokens

from phalanx.recipe import Term


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
