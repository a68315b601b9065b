"""What a recipe's model and data are, found in a child process: sizes, counts, fingerprints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from phalanx.codec import from_json, to_json
from phalanx.engine.data.array_feed import is_gathered
from phalanx.engine.data.fetch_time import fetch_seconds, fetch_time
from phalanx.engine.data.fingerprint import fingerprint_data
from phalanx.engine.data.micro_batches import choose_fetch, seed_globals
from phalanx.engine.fast.compile import are_alike, count_shapes
from phalanx.engine.model.blocks import find_blocks
from phalanx.engine.model.sync_batchnorm import find_own_norms
from phalanx.errors import Finding, UserError, errors_of
from phalanx.planner.schema.trace import EAGER, Trace, TraceAnswer, TraceQuestion
from phalanx.recipe.benchmarking import default_benchmark
from phalanx.recipe.first_version import find_deprecated
from phalanx.recipe.interface import Recipe, leaves
from phalanx.recipe.loading import load_recipe, recipe_fingerprint
from phalanx.recipe.pretrained import PretrainedWeights
from phalanx.tracing.activations import trace_activations
from phalanx.tracing.cacheable import examine_data
from phalanx.tracing.parameters import list_weights

_PROBED = 4  # micro-batches from all over the data whose shapes are compared,
_ALIKE = 2  # and samples of each


def run_trace(request_file: Path, result_file: Path) -> None:
    """Answer a `TraceQuestion`; never raises for the user's mistakes."""
    asked = from_json(TraceQuestion, json.loads(request_file.read_text(encoding="utf-8")))
    trace, findings = trace_recipe(
        asked.recipe, asked.options, asked.precisions, is_evaluation=asked.is_evaluation
    )
    answer = TraceAnswer(trace=trace, findings=findings)
    result_file.write_text(json.dumps(to_json(answer)), encoding="utf-8")


def trace_recipe(
    spec: str,
    options: dict[str, Any],
    precisions: Sequence[str] = EAGER,
    *,
    is_evaluation: bool = False,
) -> tuple[Trace | None, list[Finding]]:
    """The Trace of a recipe in some precisions (`fp32`, `bf16`; `bf16+compiled` is compiled code),
    and what is wrong with it. For an evaluation the train split is not opened, and the test split
    stands in for it."""
    try:
        recipe = load_recipe(spec, options)
        if is_evaluation:
            recipe.splits = ("test",)
        findings = [*find_deprecated(type(recipe)), *recipe.check()]
        if errors_of(findings):
            return None, findings
        trace = _trace(spec, recipe, precisions)
        about = recipe.check_weights() if isinstance(recipe, PretrainedWeights) else []
        return replace(trace, weights_findings=list(about)), findings
    except UserError as error:
        return None, error.findings
    except Exception as error:
        return None, [_broken(spec, error)]


def _trace(spec: str, recipe: Recipe, precisions: Sequence[str]) -> Trace:
    model = _model_without_memory(recipe)
    parameters = list(model.parameters())
    test = recipe.data("test")
    is_stand_in = "train" not in recipe.splits and test is not None and len(test) > 0
    train = test if is_stand_in else recipe.data("train")
    if len(train) == 0:
        raise UserError(
            Finding(
                slug="no-samples",
                what="the train split has 0 samples",
                why=f"len(data('train')) of recipe {spec}",
                fix="point the recipe at data that is there: `phalanx recipes show`",
            )
        )
    trainable = [p for p in parameters if p.requires_grad]
    found = find_blocks(recipe, model)
    weights = list_weights(recipe, model, found)
    blocks = [{id(p): p.nbytes for p in block.parameters()} for _, block in found]
    inside = {key for block in blocks for key in block}
    outside_bytes = sum(p.nbytes for p in parameters if id(p) not in inside)
    has_batchnorm = any(isinstance(module, _BatchNorm) for module in model.modules())
    own_batchnorms = find_own_norms(model)
    kinds = count_shapes(found) if are_alike(found) else 0
    # Last: it spoils the model.
    activations = trace_activations(recipe, model, train, precisions)
    frozen_unknown = None
    if activations.unknown is not None and any(weight.held for weight in weights):
        model = _model_without_memory(recipe)
        wide = trace_activations(recipe, model, train, precisions, is_frozen_narrow=False)
        if wide.unknown is None:
            activations, frozen_unknown = wide, activations.unknown
            weights = [weight._replace(held="") for weight in weights]
    kept, cache_finding = examine_data(train)
    return Trace(
        recipe_fingerprint=recipe_fingerprint(spec),
        options=json.loads(recipe.options.model_dump_json()),
        num_samples=len(train),
        num_test_samples=len(test) if test is not None else 0,
        data_fingerprint=fingerprint_data(train, test),
        parameters=sum(p.numel() for p in parameters),
        trainable_parameters=sum(p.numel() for p in trainable),
        parameter_bytes=sum(p.nbytes for p in parameters),
        trainable_bytes=sum(p.nbytes for p in trainable),
        has_batchnorm=has_batchnorm,
        own_batchnorms=own_batchnorms,
        num_blocks=len(blocks),
        largest_block_bytes=max((sum(block.values()) for block in blocks), default=0),
        outside_bytes=outside_bytes,
        block_kinds=kinds,
        convolutions=_count_convolutions(model),
        varying_shapes=find_varying_shapes(train),
        weights=weights,
        metric=recipe.metric,
        metric_mode=recipe.metric_mode,
        default_benchmark=default_benchmark(recipe),
        fetch_s=fetch_seconds(train),
        fetch_line=fetch_time(train, activations.input_bytes or 0),
        input_bytes=activations.input_bytes,
        array_bytes=train.num_bytes if is_gathered(train) else None,
        kept_sample=kept,
        cache_finding=cache_finding,
        kept_test_sample=examine_data(test)[0] if test is not None and len(test) else None,
        activation_bytes=activations.kept,
        checkpointed_bytes=activations.checkpointed,
        operators=activations.operators,
        checkpointed_operators=activations.checkpointed_operators,
        activations_sampled=activations.sampled,
        activations_unknown=activations.unknown,
        frozen_unknown=frozen_unknown,
        compiled_unknown=activations.compiled_unknown,
    )


def _model_without_memory(recipe: Recipe) -> nn.Module:
    try:
        with torch.device("meta"):
            return recipe.model()
    except Exception:
        # A model that computes with its weights while it is built needs real ones. If that was not
        # the reason, building it for real raises the same error again.
        return recipe.model()


def _count_convolutions(model: nn.Module) -> int:
    return sum(isinstance(m, _ConvNd) and m.weight.dim() == 4 for m in model.modules())


def find_varying_shapes(data: Any) -> str | None:
    """Two shapes of the same tensor in micro-batches of as many samples; None where a few from all
    over the data are alike."""
    size = min(_ALIKE, len(data))
    starts = np.unique(np.linspace(0, len(data) - size, _PROBED).astype(np.int64))
    first: list[tuple[int, ...]] | None = None
    for start in starts.tolist():
        ids = np.arange(start, start + size, dtype=np.int64)
        seed_globals(0)
        batch = choose_fetch(data)(ids, ids)
        shapes = [tuple(leaf.shape) for leaf in leaves(batch) if isinstance(leaf, torch.Tensor)]
        first = shapes if first is None else first
        for old, new in zip(first, shapes, strict=False):
            if old != new:
                return f"{list(old)} and {list(new)} for {size} samples"
    return None


def _broken(spec: str, error: Exception) -> Finding:
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    own = [
        f
        for f in frames
        if "site-packages" not in f.filename
        and not any(part in f.filename for part in ("phalanx/engine", "phalanx/tracing"))
    ]
    where = own[-1] if own else frames[-1]
    return Finding(
        slug="recipe-broken",
        what=f"the recipe `{spec}` fails: {type(error).__name__}: {str(error)[:600]}",
        why=f"{where.filename}:{where.lineno} in {where.name}: {where.line}",
        fix="mend that line; the recipe's model and data are built before anything else starts",
    )
