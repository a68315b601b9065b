"""Which values of the environment are secret, and which words may not stand in a command line
elsewhere, a script or a log: those that hold one, and those that are no plain text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL")


def secrets_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Each secret value with the name of its variable; short ones stand in words by chance."""
    return {
        value: name
        for name, value in environment.items()
        if _SECRET.search(name.upper()) and len(value) >= 8
    }


def unfit_words(
    words: Iterable[str], environment: Mapping[str, str]
) -> Iterator[tuple[str, str | None]]:
    """Each word that may not stand there, with the name of the variable whose value it holds; None
    where it has a line break, a control character or half of one."""
    secrets = secrets_of(environment)
    for word in words:
        if any(ord(c) < 32 or ord(c) == 127 or 0xD800 <= ord(c) < 0xE000 for c in word):
            yield word, None
        for value, name in secrets.items():
            if value in word:
                yield word, name
