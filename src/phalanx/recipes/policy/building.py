"""The policy's network of its options, with the statistics of the data where that is at hand and
room for those of a checkpoint where it is not; and the tasks of a benchmark."""

from __future__ import annotations

import numpy as np
from torch import nn

from phalanx.recipe import BenchmarkSettings, Finding, UserError
from phalanx.recipes.policy.data import split
from phalanx.recipes.policy.demonstrations import Demonstrations
from phalanx.recipes.policy.libero_suite import missing_libero, suite_tasks
from phalanx.recipes.policy.network import PolicyNetwork
from phalanx.recipes.policy.options import PolicyOptions
from phalanx.recipes.policy.scaling import Statistics, measure
from phalanx.recipes.policy.simulator import is_task
from phalanx.recipes.policy.text import embed_texts
from phalanx.recipes.policy.vision import SmallVision, cached_features, load_vision


def build(options: PolicyOptions, found: Demonstrations | None) -> tuple[PolicyNetwork, bool]:
    """The network, and whether its statistics and descriptions are yet to come."""
    if options.state_size is None or options.action_size is None or options.tasks is None:
        raise UserError(_unsettled())
    vision: nn.Module | None = None
    if options.cameras and options.vision_encoder is None:
        vision = SmallVision(options.image_size)
    elif options.cameras and options.train_vision:
        vision = load_vision(options.vision_encoder or "")
    if found is None:
        sizes = len(options.tasks), options.state_size, options.action_size
        texts = np.zeros((len(options.tasks), options.text_size)) if options.text_size else None
        return PolicyNetwork(options, Statistics.blank(*sizes), texts, vision), True
    texts = None
    if options.text_size:
        words = {task.name: task.text for task in found.tasks}
        texts = embed_texts([words[task] for task in options.tasks], options.text_encoder)
    return PolicyNetwork(options, _measured(options, found), texts, vision), False


def _measured(options: PolicyOptions, found: Demonstrations) -> Statistics:
    """Of the steps that are trained on, each task by itself; or of all that the data holds."""
    tasks = options.tasks or []
    if options.statistics == "task":
        part = split(found, tasks, options.test_share)["train"]
        states, actions = found.states[part.steps], found.actions[part.steps]
        return measure(states, actions, part.task, tasks=len(tasks), by_task=True)
    nobody = np.zeros(len(found.states), np.int64)
    return measure(found.states, found.actions, nobody, tasks=len(tasks), by_task=False)


def look_at_pictures(found: Demonstrations, options: PolicyOptions) -> np.ndarray | None:
    """What a frozen vision model saw, where there is one."""
    if not options.cameras or options.vision_encoder is None or options.train_vision:
        return None
    return cached_features(found, options)


def benchmark_tasks(options: PolicyOptions, name: str, settings: BenchmarkSettings) -> list[str]:
    """The trained tasks that a benchmark has, in the order of training; raises UserError."""
    trained = options.tasks or []
    if name == "metaworld":
        known = [task for task in trained if is_task(task)]
    else:
        if found := missing_libero(name):
            raise UserError(found)
        known = [task for task in trained if task in suite_tasks(name)]
    if not known:
        raise UserError(
            Finding(
                slug="policy-task",
                what=f"`{name}` has none of the tasks that this policy was trained for",
                why=f"options.tasks = {', '.join(trained[:10])}",
                fix="the benchmark that the demonstrations are of: --benchmark metaworld or "
                "libero_90",
            )
        )
    return known[: settings.tasks]


def _unsettled() -> Finding:
    return Finding(
        slug="policy-sizes",
        what="how large states and actions are, and which tasks there are, is not known",
        why="a run's job says so; these weights came without one",
        fix="phalanx evaluate RUN, or with the weights: state_size=39 action_size=4 text_size=384 "
        "tasks=reach-v3,push-v3,door-open-v3",
    )


def gone(options: PolicyOptions) -> Finding:
    """Said where demonstrations vanish between planning and training."""
    return Finding(
        slug="policy-data-gone",
        what="the demonstrations are not there any more",
        why=f"options.data = {options.data or 'null: those in the cache'}; they were when the job "
        "was planned, and the model is scaled by them",
        fix="phalanx plan policy --fresh collects or converts them again",
    )
