"""A run for another program: the figures of the terminal view by name."""

from __future__ import annotations

from typing import Any

from phalanx.codec import finite, to_json
from phalanx.watch.state import LOSS
from phalanx.watch.watched_run import WatchedRun

SCHEMA_VERSION = 1
"""Of what `--json` prints; raised when a field changes its meaning or goes."""


def report(watched: WatchedRun) -> dict[str, Any]:
    """Where the run stands."""
    state, speed = watched.state, watched.speed()
    best = watched.best_metric
    record = {
        "schema_version": SCHEMA_VERSION,
        "run": str(watched.run.path),
        "kind": "launch" if watched.is_script else "train",
        "status": watched.status(),
        "reason": state.outcome.get("reason"),
        "step": state.step,
        "total_steps": watched.total_steps,
        "epoch": state.epoch,
        "elapsed_s": watched.elapsed_s(),
        "left_s": watched.left_s(),
        "planned_duration_s": watched.planned_number("duration_s"),
        "samples_per_s": speed.samples_per_s,
        "planned_samples_per_s": watched.planned_number("samples_per_s"),
        "mfu": speed.mfu,
        "loss": _last(watched, LOSS),
        "lr": _last(watched, "train/lr"),
        "metrics": state.metrics,
        "best": {"metric": best[0], "value": best[1], "step": best[2]} if best else None,
        "evaluations": state.evaluations,
        "media": state.media,
        "samples": state.samples,
        "gpu_hours": watched.device_hours() if watched.has_gpus else None,
        "restarts": state.num_restarts,
        "revision": watched.plan.get("revision"),
        "saved_step": state.saved_step,
        "skipped_steps": state.num_skipped,
        "ranks": [
            {"rank": number, **to_json(rank), "shares": rank.shares}
            for number, rank in sorted(state.ranks.by_number.items())
        ],
        "findings": [
            {**said.finding, "count": said.count, "time_s": said.time_s} for said in state.findings
        ],
        "notes": sorted(state.notes, key=lambda note: note.time_s),
        "damaged_lines": state.num_damaged,
    }
    found: dict[str, Any] = finite(to_json(record))
    return found


def _last(watched: WatchedRun, name: str) -> float | None:
    series = watched.state.series.get(name)
    last = series.last if series is not None else None
    return last.value if last is not None else None
