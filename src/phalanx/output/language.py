"""What is printed, in the reader's language. Messages are written in English everywhere else, and
in events, files and JSON they stay so: only `console` asks for a translation, when it prints.

A catalogue (`languages/zh.json`) has an English template for every message of the source, `{0}` for
a value; a message is matched with the templates, its values are put into the translation, and
values that are messages themselves are translated too. What no template fits stays English.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources

from phalanx.errors import Finding, UserError

LANGUAGES = {"en": "English", "zh": "中文"}
VARIABLE = "PHALANX_LANG"

_HOLE = re.compile(r"\{(\d+)(~?)\}")
_CODE = re.compile(r"(`[^`]*`)")
_SENTENCE = re.compile(r"(?<=[.])\s+")
_WEAK = 12  # letters of a template below which it could fit any English text by chance
_PROSE = re.compile(r";|[a-z]+[ ,]+[a-z]{2,}|[(][^)]*$|^[^(]*[)]")
_ENGLISH = re.compile(r"(?:\b[a-z]+\b[ ,]+){3,}[a-z]+")
_JOINED = re.compile(r"; | [+] ")
_BRACKETED = re.compile(r"([^()]+) \(([^()]+)\)")
_SEPARATORS = (("; ", "；"), (" + ", " + "), (": ", "："), (" or ", " 或 "), (", ", "，"))
_DEPTH = 4  # messages inside messages


@dataclass(frozen=True)
class Template:
    """An English template and what it is in another language."""

    english: str
    translation: str

    @cached_property
    def literals(self) -> list[str]:
        """The texts between the holes, the first and the last included."""
        return [_plain(part) for part in _HOLE.split(self.english)[::3]]

    @cached_property
    def strength(self) -> int:
        """How many characters of a message it accounts for."""
        return sum(map(len, self.literals))

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        parts = _HOLE.split(self.english)
        made = re.escape(_plain(parts[0]))
        for mark, literal in zip(parts[2::3], parts[3::3], strict=True):
            made += ("([a-z]*)" if mark else "(.*?)") + re.escape(_plain(literal))
        return re.compile(made, re.DOTALL)

    def values(self, text: str) -> tuple[str, ...] | None:
        """What stands in the holes if this template is the text's."""
        found = self._pattern.fullmatch(text)
        return found.groups() if found else None

    def filled(self, values: Mapping[int, str]) -> str:
        """The translation with these values."""
        parts = _HOLE.split(self.translation)
        made = _plain(parts[0])
        for number, literal in zip(parts[1::3], parts[3::3], strict=True):
            made += values[int(number)] + _plain(literal)
        return made


def _plain(literal: str) -> str:
    return literal.replace("{{", "{").replace("}}", "}")


class Catalogue:
    """All templates of one language, found by how they begin."""

    def __init__(self, entries: Mapping[str, str]) -> None:
        self._exact: dict[str, str] = {}
        self._starting: dict[str, list[Template]] = {}
        self._open: list[Template] = []
        self._endings: list[Template] = []
        for english, translation in entries.items():
            template = Template(english, translation)
            if not _HOLE.search(english):
                self._exact[_plain(english)] = _plain(translation)
            if english[:1] in " ,;:(":
                self._endings.append(template)
            if len(template.literals) > 1 and template.literals[0]:
                self._starting.setdefault(template.literals[0][0], []).append(template)
            elif len(template.literals) > 1:
                self._open.append(template)
        for kind in (self._open, self._endings, *self._starting.values()):
            kind.sort(key=lambda template: -template.strength)

    def label(self, text: str) -> str:
        """A heading or a label: one word may be all there is."""
        return self._exact.get(text) or self.translate(text)

    def translate(self, text: str) -> str:
        """A message in this language, as far as it is known; a whole page stays as it is."""
        if "\n" in text.strip():
            return text
        indent = text[: len(text) - len(text.lstrip())]
        if indent and text.strip():
            found = self._exact.get(text) or self._whole(text, 0)
            return found if found is not None else indent + self.translate(text.lstrip())
        return self._text(text, 0)

    def _text(self, text: str, depth: int) -> str:
        if depth > _DEPTH or (" " not in text.strip() and not text.endswith(":")):
            return text
        if text in self._exact:
            return self._exact[text]
        told = _SENTENCE.split(text)
        if (text.endswith(".") or len(told) > 1) and not text.endswith(".."):
            parts = [self._text(part.removesuffix("."), depth + 1) for part in told]
            if parts != [part.removesuffix(".") for part in told]:
                return "。".join(parts) + ("。" if text.endswith(".") else "")
        whole = self._whole(text, depth)
        if whole is not None:
            return whole
        for separator, shown in _SEPARATORS:
            first, *rest = split_outside_code(text, separator)
            if rest:  # what follows may be one message, separators and all
                parts = [first, separator.join(rest)]
                made = [self._text(first, depth + 1), self._text(parts[1], depth)]
                # A text of somebody else's is not translated by halves.
                is_ours = separator in ("; ", " + ") or not any(map(_ENGLISH.search, made))
                if made != parts and is_ours:
                    return shown.join(made)
        bracketed = _BRACKETED.fullmatch(text)
        if bracketed is not None:
            before, inside = (self._text(part, depth + 1) for part in bracketed.groups())
            if (before, inside) != bracketed.groups():
                return f"{before}（{inside}）"
        return self._with_ending(text, depth)

    def _whole(self, text: str, depth: int) -> str | None:
        """The translation by one template that fits all of a text, the most specific one."""
        fitting = [t for t in self._starting.get(text[:1], []) if text.startswith(t.literals[0])]
        if not text.startswith(" "):  # its indent is no part of a value
            fitting += [t for t in self._open if max(t.literals, key=len) in text]
        half = None
        for template in sorted(fitting, key=lambda t: -t.strength):
            values = template.values(text)
            if values is None:
                continue
            if template.strength < _WEAK and any(map(_JOINED.search, values)):
                continue  # it would take all that follows for its value
            made = {n: self._text(value, depth + 1) for n, value in enumerate(values)}
            # One that begins with a value must not take a sentence for it.
            looked_at = made.values() if template.literals[0] else values
            is_english = any(map(_PROSE.search, looked_at))
            is_joined = not template.literals[0] and any("; " in value for value in values)
            if is_english and (is_joined or template.strength < _WEAK):
                continue
            if not any(map(_ENGLISH.search, made.values())):
                return template.filled(made)
            half = half or template.filled(made)
        return half

    def _with_ending(self, text: str, depth: int) -> str:
        """A text whose end is a message of its own: ` (did you mean ...)`."""
        for template in self._endings:
            start = text.find(template.literals[0])
            if start > 0 and template.strength >= _WEAK // 2:
                ending = template.values(text[start:])
                if ending is None:
                    continue
                made = {n: self._text(value, depth + 1) for n, value in enumerate(ending)}
                if not any(map(_PROSE.search, made.values())):
                    return self._text(text[:start], depth + 1) + template.filled(made)
        return text


def split_outside_code(text: str, separator: str) -> list[str]:
    """The parts of a text; what stands in backticks is not cut."""
    parts = [""]
    for piece in _CODE.split(text):
        if piece.startswith("`"):
            parts[-1] += piece
            continue
        first, *rest = piece.split(separator)
        parts[-1] += first
        parts += rest
    return parts


@cache
def _catalogue(language: str) -> Catalogue:
    place = resources.files("phalanx") / "languages" / f"{language}.json"
    return Catalogue(json.loads(place.read_text(encoding="utf-8")))


def current() -> str:
    """The language to print in: `--lang` or PHALANX_LANG, else the locale, else English."""
    for name in (VARIABLE, "LC_ALL", "LC_MESSAGES", "LANG"):
        value = os.environ.get(name, "")
        if value:
            language = re.split(r"[_.@-]", value.lower())[0]
            return language if language in LANGUAGES else "en"
    return "en"


def use(language: str) -> None:
    """Print in this language from here on, in processes that are started too."""
    if language not in LANGUAGES:
        raise UserError(
            Finding(
                slug="unknown-language",
                what=f"there are no messages in `{language}`",
                why=f"--lang {language}; there are {', '.join(LANGUAGES)}",
                fix="--lang zh, or --lang en",
            )
        )
    os.environ[VARIABLE] = language


def translate(text: str) -> str:
    """A message in the reader's language."""
    language = current()
    return text if language == "en" else _catalogue(language).translate(text)


def label(text: str) -> str:
    """A heading, a title or the name of a row in the reader's language."""
    language = current()
    return text if language == "en" else _catalogue(language).label(text)
