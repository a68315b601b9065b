"""Trains the bev recipe as it comes, drives it, and writes what was found as Markdown.

    python benchmarks/bev/closed_loop.py --out benchmarks/results/DATE-bev-cpu.md

Fails where the planner collides more than five points more often than the expert, where constant
velocity does not collide at least twice as often, or where its ADE is not 40 % below constant
velocity's.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from origin import describe_origin
from tables import heading

PHALANX = [sys.executable, "-m", "phalanx"]
FIGURES = ("collisions", "off_road", "completion", "driving_score")


def phalanx(*words):
    """The command's JSON, and how long it took."""
    started = time.perf_counter()
    done = subprocess.run([*PHALANX, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    seconds = time.perf_counter() - started
    return (json.loads(done.stdout) if "--json" in words else done.stdout), seconds


def row(task, whose, found):
    low, high = 100 * found["low"], 100 * found["high"]
    rate = f"{found['successes']} of {found['episodes']} ({low:.0f} - {high:.0f} %)"
    return [task, whose, rate, *(f"{found['figures'][name]:.3g}" for name in FIGURES)]


def table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def mean(tasks, name):
    return sum(task["figures"][name] for task in tasks) / len(tasks)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--run", help="a run that is trained already")
    parser.add_argument("--episodes", type=int, default=25)
    asked = parser.parse_args()
    times = []
    run = asked.run
    if run is None:
        run = "runs/closed-loop"
        _, seconds = phalanx("train", "bev", "--name", "closed-loop")
        times.append(f"`phalanx train bev`, its data included: {seconds / 60:.1f} min")
    split, seconds = phalanx("evaluate", run, "--benchmark", "none", "--json")
    driven, drove = phalanx(
        "evaluate", run, "--benchmark", "highway", "--episodes", str(asked.episodes), "--json"
    )
    times.append(f"`phalanx evaluate`: {(seconds + drove) / 60:.1f} min")
    rows = []
    for index, task in enumerate(driven["tasks"]):
        rows.append(row(task["task"], "planner", task))
        rows += [row("", who, found[index]) for who, found in driven["baselines"].items()]
    collides = {"planner": mean(driven["tasks"], "collisions")}
    collides |= {who: mean(found, "collisions") for who, found in driven["baselines"].items()}
    metrics = split["metrics"]
    below = 1 - metrics["ade"] / metrics["constant_velocity_ade"]
    times.append("load: " + ", ".join(f"{value:.1f}" for value in os.getloadavg()))
    asked.out.write_text(
        "\n".join(heading("bev in the loop", [{"about": describe_origin("highway-env")}]))
        + "\n"
        + "\n".join(f"- {line}" for line in times)
        + f"\n- ADE {metrics['ade']:.2f} m, of constant velocity "
        f"{metrics['constant_velocity_ade']:.2f} m: {100 * below:.0f} % below; within two "
        f"deviations: {100 * metrics['within_2_deviations']:.0f} %\n"
        + "- collisions over all scenarios: "
        + ", ".join(f"{who} {100 * share:.0f} %" for who, share in collides.items())
        + "\n\n"
        + table(["scenario", "driver", "success (95 %)", *FIGURES], rows)
        + "\n",
        encoding="utf-8",
    )
    assert collides["planner"] <= collides["expert"] + 0.05, collides
    assert 2 * collides["planner"] < collides["constant velocity"], collides
    assert below >= 0.4, metrics


if __name__ == "__main__":
    main()
