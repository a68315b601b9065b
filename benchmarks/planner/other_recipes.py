"""Recipes over actions, cameras, sound, tables and points."""

import torch
import torch.nn.functional as F
from convolutional import AudioConv
from denoising import BevPlanner, PolicyTransformer
from others import GruAudio, PointNet, Recommender, TableMlp
from synthetic import Classifier, Sized, Synthetic, choices, normal, pixels, scaled, tokens

from phalanx.recipe import Term


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
            # Kept in 16 bits, as spectrograms are on disk.
            "x": normal(count, options.bands, options.length, generator=generator).half(),
            "label": choices(count, options.classes, generator),
        }

    def prepared(self, x):
        return x.float()


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
