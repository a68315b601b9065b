"""What makes a run the run it is: a run that continues is held against it (planner/resume.py)."""

from __future__ import annotations

from typing import Any

from phalanx.job.schema import Job
from phalanx.planner.schema.micro_batches import BatchPlan
from phalanx.planner.schema.trace import Trace


def identity_of(job: Job, trace: Trace, batch: BatchPlan, precision: str) -> dict[str, Any]:
    # Only where it is on: a run from before there was such a key is one without.
    synced = {"sync_batchnorm": True} if job.sync_batchnorm and trace.has_batchnorm else {}
    return {
        **synced,
        "recipe": job.recipe,
        "recipe_fingerprint": trace.recipe_fingerprint,
        "options": trace.options,
        "data_fingerprint": trace.data_fingerprint,
        "num_samples": trace.num_samples,
        "seed": job.seed,
        "global_batch_size": batch.global_batch_size,
        "optimizer": job.optimizer.model_dump(),
        "schedule": job.schedule.model_dump(),
        "precision": precision,
    }
