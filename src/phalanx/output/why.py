"""`phalanx plan --why`: one choice of the plan, its reason, and the job keys that feed it."""

from __future__ import annotations

from typing import Any

from phalanx.errors import Finding, UserError, did_you_mean
from phalanx.job.keys import job_keys, known_key
from phalanx.output import console
from phalanx.output.plan import show_value
from phalanx.planner.job_keys import FEEDS
from phalanx.prepare.plan import Prepared


def show_why(prepared: Prepared, key: str, *, as_json: bool) -> None:
    """Print the choice named `key`, or every choice that the job key `key` feeds."""
    chosen = prepared.plan.decisions()
    names = _names(key, list(chosen))
    meaning = job_keys()
    feeding = list(dict.fromkeys(feed for name in names for feed in FEEDS.get(name, ())))
    if as_json:
        console.say_json(
            {
                "choices": {
                    name: {"value": chosen[name].value, "reason": chosen[name].reason}
                    for name in names
                },
                "keys": {
                    feed: {"value": _plain(prepared, feed), "meaning": meaning[feed]}
                    for feed in feeding
                },
            }
        )
        return
    console.table(
        [(name, show_value(chosen[name].value, name), chosen[name].reason) for name in names],
        header=("", "choice", "because"),
    )
    console.table(
        [(feed, show_value(_plain(prepared, feed), feed), meaning[feed]) for feed in feeding],
        title="job keys that feed it",
        header=("key", "value", "meaning"),
    )


def _names(key: str, choices: list[str]) -> list[str]:
    """The choices a person means: by name, with spaces or dashes, or by a job key."""
    name = key.strip().lower().replace(" ", "_").replace("-", "_")
    for candidate in (name, f"{name}_bytes"):
        if candidate in choices:
            return [candidate]
    job_key = known_key(key.strip())
    fed = [choice for choice in choices if job_key and job_key in FEEDS.get(choice, ())]
    if fed:
        return fed
    keys = sorted({feed for feeds in FEEDS.values() for feed in feeds})
    raise UserError(
        Finding(
            slug="unknown-choice",
            what=f"the plan has no choice `{key}`{did_you_mean(key, [*choices, *keys])}",
            why=f"the choices are {', '.join(choices)}; a job key that feeds one will do too",
            fix="--why global_batch_size",
        )
    )


def _plain(prepared: Prepared, key: str) -> Any:
    """The value of a job key as plain data."""
    place: Any = prepared.job.model_dump(mode="json")
    for part in key.split("."):
        place = place[part]
    return place
