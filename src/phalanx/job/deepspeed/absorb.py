"""Put DeepSpeed's file into a job that is being read: values become keys, contradictions Findings.

Afterwards `deepspeed.config` holds what is left for DeepSpeed: the job no longer needs the file,
and reading it again changes nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from phalanx.errors import Finding, UserError
from phalanx.job.deepspeed.file import read_deepspeed
from phalanx.job.deepspeed.sections import translate_sections
from phalanx.job.deepspeed.training import translate_training
from phalanx.job.deepspeed.translation import Said, Translation, Unsaid
from phalanx.job.source.origin import Origin, show
from phalanx.job.source.value_types import parse_interval

_BUILTIN = Path(__file__).parents[2] / "recipes"
# A null here means that the batch is stated in another key.
_STATED_ELSEWHERE = ("global_batch_size", "batch_per_gpu", "micro_batch_size")


class Draft(Protocol):
    """A job while it is put together (`job.load`)."""

    origins: dict[str, Origin]
    findings: list[Finding]

    def value(self, key: str) -> Any: ...
    def add(self, path: tuple[str, ...], value: Any, origin: Origin) -> None: ...
    def forget(self, path: tuple[str, ...]) -> None: ...


def absorb_deepspeed(draft: Draft, job_file: Path | None) -> list[Finding]:
    """Take over what the file of `deepspeed.config` says. Errors go into the draft; what is
    returned are warnings and notes."""
    source = draft.value("deepspeed.config")
    if not isinstance(source, (str, dict)):
        return []  # no file, or a value the schema refuses
    origin = draft.origins["deepspeed.config"]
    try:
        made = Translation(read_deepspeed(source, origin, job_file))
    except UserError as error:
        draft.findings += error.findings
        return []
    batch = ("global_batch_size", "batch_per_gpu")
    translate_training(made, has_batch=any(draft.value(key) is not None for key in batch))
    translate_sections(made)
    replaced = [note for said in made.said if (note := _take_over(draft, said)) is not None]
    if draft.value("strategy") in (None, "auto"):
        _put(draft, Said("strategy", "deepspeed", origin))
    _put(draft, Said("deepspeed.config", made.rest, origin))
    notes = [finding for finding in made.findings if finding.severity != "error"]
    draft.findings += [finding for finding in made.findings if finding.severity == "error"]
    return [
        *notes,
        *replaced,
        *(_note(draft, u, made) for u in made.unsaid if u.key not in draft.origins),
    ]


def _take_over(draft: Draft, said: Said) -> Finding | None:
    """Give a key the file's value, or say that the job has another; a note when the job is a
    built-in recipe's, which its user has not written."""
    stated = draft.value(said.key)
    is_open = said.key not in draft.origins or stated == "auto"
    if is_open or (stated is None and said.key in _STATED_ELSEWHERE):
        _put(draft, said)
    elif not _is_same(said.key, stated, said.value):
        origin = draft.origins[said.key]
        if origin.kind == "file" and _BUILTIN in Path(origin.name).absolute().parents:
            _put(draft, said)
            return _replacement(said, stated, origin)
        draft.findings.append(_contradiction(draft, said))
    return None


def _put(draft: Draft, said: Said) -> None:
    path = tuple(said.key.split("."))
    draft.forget(path)
    draft.add(path, said.value, said.origin)


def _is_same(key: str, stated: Any, said: Any) -> bool:
    if key != "schedule.warmup":
        return bool(stated == said)
    try:
        return bool(parse_interval(stated) == parse_interval(said))
    except ValueError:  # the schema will say so
        return True


def _contradiction(draft: Draft, said: Said) -> Finding:
    stated, place = draft.value(said.key), said.origin
    return Finding(
        slug="deepspeed-contradiction",
        what=f"`{said.key}` is {show(stated)} in the job and {show(said.value)} in DeepSpeed's "
        "file",
        why=f"{said.key} = {show(stated)} ({draft.origins[said.key]}), "
        f"{place.key} of the file ({place})",
        fix=f'"{place.key.rpartition(".")[2]}": "auto" in {place}, which leaves it to the job',
    )


def _replacement(said: Said, stated: Any, origin: Origin) -> Finding:
    return Finding(
        slug="deepspeed-instead",
        what=f"`{said.key}` is {show(said.value)} by DeepSpeed's file, instead of the recipe's "
        f"own {show(stated)}",
        why=f"{said.origin.key} ({said.origin}); {said.key} = {show(stated)} ({origin})",
        fix=f"nothing, or {said.key}={show(stated)} with "
        f'"{said.origin.key.rpartition(".")[2]}": "auto" in the file',
        severity="note",
    )


def _note(draft: Draft, unsaid: Unsaid, made: Translation) -> Finding:
    return Finding(
        slug="deepspeed-default",
        what=f"DeepSpeed's file has no `{unsaid.deepspeed_key}`: the job's own default is used, "
        f"DeepSpeed alone would take {show(unsaid.deepspeed_default)}",
        why=f"{unsaid.key} is not set; deepspeed.config = {made.file.place}",
        fix=f"{unsaid.key}={show(unsaid.deepspeed_default)} for DeepSpeed's default",
        severity="note",
    )
