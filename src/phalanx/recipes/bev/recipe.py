"""A driving planner from bird's-eye view: highway-env's experts, or CARLA's, as data.

The default needs nothing prepared: experts drive in four scenarios of highway-env, and a mixture of
transformers learns to plan as they do.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.recipe import (
    Batch,
    Benchmarked,
    Benchmarking,
    BenchmarkSettings,
    Collected,
    CollectingData,
    Exported,
    ExportingGraphs,
    Finding,
    Media,
    Portable,
    PretrainedWeights,
    Recipe,
    Sample,
    Showing,
    Split,
    Stored,
    Term,
    UserError,
    keys,
)
from phalanx.recipes.bev.diffusion import LEAST_NOISE
from phalanx.recipes.bev.network import SEEN, Planner
from phalanx.recipes.bev.options import BevCollecting, BevOptions
from phalanx.recipes.bev.scenarios import WAYPOINT_S

MISS_M = 2.0
"""A last waypoint farther off than this is a miss, as in Waymo's and Argoverse's figures."""
_SHOWN = 6  # samples that are drawn
_SURPRISE = 50.0  # most that one coordinate adds to what the uncertainty learns


class BevRecipe(
    Recipe, PretrainedWeights, CollectingData, Benchmarking, ExportingGraphs, Portable, Showing
):
    """A planner that sees from above, and learns by taking noise off experts' trajectories."""

    Options = BevOptions
    Collecting = BevCollecting
    options: BevOptions
    metric = "ade"
    metric_mode = "min"
    benchmarks: ClassVar[Mapping[str, str]] = {
        "highway": "highway, merge, roundabout and intersection of highway-env, in the loop.",
    }

    default_benchmark = "highway"

    @classmethod
    def collect(cls, settings: BevCollecting, out: Path | None) -> Collected:
        from phalanx.recipes.bev.dataset import collect, describe, missing_simulator

        if findings := missing_simulator():
            raise UserError(findings)
        folder = collect(settings, out)
        return Collected(folder, describe(folder))

    def benchmark(self, model: nn.Module, name: str, settings: BenchmarkSettings) -> Benchmarked:
        from phalanx.recipes.bev.closed_loop import run_highway
        from phalanx.recipes.bev.data import sees_grid

        if not sees_grid(self.options):
            raise UserError(_sees_other(self.options))
        return run_highway(model, settings, self.options.scenarios)

    def model(self) -> nn.Module:
        from phalanx.recipes.bev.data import shape_of

        options = self.options
        return Planner(
            shape_of(options),
            width=options.width,
            depth=options.depth,
            steps=options.steps,
            ways=options.ways,
        )

    def data(self, split: Split) -> Any:
        from phalanx.recipes.bev.data import keep_statistics, open_split

        data: Any = open_split(split, self.options)
        if split == "train":
            self._statistics = keep_statistics(data)
        return data

    _statistics: Path | None = None
    """Of the train split, once it has been opened."""

    def check(self) -> list[Finding]:
        from phalanx.recipes.bev.data import check_data

        return check_data(self.options)

    def portable_options(self) -> Mapping[str, Any]:
        from phalanx.recipes.bev.data import what_is_seen

        return {"bev_kind": what_is_seen(self.options)}

    def blocks(self, model: nn.Module) -> Iterable[nn.Module]:
        assert isinstance(model, Planner)
        return [*model.seeing, *model.planning]

    def weights(self) -> Mapping[str, Stored]:
        """The spread of the train split, where it has been opened; a trained model has its own."""
        if self._statistics is None:
            return {}
        return {name: Stored(self._statistics, name) for name in ("centre", "spread")}

    def loss(self, model: nn.Module, batch: Batch, keys: Tensor) -> Mapping[str, Term]:
        random, noise = self._draw(keys, batch["plan"])
        error, deviation = model(*(batch[name] for name in SEEN), batch["plan"], random, noise)
        wrong = F.smooth_l1_loss(error, torch.zeros_like(error), reduction="none")
        # The first draw is nothing but noise: what is said then is all that is known of a scene.
        unlikely = (error[:, 0].detach() * torch.exp(-deviation[:, 0])).square()
        surprise = deviation[:, 0] + 0.5 * unlikely.clamp(max=_SURPRISE)
        uncertainty = self.options.uncertainty * surprise.mean((1, 2)).sum()
        samples = len(noise)
        return {
            "plan": Term(wrong.mean((1, 2, 3)).sum(), samples),
            "uncertainty": Term(uncertainty, samples),
        }

    def _draw(self, sample_keys: Tensor, plan: Tensor) -> tuple[Tensor, Tensor]:
        """What is put on the trajectories, and how much of it."""
        draws = self.options.draws
        random = keys.normal(keys.derive(sample_keys, "noise"), draws, *plan.shape[1:])
        some = keys.uniform(keys.derive(sample_keys, "level"), draws - 1, low=LEAST_NOISE)
        return random, torch.cat([torch.ones_like(some[:, :1]), some], 1)

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Any]:
        waypoints, deviation = model(*(batch[name] for name in SEEN))
        off = (waypoints - batch["plan"]).norm(dim=-1)
        straight = _straight_on(batch["speed"], waypoints)
        straight_off = (straight - batch["plan"]).norm(dim=-1)
        is_within = (waypoints - batch["plan"]).abs() < 2 * deviation
        return {
            "ade": off.mean(1).sum(),
            "fde": off[:, -1].sum(),
            "missed": (off[:, -1] > MISS_M).sum(),
            "straight_ade": straight_off.mean(1).sum(),
            "straight_fde": straight_off[:, -1].sum(),
            "within": is_within.float().mean((1, 2)).sum(),
            "samples": len(off),
        }

    def samples(self, model: nn.Module) -> Sequence[Sample | Media]:
        from phalanx.recipes.bev.data import sees_grid

        if not self.options.pictures or not sees_grid(self.options):
            return []
        from phalanx.recipes.bev.pictures import as_png, draw_sample

        shown = self._shown
        device = next(model.parameters()).device
        plans, deviations = model(*(shown[name].to(device) for name in SEEN))
        rows = zip(shown["bev"], plans.cpu(), deviations.cpu(), shown["plan"], strict=True)
        return [
            Media(
                f"plan-{number}",
                ".png",
                as_png(draw_sample(*(part.numpy() for part in row))),
                "the plan with its deviations; black: where the expert went",
            )
            for number, row in enumerate(rows)
        ]

    @functools.cached_property
    def _shown(self) -> Batch:
        """Samples from all over the test split."""
        data: Any = self.data("test")
        ids = np.unique(np.linspace(0, len(data) - 1, _SHOWN).astype(np.int64))
        return data.__getitems__(ids, ids)

    def exported(self, model: nn.Module) -> Exported:
        return Exported(
            model, lambda batch: {name: batch[name] for name in SEEN}, ("plan", "deviation")
        )

    def export_metadata(self) -> Mapping[str, Any]:
        from phalanx.recipes.bev.data import describe_inputs

        return {"preprocessing": describe_inputs(self.options)}

    def metrics(self, sums: Mapping[str, float]) -> Mapping[str, float]:
        samples = sums["samples"]
        return {
            "ade": sums["ade"] / samples,
            "fde": sums["fde"] / samples,
            "miss_rate": sums["missed"] / samples,
            "constant_velocity_ade": sums["straight_ade"] / samples,
            "constant_velocity_fde": sums["straight_fde"] / samples,
            "within_2_deviations": sums["within"] / samples,
        }


def _sees_other(options: BevOptions) -> Finding:
    return Finding(
        slug="benchmark-grid",
        what="this planner cannot drive in highway-env: it sees something else",
        why=f"options.data = {options.data}, bev_kind = {options.bev_kind}; the benchmark draws "
        "highway-env's grid",
        fix="phalanx train bev, without data=, for a planner that drives there",
    )


def _straight_on(speed: Tensor, like: Tensor) -> Tensor:
    """Where constant velocity leads."""
    times = WAYPOINT_S * torch.arange(1, like.shape[1] + 1, device=speed.device)
    ahead = speed[:, None] * times
    return torch.stack([ahead, torch.zeros_like(ahead)], -1)
