"""Small demonstrations without a simulator: a joint that goes to a mark, in two tasks of different
scale, and the same as HDF5 files of LIBERO's form."""

import json

import numpy as np

from phalanx.recipes.policy.demonstrations import Episode, Task, write_demonstrations

STATE_SIZE, ACTION_SIZE = 5, 2
SCALES = {"near": 0.1, "far": 10.0}
SMALL = {"text_encoder": "none", "chunk": 4, "sample_batch_size": 24, "sampling_steps": 2}
"""Options that make a run of it short."""


def episode(task, scale, generator, *, steps, cameras=()):
    place, mark = scale * generator.uniform(-1, 1, (2, ACTION_SIZE))
    states, actions = [], []
    for step in range(steps):
        push = 0.3 * (mark - place)
        states.append([*place, *mark, step / steps])
        actions.append(push)
        place = place + push
    images = {c: generator.integers(0, 256, (steps, 40, 48, 3), np.uint8) for c in cameras}
    return Episode(task, np.array(states), np.array(actions), images)


def swings(*, episodes=6, steps=12, cameras=()):
    generator = np.random.default_rng(0)
    return [
        episode(task, scale, generator, steps=steps + number % 3, cameras=cameras)
        for task, scale in enumerate(SCALES.values())
        for number in range(episodes)
    ]


def write_swings(folder, **how):
    tasks = [Task(name, f"move to the mark {name}") for name in SCALES]
    write_demonstrations(folder, swings(**how), tasks, about={"fps": 10, "source": "a test"})
    return folder


def write_libero(
    file, *, episodes=3, steps=8, action_size=7, cameras=("agentview_rgb",), text=None
):
    """As LIBERO writes it, with what its loader reads."""
    import h5py

    generator = np.random.default_rng(len(file.name))
    file.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(file, "w") as opened:
        data = opened.create_group("data")
        if text is not None:
            data.attrs["problem_info"] = json.dumps({"language_instruction": text})
        for number in range(episodes):
            demo = data.create_group(f"demo_{number}")
            demo["actions"] = generator.uniform(-1, 1, (steps, action_size))
            demo["obs/ee_states"] = generator.normal(size=(steps, 6))
            demo["obs/gripper_states"] = generator.normal(size=(steps, 2))
            for camera in cameras:
                demo[f"obs/{camera}"] = generator.integers(0, 256, (steps, 16, 16, 3), np.uint8)
    return file
