"""What the benchmarks share: runs of `phalanx train` and of others in turns, and a result's table.

    turns = take_turns({"plain": lambda: run_child([...]), "phalanx": lambda: train([...])}, 5)
    table = Table("overhead", "Overhead per step", "| what | us |", "python benchmarks/overhead.py")
    table.add("plain loop", "85.0")
    table.write()

Phalanx's figures come from the events of a plain `phalanx train`, never from a loop of our own.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from origin import describe_origin
from tables import heading, write_page

from phalanx.run.event_kinds import Step
from phalanx.run.events import Event, read_events


@dataclass
class Trained:
    """What one `phalanx train` left behind."""

    events: list[Event]
    started_s: float
    """When the command was given, in seconds since 1970, as the events count."""
    wall_s: float

    @property
    def steps(self):
        return [event for event in self.events if isinstance(event.body, Step)]

    @property
    def first_step_s(self):
        """From the command to the first logged step."""
        return self.steps[0].time_s - self.started_s

    def rate(self, *, skip=0.2):
        """Median samples per second of the logged windows, without the first part of the run."""
        rates = [event.body.samples_per_s for event in self.steps]
        return statistics.median(rates[int(skip * len(rates)) :])


def train(arguments, *, cores=None, env=None):
    """Run `phalanx train ARGUMENTS`; `cores` binds it, as `taskset` would."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-m", "phalanx", "train", *map(str, arguments)]
        started_s, begun = time.time(), time.perf_counter()
        run(argv, cwd=folder, cores=cores, env=env)
        wall_s = time.perf_counter() - begun
        events = read_events(Path(folder, "runs", "latest", "events"))
    return Trained(events, started_s, wall_s)


def run_child(argv, *, cores=None, env=None):
    """The JSON that a Python script prints as its last line, from a process of its own."""
    done = run([sys.executable, *map(str, argv)], cores=cores, env=env)
    return json.loads(done.stdout.splitlines()[-1])


def run(argv, *, cwd=None, cores=None, env=None):
    """Run a command to its end; what it said is shown when it fails."""
    if cores is not None:
        argv = ["taskset", "-c", ",".join(map(str, cores)), *argv]
    done = subprocess.run(
        argv,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(argv)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done


def take_turns(contestants, rounds):
    """Call each contestant once a round, in an order that turns: what else the machine does, and
    how warm it is, then falls on all alike. Returns what each gave, in rounds."""
    given = {name: [] for name in contestants}
    for number in range(rounds):
        names = list(contestants)
        first = number % len(names)
        for name in names[first:] + names[:first]:
            given[name].append(contestants[name]())
    return given


class Table:
    """A result as Markdown: where it comes from, then rows, each printed as it is known."""

    def __init__(self, name, title, columns, command, *, packages=()):
        """`columns` is the table's first line, such as `| what | us |`; figures are on the right,
        text on the left."""
        self._name = name
        self._about = describe_origin(*packages) | {"command": command}
        rest = columns.strip("| ").count("|")
        self._lines = [
            *heading(title, [{"about": self._about}]),
            columns,
            "|---|" + "--:|" * rest,
        ]
        print("\n".join(self._lines), flush=True)

    def add(self, *cells):
        self.say("| " + " | ".join(map(str, cells)) + " |")

    def say(self, line):
        """A line below the table, or a heading and another table."""
        self._lines.append(line)
        print(line, flush=True)

    def write(self):
        """Put it into benchmarks/results."""
        write_page("\n".join(self._lines) + "\n", self._name, self._about)
