"""A fingerprint of a recipe's data: sizes, and a few samples from all over each split."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch

from phalanx.engine.data.micro_batches import choose_fetch, seed_globals
from phalanx.engine.model.tensor_file import as_bytes
from phalanx.errors import ExitCode, Finding, UserError
from phalanx.planner.schema.plan import Plan
from phalanx.recipe.interface import leaves

_PROBED = 4  # samples hashed per split: enough to tell one data set from another


def fingerprint_data(*splits: Any) -> str:
    """Of the train and the test split, in this order; None: there is none."""
    digest = hashlib.sha256()
    for data in splits:
        _hash_samples(digest, data)
    return digest.hexdigest()[:16]


def check_remembered(plan: Plan, train: Any, test: Any) -> None:
    """Refuse a plan that was made from memory for other data than there is now. Whoever started the
    ranks then asks the recipe, and plans again."""
    planned, found = plan.history.identity.get("data_fingerprint"), fingerprint_data(train, test)
    if found == planned:
        return
    sizes = f"{len(train)} and {len(test) if test is not None else 0} samples"
    known = f"{plan.batch.num_samples.value} and {plan.batch.num_test_samples.value}"
    raise UserError(
        Finding(
            slug="plan-outdated",
            what="the data is not what the plan was made for",
            why=f"its fingerprint is {found} ({sizes} to train and to test), the recipe had "
            f"answered {planned} ({known}) when it was last asked",
            fix="phalanx plan --fresh, then train again",
        ),
        exit_code=ExitCode.FAILED,
    )


def _hash_samples(digest: Any, data: Any) -> None:
    size = len(data) if data is not None else 0
    digest.update(f"{size};".encode())
    if size == 0:
        return
    ids = np.unique(np.linspace(0, size - 1, _PROBED).astype(np.int64))
    seed_globals(0)
    batch = choose_fetch(data)(ids, np.zeros(len(ids), np.int64))
    for leaf in leaves(batch):
        if isinstance(leaf, torch.Tensor):
            digest.update(as_bytes(leaf).tobytes())
        else:
            digest.update(repr(leaf).encode())
