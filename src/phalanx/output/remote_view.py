"""A run on another machine as it happens: the same view as for one here, fed over ssh."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from phalanx.errors import ExitCode, Finding, format_seconds, printable
from phalanx.output import console
from phalanx.output.progress import RunView
from phalanx.places.remote.answers import RemoteRun
from phalanx.places.remote.runs import Follower, Listener
from phalanx.places.remote.ssh import Connection
from phalanx.planner.schema.plan import Plan
from phalanx.run.event_kinds import AttemptStarted, Outcome
from phalanx.run.events import Event
from phalanx.verbs.train import RunFigures

_LAST_LINES = 30


class RemoteView:
    """Shows one run: what it prints until it has a plan, then its events."""

    def __init__(self, place: str, run: RemoteRun) -> None:
        self._place = place
        self._run = run
        self.view: RunView | None = None
        self._figures = RunFigures()
        self.outcome: Outcome | None = None
        self._half_line = ""
        self._kept: list[str] = []
        self._waiting = ExitStack()

    def __enter__(self) -> RemoteView:
        self._waiting.enter_context(console.working(f"{self._run.name} is being planned there"))
        return self

    def __exit__(self, *error: object) -> None:
        self._waiting.close()
        if self.view is not None:
            self.view.__exit__(*error)

    def listener(self) -> Listener:
        return Listener(self._use_plan, self._take, self._take_output, console.tell)

    def _use_plan(self, record: dict[str, Any]) -> None:
        try:
            plan = Plan.from_json(record)
        except (KeyError, TypeError, ValueError):
            return  # of another version: what the run prints is shown instead
        self._waiting.close()  # only one thing can move on a terminal
        if self.view is None:
            self.view = RunView(plan, Path(self._run.run, "logs"), self._figures)
            self.view.__enter__()
        else:
            self.view.use_plan(plan)

    def _take(self, event: Event) -> None:
        if isinstance(event.body, Outcome) and event.writer == "supervisor":
            self.outcome = event.body
        if isinstance(event.body, AttemptStarted):
            self.outcome = None
        self._figures.take(event)
        if self.view is not None:
            self.view.take(event)

    def _take_output(self, text: str) -> None:
        *lines, self._half_line = (self._half_line + text).split("\n")
        for line in lines:
            shown = printable(line)
            if self.view is None:
                console.tell(shown)
            else:
                self._kept = [*self._kept[1 - _LAST_LINES :], shown]

    def show_end(self, ended: int | str) -> int:
        """What is left to say when the run has ended: the exit code to pass on."""
        name, run = self._place, self._run.name
        if isinstance(ended, str):
            console.show_findings(
                [
                    Finding(
                        slug="remote-run-gone",
                        what=f"the run {run} has ended, and nobody has seen how",
                        why="neither it nor what waits for it is alive: the machine was restarted, "
                        "or both were killed",
                        fix=f"phalanx remote train {name} --resume {run}",
                    )
                ]
            )
            return int(ExitCode.FAILED)
        if self.outcome is None:
            for line in self._kept:  # it ended in a way that has no event
                console.tell(line)
            if ended != 0:
                console.tell(f"failed with exit code {ended}: {self._run.run}")
            return ended
        console.show_findings(self.outcome.findings)
        self._show_table()
        return ended

    def _show_table(self) -> None:
        assert self.outcome is not None
        name, run, view = self._place, self._run.name, self.view
        metrics = self._figures.metrics
        status, reason = self.outcome.status, self.outcome.reason
        rows = [("status", status if reason in (status, "") else f"{status}: {reason}")]
        if view is not None and metrics:
            figures = ", ".join(f"{key} {value:.4f}" for key, value in metrics.items())
            rows.append(("test", figures))
        if view is not None:
            seconds = format_seconds(self._figures.seconds)
            rows.append(("trained", f"{self.outcome.step or 0} steps in all, {seconds}"))
        rows.append(("run", f"{self._run.run} on {name}"))
        console.table(rows)
        steps = [(f"phalanx remote pull {name} {run}", "bring checkpoints, logs and best weights")]
        if status != "finished":
            again = f"phalanx remote train {name} --resume {run}"
            steps.append((again, "go on from its checkpoint"))
        console.say_next(*steps)


def follow(
    connection: Connection, run: RemoteRun, *, patience_s: float, is_from_now: bool = False
) -> int:
    """Show a run to its end: its exit code. Ctrl-C only stops the showing."""
    place = connection.place.name
    try:
        with RemoteView(place, run) as view:
            listener = view.listener()
            follower = Follower(connection, run.name, listener, is_from_now=is_from_now)
            ended = follower.follow(patience_s=patience_s)
    except KeyboardInterrupt:
        console.say(f"\nno longer following; {run.name} goes on on {place}")
        say_following(place, run.name)
        return int(ExitCode.INTERRUPTED)
    return view.show_end(ended)


def say_following(place: str, run: str) -> None:
    """How to come back to a run that goes on."""
    console.say_command(f"phalanx remote attach {place} {run}", "follow it again")
    console.say_command(f"phalanx remote stop {place} {run}", "end it; it saves first")
