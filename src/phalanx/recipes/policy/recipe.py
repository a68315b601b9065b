"""A robot policy: a diffusion transformer that learns chunks of actions from demonstrations.

The default needs nothing prepared: Meta-World's scripted experts show reach, push and door-open.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.recipe import (
    Batch,
    Benchmarked,
    Benchmarking,
    BenchmarkSettings,
    Collected,
    CollectingData,
    Data,
    Exported,
    ExportingGraphs,
    Finding,
    Recipe,
    Split,
    Term,
    UserError,
)
from phalanx.recipe.keys import derive, normal, uniform
from phalanx.recipes.policy.check import check_options, check_source, resolve
from phalanx.recipes.policy.data import Part, open_part, split, thinned
from phalanx.recipes.policy.demonstrations import Demonstrations
from phalanx.recipes.policy.libero_suite import SUITES
from phalanx.recipes.policy.network import PolicyNetwork
from phalanx.recipes.policy.options import PolicyCollecting, PolicyOptions
from phalanx.recipes.policy.source import find_source, open_source


class PolicyRecipe(Recipe, CollectingData, Benchmarking, ExportingGraphs):
    """Actions from noise, given the state, the task and what cameras see."""

    Options = PolicyOptions
    Collecting = PolicyCollecting
    options: PolicyOptions
    metric = "action_error"
    metric_mode = "min"
    benchmarks: ClassVar[Mapping[str, str]] = {
        "metaworld": "The trained tasks of Meta-World, at places that were never demonstrated.",
        **SUITES,
    }

    default_benchmark = "metaworld"

    @classmethod
    def collect(cls, settings: PolicyCollecting, out: Path | None) -> Collected:
        from phalanx.recipes.policy.collecting import collect

        return collect(settings, out)

    @functools.cached_property
    def demonstrations(self) -> Demonstrations:
        return open_source(self.options)[0]

    @functools.cached_property
    def parts(self) -> dict[Split, Part]:
        assert self.options.tasks is not None, "check found them"
        return split(self.demonstrations, self.options.tasks, self.options.test_share)

    def check(self) -> list[Finding]:
        findings = check_options(self.options)
        try:
            found, said = open_source(self.options)
        except UserError as error:
            return [*findings, *error.findings]
        self.__dict__["demonstrations"] = found
        findings += check_source(self.options, found)
        if any(finding.severity == "error" for finding in findings):
            return findings
        self.options, notes = resolve(self.options, found, said)
        return findings + notes

    def model(self) -> nn.Module:
        from phalanx.recipes.policy.building import build

        model, self._is_blank = build(self.options, find_source(self.options))
        return model

    _is_blank = False
    """Whether a model was built that waits for a checkpoint's statistics."""

    def data(self, split: Split) -> Data:
        from phalanx.recipes.policy.building import gone, look_at_pictures

        if split == "train" and self._is_blank:
            raise UserError(gone(self.options))
        part = self.parts[split]
        if split == "test":
            part = thinned(part, self.options.sample_batch_size)
        found = self.demonstrations
        return open_part(found, part, self.options, look_at_pictures(found, self.options))

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Weights of layers decay; biases, places and scales do not."""
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        is_layer = [p.dim() > 1 and n.endswith("weight") for n, p in named]
        decayed = [p for (_, p), yes in zip(named, is_layer, strict=True) if yes]
        kept = [p for (_, p), yes in zip(named, is_layer, strict=True) if not yes]
        return [{"params": decayed}, {"params": kept, "weight_decay": 0.0}]

    def blocks(self, model: nn.Module) -> Iterable[nn.Module]:
        blocks: nn.ModuleList = model.blocks  # type: ignore[assignment]
        return blocks

    def loss(self, model: nn.Module, batch: Batch, keys: Tensor) -> Mapping[str, Term]:
        shaken = self.options.state_noise * normal(derive(keys, "state"), batch["state"].shape[1])
        total = self._error(model, batch, keys, shaken)
        return {"denoising": Term(total, len(batch["state"]))}

    def _error(
        self, model: nn.Module, batch: Batch, keys: Tensor, shaken: Tensor | None = None
    ) -> Tensor:
        """The squared error of each sample's prediction, averaged over its chunk and added up."""
        noise = normal(derive(keys, "noise"), *batch["actions"].shape[1:])
        said, wanted = model(batch, noise, uniform(derive(keys, "time")), shaken)
        return F.mse_loss(said, wanted, reduction="none").mean((1, 2)).sum()

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Any]:
        made = model(batch, self._test_noise(batch))
        errors = (made - batch["actions"]).abs().mean((1, 2))
        sums = {"error": errors.sum(), "samples": len(errors)}
        if getattr(model, "denoises", True):  # an exported file only acts
            sums["loss"] = self._error(model, batch, derive(batch["number"], "loss"))
        return sums

    def _test_noise(self, batch: Batch) -> Tensor:
        noise: Tensor = normal(derive(batch["number"], "test"), *batch["actions"].shape[1:])
        return noise

    def metrics(self, sums: Mapping[str, Any]) -> Mapping[str, float]:
        names = {"action_error": "error", "loss": "loss"}
        return {k: sums[name] / sums["samples"] for k, name in names.items() if name in sums}

    def benchmark(self, model: nn.Module, name: str, settings: BenchmarkSettings) -> Benchmarked:
        from phalanx.recipes.policy.building import benchmark_tasks
        from phalanx.recipes.policy.rolling import run

        tasks = benchmark_tasks(self.options, name, settings)
        assert isinstance(model, PolicyNetwork)
        return run(model, self.options, name, tasks, settings)

    def exported(self, model: nn.Module) -> Exported:
        """From a state, a task and noise to actions: all calls of the network in one graph."""
        from phalanx.recipes.policy.exporting import FILE_INPUTS, Acting, Exportable

        def inputs(batch: Batch) -> Mapping[str, Tensor]:
            seen = {name: batch[name] for name in FILE_INPUTS if name in batch}
            return {**seen, "noise": self._test_noise(batch)}

        acting = Acting(model, [name for name in FILE_INPUTS if self._gives(name)])
        return Exported(acting, inputs, ("actions",), stand_in=Exportable)

    def _gives(self, name: str) -> bool:
        """Whether batches have it."""
        is_frozen = self.options.vision_encoder is not None and not self.options.train_vision
        given = {"images": not is_frozen, "seen": is_frozen}
        return given[name] and bool(self.options.cameras) if name in given else True

    def export_metadata(self) -> Mapping[str, Any]:
        return {"tasks": self.options.tasks, "chunk": self.options.chunk}
