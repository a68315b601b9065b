"""Runs as Prometheus reads them: its text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite

from phalanx.watch.state import LOSS
from phalanx.watch.summary import Summary
from phalanx.watch.watched_run import WatchedRun

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Row = tuple[dict[str, str], float]


def render_metrics(summaries: Sequence[Summary], opened: Sequence[WatchedRun]) -> str:
    """Gauges of every run, and more of those that are `opened`."""
    rows: dict[str, list[Row]] = {}

    def put(name: str, labels: dict[str, str], value: float | None) -> None:
        if value is not None and isfinite(value):
            rows.setdefault(name, []).append((labels, float(value)))

    for one in summaries:
        run = {"run": one.name}
        put("phalanx_run_up", {**run, "status": one.status}, float(one.status == "running"))
        put("phalanx_run_step", run, one.step)
        put("phalanx_run_steps_total", run, one.total_steps)
        put("phalanx_run_restarts", run, one.restarts)
        put("phalanx_run_findings", run, one.findings)
        put("phalanx_run_gpu_hours", run, one.gpu_hours)
        if one.metric:
            put("phalanx_run_best", {**run, "metric": one.metric}, one.best)
    for watched in opened:
        run, state = {"run": watched.name}, watched.state
        loss = state.series.get(LOSS)
        put("phalanx_run_loss", run, loss.last.value if loss and loss.last else None)
        speed = watched.speed()
        put("phalanx_run_samples_per_second", run, speed.samples_per_s)
        put("phalanx_run_mfu", run, speed.mfu)
        for name, value in state.metrics.items():
            put("phalanx_run_metric", {**run, "metric": name}, value)
        for one_of in {one.title: one for one in state.evaluations}.values():
            for name, value in one_of.metrics.items():
                labels = {**run, "on": one_of.title, "metric": name}
                put("phalanx_run_evaluated", labels, value)
        for number, rank in state.ranks.by_number.items():
            labels = {**run, "rank": str(number)}
            put("phalanx_rank_straggler", labels, float(rank.is_straggler))
            put("phalanx_rank_step_seconds", labels, rank.step_s)
            for name, value in rank.usage.items():
                if name not in ("rank", "step", "gpu"):
                    put(f"phalanx_rank_{name}", labels, value)
    return "".join(_lines(rows))


def _lines(rows: dict[str, list[Row]]) -> Iterable[str]:
    for name, values in rows.items():
        yield f"# HELP {name} {_HELP.get(name, 'Of the newest usage sample.')}\n"
        yield f"# TYPE {name} gauge\n"
        for labels, value in values:
            inside = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
            yield f"{name}{{{inside}}} {value:.17g}\n"


def _escape(text: str) -> str:
    """As the format asks for in values of labels."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


_HELP = {
    "phalanx_run_up": "Whether the command that holds the run lives.",
    "phalanx_run_step": "Optimizer steps done.",
    "phalanx_run_steps_total": "Optimizer steps of the whole run.",
    "phalanx_run_restarts": "How often its ranks were started again.",
    "phalanx_run_findings": "Findings that were written down.",
    "phalanx_run_gpu_hours": "Hours of GPUs that it has used.",
    "phalanx_run_best": "The best value of the deciding metric.",
    "phalanx_run_loss": "The newest logged loss.",
    "phalanx_run_samples_per_second": "Samples per second over all ranks.",
    "phalanx_run_mfu": "Share of what the devices could compute at most.",
    "phalanx_run_metric": "The newest evaluation.",
    "phalanx_run_evaluated": "What `phalanx evaluate` found last.",
    "phalanx_rank_straggler": "Whether the others wait for it.",
    "phalanx_rank_step_seconds": "Seconds of a step in the newest window.",
}
