"""Every message of the source has its translation, and nothing is translated that nobody says."""

import json
import re
import subprocess
import sys

import pytest

from phalanx.output.language import LANGUAGES
from tests.contract.source import PACKAGE, ROOT

HOLE = re.compile(r"\{(\d+)(~?)\}")
CODE = re.compile(r"`[^`]*`")


def catalogue(language):
    return json.loads((PACKAGE / "languages" / f"{language}.json").read_text(encoding="utf-8"))


def other_languages():
    return [language for language in LANGUAGES if language != "en"]


def test_no_message_lacks_its_translation_and_none_is_left_over():
    done = subprocess.run(
        [sys.executable, "scripts/find_messages.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, (
        f"{done.stdout}{done.stderr}\nrun `python scripts/find_messages.py --write` and fill in "
        "src/phalanx/languages"
    )


@pytest.mark.parametrize("language", other_languages())
def test_a_translation_has_the_values_of_its_message(language):
    wrong = []
    for english, translation in catalogue(language).items():
        needed = {number for number, mark in HOLE.findall(english) if not mark}
        known = {number for number, _ in HOLE.findall(english)}
        used = {number for number, _ in HOLE.findall(translation)}
        if not needed <= used <= known:
            wrong.append(f"{english} -> {translation}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("language", other_languages())
def test_code_in_a_message_stays_as_it_is(language):
    wrong = [
        f"{english} -> {translation}"
        for english, translation in catalogue(language).items()
        if sorted(CODE.findall(english)) != sorted(CODE.findall(translation))
    ]
    assert not wrong, "\n".join(wrong)
