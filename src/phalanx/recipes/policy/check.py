"""What is wrong with options and demonstrations, and what they settle between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phalanx.recipe import Finding
from phalanx.recipes.policy.data import split
from phalanx.recipes.policy.demonstrations import Demonstrations, check_demonstrations
from phalanx.recipes.policy.options import PolicyOptions
from phalanx.recipes.policy.scaling import choose, measure, trap
from phalanx.recipes.policy.source import unknown_tasks
from phalanx.recipes.policy.text import embed_texts
from phalanx.recipes.policy.vision import token_size

MOST_CAMERAS = 2


def check_options(options: PolicyOptions) -> list[Finding]:
    """Options that do not go together."""
    findings = []
    if len(options.cameras) > MOST_CAMERAS:
        findings.append(
            Finding(
                slug="policy-camera",
                what=f"{len(options.cameras)} cameras, the policy has room for {MOST_CAMERAS}",
                why=f"options.cameras = {', '.join(options.cameras)}",
                fix=f"cameras={','.join(options.cameras[:MOST_CAMERAS])}",
            )
        )
    if options.vision_encoder is not None and not options.cameras:
        findings.append(
            Finding(
                slug="policy-camera",
                what="a vision encoder without a camera sees nothing, and is not used",
                why=f"options.vision_encoder = {options.vision_encoder}, options.cameras = []",
                fix="cameras=NAME, or no vision_encoder",
                severity="warning",
            )
        )
    return findings


def check_source(options: PolicyOptions, found: Demonstrations) -> list[Finding]:
    """Everything about the demonstrations that stands in the way."""
    findings = check_demonstrations(found)
    findings += unknown_tasks(options, found)
    sizes = {"state": found.states.shape[1], "action": found.actions.shape[1]}
    for name, size in sizes.items():
        known = getattr(options, f"{name}_size")
        if known not in (None, size):
            findings.append(
                Finding(
                    slug="policy-action-size",
                    what=f"the data has {size} numbers in {'an' if name == 'action' else 'a'} "
                    f"{name}, the policy {known}",
                    why=f"{found.folder / name}s.npy; options.{name}_size = {known}, from the run "
                    "or file that the job is of",
                    fix=f"data of the same robot, or a new run: phalanx train policy "
                    f"data={found.folder}",
                )
            )
    if findings or not len(found.episodes):
        return findings
    trained = options.tasks or [task.name for task in found.tasks]
    names = [task.name for task in found.tasks]
    counts = {t: int((found.episodes[:, 2] == names.index(t)).sum()) for t in trained}
    if few := {task: count for task, count in counts.items() if count < 2}:
        findings.append(
            Finding(
                slug="policy-few-episodes",
                what="a task needs two episodes, one to train and one to test with: "
                + ", ".join(f"{task} has {count}" for task, count in few.items()),
                why=f"{found.folder / 'episodes.npy'}",
                fix=f"tasks={','.join(t for t in trained if t not in few) or 'NAME'}",
            )
        )
    return findings


def resolve(
    options: PolicyOptions, found: Demonstrations, said: Sequence[str]
) -> tuple[PolicyOptions, list[Finding]]:
    """The options with what the data settles, so that a run's job builds its model without data;
    and what is worth saying about it."""
    tasks = options.tasks or [task.name for task in found.tasks]
    texts = {task.name: task.text for task in found.tasks}
    part = split(found, tasks, options.test_share)["train"]
    steps = np.bincount(part.task, minlength=len(tasks)).tolist()
    by_task, because = choose(options.statistics, steps)
    embedded = embed_texts([texts[task] for task in tasks], options.text_encoder)
    notes = [_data_note(found, tasks, steps, said, by_task=by_task, because=because)]
    if not by_task and len(tasks) == 1 and len(found.tasks) > 1:
        own = measure(
            found.states[part.steps], found.actions[part.steps], part.task, tasks=1, by_task=True
        )
        used = measure(
            found.states, found.actions, np.zeros(len(found.states)), tasks=1, by_task=False
        )
        warning = trap(tasks[0], own, used, len(found.tasks))
        notes += [warning] if warning is not None else []
    settled = {
        "tasks": tasks,
        "state_size": int(found.states.shape[1]),
        "action_size": int(found.actions.shape[1]),
        "text_size": embedded.shape[1] if embedded is not None else 0,
        "seen_size": token_size(found, options),
        "statistics": "task" if by_task else "dataset",
    }
    return options.model_copy(update=settled), notes


def _data_note(
    found: Demonstrations,
    tasks: Sequence[str],
    steps: Sequence[int],
    said: Sequence[str],
    *,
    by_task: bool,
    because: str,
) -> Finding:
    named = ", ".join(tasks[:4]) + (f" and {len(tasks) - 4} more" if len(tasks) > 4 else "")
    whose = "each task's own statistics" if by_task else "the statistics of the whole data set"
    return Finding(
        slug="policy-data",
        what=f"{sum(steps):,} steps of {named} to train with, scaled by {whose}",
        why="; ".join([because, f"data: {found.folder}", *said]),
        fix="nothing; data=FOLDER, tasks=NAMES and statistics=task|dataset choose otherwise",
        severity="note",
    )
