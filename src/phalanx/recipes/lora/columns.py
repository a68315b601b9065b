"""Which columns of a row hold what, and a row as a sample: a conversation, a pair, or a text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from phalanx.recipe import Finding, UserError, did_you_mean
from phalanx.recipes.lora.options import LoraOptions

MESSAGES = ("messages", "conversations", "conversation")
PROMPTS = ("prompt", "instruction", "question", "query")
RESPONSES = ("response", "completion", "output", "answer", "target")
TEXTS = ("text",)
MEDIA = ("image", "audio", "images", "audios", "media")
_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}

Message = dict[str, Any]
Kind = Literal["messages", "pair", "text"]


class Columns(NamedTuple):
    """The names of the columns that are read."""

    kind: Kind
    first: str
    """The conversation, the prompt or the text."""
    response: str | None = None
    extra: str | None = None
    """`input` beside an instruction: more of the prompt, which may be empty."""
    media: str | None = None


class Sample(NamedTuple):
    """One row to learn: either messages, or a prompt (which may be None) and what follows it."""

    messages: list[Message] | None
    prompt: str | None = None
    response: str = ""
    media: Any = None


class MalformedError(Exception):
    """A row that is no sample: the kind of fault, and what is so in this row."""

    def __init__(self, wrong: str, detail: str = "") -> None:
        super().__init__(wrong)
        self.wrong, self.detail = wrong, detail


def find_columns(names: Iterable[str], options: LoraOptions, where: str) -> Columns:
    """Those that the options name, else those found by their names; raises all Findings."""
    there = list(names)
    asked = {
        key: getattr(options, key)
        for key in ("messages", "prompt", "response", "text", "media")
        if getattr(options, key) is not None
    }
    findings = [_absent(k, name, there, where) for k, name in asked.items() if name not in there]
    if findings:
        raise UserError(findings)
    media = options.media or _first(MEDIA, there)
    if "messages" in asked:
        return Columns("messages", asked["messages"], media=media)
    if "text" in asked:
        return Columns("text", asked["text"], media=media)
    prompt = options.prompt or _first(PROMPTS, there)
    extra = "input" if prompt == "instruction" and "input" in there else None
    if prompt is None and "input" in there:
        prompt = "input"
    response = options.response or _first(RESPONSES, [n for n in there if n != prompt])
    if asked.keys().isdisjoint(("prompt", "response")) and (messages := _first(MESSAGES, there)):
        return Columns("messages", messages, media=media)
    if prompt and response:
        return Columns("pair", prompt, response, extra, media)
    if not asked.keys() & {"prompt", "response"}:
        text = _first(TEXTS, there)
        if text:
            return Columns("text", text, media=media)
        if response and media:  # a sound and what is said in it: nothing is asked
            return Columns("pair", response, response, None, media)
    raise UserError(_not_found(prompt, response, there, where))


def as_sample(row: dict[str, Any], columns: Columns, system: str | None) -> Sample:
    """A row as a sample; raises `MalformedError`."""
    media = row.get(columns.media) if columns.media else None
    if columns.kind == "messages":
        return Sample(_messages(row, columns.first, system), media=media)
    if columns.kind == "text":
        return Sample(None, None, _text(row, columns.first), media)
    assert columns.response is not None
    prompt, response = row.get(columns.first), row.get(columns.response)
    if isinstance(prompt, list):  # both as messages, as TRL has them
        asked = _messages(row, columns.first, system, needs_answer=False)
        if isinstance(response, list):
            answer = _messages(row, columns.response, None)
        else:
            answer = [{"role": "assistant", "content": _text(row, columns.response)}]
        return Sample([*asked, *answer], media=media)
    if columns.first == columns.response:
        return Sample(None, "", _text(row, columns.response), media)
    text, response = _text(row, columns.first), _text(row, columns.response)
    more = row.get(columns.extra) if columns.extra else None
    if isinstance(more, str) and more.strip():
        text = f"{text}\n\n{more}"
    return Sample(None, text, response, media)


def as_messages(sample: Sample, system: str | None) -> list[Message]:
    """The conversation of a sample; that of a pair is a question and its answer."""
    if sample.messages is not None:
        return sample.messages
    return [
        *([{"role": "system", "content": system}] if system else []),
        {"role": "user", "content": sample.prompt},
        {"role": "assistant", "content": sample.response},
    ]


def _text(row: dict[str, Any], name: str) -> str:
    if name not in row or row[name] is None:
        raise MalformedError(f"have no `{name}`", f"there are {', '.join(row) or 'no columns'}")
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise MalformedError(f"have a `{name}` that is not text", f"a {type(value).__name__}")
    if not str(value).strip():
        raise MalformedError(f"have an empty `{name}`")
    return str(value)


def _messages(
    row: dict[str, Any], name: str, system: str | None, *, needs_answer: bool = True
) -> list[Message]:
    if name not in row or row[name] is None:
        raise MalformedError(f"have no `{name}`", f"there are {', '.join(row) or 'no columns'}")
    given = row[name]
    if not isinstance(given, list):
        raise MalformedError(f"have a `{name}` that is no list", f"a {type(given).__name__}")
    messages = [_message(entry, name) for entry in given]
    if not messages:
        raise MalformedError(f"have an empty `{name}`")
    if needs_answer and not any(m["role"] == "assistant" for m in messages):
        roles = ", ".join(dict.fromkeys(str(m["role"]) for m in messages))
        raise MalformedError(f"have no answer of an assistant in `{name}`", f"roles: {roles}")
    if system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    return messages


def _message(entry: Any, name: str) -> Message:
    if not isinstance(entry, dict):
        raise MalformedError(
            f"have a message in `{name}` that is no object", f"a {type(entry).__name__}"
        )
    role, content = entry.get("role", entry.get("from")), entry.get("content", entry.get("value"))
    if not isinstance(role, str):
        raise MalformedError(
            f"have a message in `{name}` without a role", f"has {', '.join(entry)}"
        )
    role = _ROLES.get(role, role)
    if isinstance(content, list):  # parts, of which some may be images
        texts = [part.get("text") or "" for part in content if isinstance(part, dict)]
        content = "".join(texts)
    is_call = content is None and entry.get("tool_calls")
    if not is_call and not isinstance(content, str):
        raise MalformedError(f"have a message in `{name}` without content", f"role {role}")
    if role == "assistant" and not is_call and not str(content).strip():
        raise MalformedError(f"have an empty answer in `{name}`")
    kept = {key: value for key, value in entry.items() if value is not None}
    kept = {key: value for key, value in kept.items() if key not in ("from", "value")}
    return {**kept, "role": role, "content": content}


def _first(wanted: tuple[str, ...], there: list[str]) -> str | None:
    by_lower = {name.lower(): name for name in reversed(there)}
    return next((by_lower[name] for name in wanted if name in by_lower), None)


def _absent(key: str, name: str, there: list[str], where: str) -> Finding:
    return Finding(
        slug="data-column",
        what=f"there is no column `{name}`{did_you_mean(name, there)}",
        why=f"options.{key} = {name}; the columns of {where} are {_listed(there)}",
        fix=f"phalanx train lora {key}={there[0] if there else 'COLUMN'}",
    )


def _not_found(prompt: str | None, response: str | None, there: list[str], where: str) -> Finding:
    found = f"only `{prompt or response}`" if prompt or response else "none"
    fix = "prompt=COLUMN response=COLUMN, or messages=COLUMN, or text=COLUMN"
    if prompt and not response:
        fix = f"prompt={prompt} response=COLUMN"
    if response and not prompt:
        fix = f"prompt=COLUMN response={response}"
    return Finding(
        slug="data-column",
        what=f"no columns to learn from are found by their names: {found}",
        why=f"the columns of {where} are {_listed(there)}; looked for {MESSAGES[0]}, or "
        f"{'|'.join(PROMPTS)} with {'|'.join(RESPONSES)}, or {TEXTS[0]}",
        fix=f"phalanx train lora {fix}",
    )


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"
