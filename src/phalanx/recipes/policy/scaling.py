"""What states and actions are scaled by: mean and deviation of each task, or of all together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from phalanx.recipe import Finding

ENOUGH_STEPS = 200
"""Steps from which a task's own statistics are trusted."""
_LEAST = 1e-2  # a deviation below it is noise: scaled up it would drown what matters
_TRAP = 1.5  # deviations that differ by so much are another scale


class Statistics(NamedTuple):
    """One row for each task."""

    state_mean: np.ndarray
    state_std: np.ndarray
    action_mean: np.ndarray
    action_std: np.ndarray

    @classmethod
    def blank(cls, tasks: int, state_size: int, action_size: int) -> Statistics:
        """What a checkpoint's own take the place of."""
        zeros, ones = np.zeros((tasks, state_size)), np.ones((tasks, state_size))
        return cls(zeros, ones, np.zeros((tasks, action_size)), np.ones((tasks, action_size)))


def measure(
    states: np.ndarray, actions: np.ndarray, task: np.ndarray, *, tasks: int, by_task: bool
) -> Statistics:
    """Statistics of steps that belong to tasks, one row for each of `tasks`."""
    rows = [
        [of(array[task == index] if by_task else array) for index in range(tasks)]
        for array in (states, actions)
        for of in (_mean, _deviation)
    ]
    return Statistics(*(np.stack(row) for row in rows))


def _mean(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows.mean(0, dtype=np.float64))


def _deviation(rows: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(rows.std(0, dtype=np.float64), _LEAST))


def choose(wanted: str, steps: Sequence[int]) -> tuple[bool, str]:
    """Whether each task is scaled by its own statistics, and why."""
    if wanted != "auto":
        return wanted == "task", f"statistics = {wanted}"
    if len(steps) == 1:
        return True, "one task is trained, and its own statistics are right for it"
    fewest = min(steps)
    if fewest >= ENOUGH_STEPS:
        return True, f"every task has at least {ENOUGH_STEPS} steps of its own (fewest: {fewest:,})"
    return False, f"a task has only {fewest:,} steps, and {ENOUGH_STEPS} are enough for its own"


def trap(task: str, own: Statistics, used: Statistics, num_tasks: int) -> Finding | None:
    """One task that is scaled by the statistics of many: what moves far in the others hardly moves
    in this one, and its actions drown."""
    ratios = np.concatenate([used.state_std[0] / own.state_std[0], _ratio(used, own)])
    worst = int(np.argmax(np.maximum(ratios, 1 / ratios)))
    ratio = float(max(ratios[worst], 1 / ratios[worst]))
    if ratio < _TRAP:
        return None
    sizes = own.state_std.shape[1]
    place = f"state {worst}" if worst < sizes else f"action {worst - sizes}"
    pairs = [np.concatenate([s.state_std[0], s.action_std[0]])[worst] for s in (used, own)]
    return Finding(
        slug="policy-statistics",
        what=f"`{task}` alone is trained with the statistics of {num_tasks} tasks: the deviation "
        f"of {place} is {pairs[0]:.4g} there and {pairs[1]:.4g} in this task ({ratio:.1f}x)",
        why="options.statistics = dataset, options.tasks names one task of the data",
        fix="statistics=task",
        severity="warning",
    )


def _ratio(used: Statistics, own: Statistics) -> np.ndarray:
    return np.asarray(used.action_std[0] / own.action_std[0])
