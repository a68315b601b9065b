"""Every row of the table names its text, fills its words, and gives a fix that can be pasted."""

import re
import string
from typing import get_args

import pytest

from phalanx.diagnose.attempt_end import UNKNOWN
from phalanx.diagnose.causes import SUBJECTS
from phalanx.diagnose.causes.row import Grade
from phalanx.diagnose.death import find_death
from phalanx.diagnose.matching import all_causes
from phalanx.diagnose.scene import Scene
from phalanx.job.keys import ALIASES, job_keys
from tests.unit.diagnose.failure_texts import TEXTS, UNKNOWN_LOGS
from tests.unit.diagnose.run_folders import died, traceback

FACTS = {
    *("run", "logs", "log", "again", "script", "python", "ranks", "rank", "exit_code", "signal"),
    *("micro_batch", "half_micro_batch", "half_workers", "precision", "lr_tenth"),
    *("double_timeout", "last_error", "frame", "sample", "native", "oom_kills", "memory_full"),
    *(
        "memory_said",
        "crash_frame",
        "indices",
        "silent",
        "first_call",
        "second_call",
        "left_silently",
        "name",
    ),
}


def name_of(row):
    return f"{row.name}-{row.source[:12]}"


def placeholders(text):
    return {field for _, field, *_ in string.Formatter().parse(text) if field}


def named(path, text, code=1):
    death = find_death(Scene(died(path, {0: traceback(text)}, {0: code})), 0)
    assert death is not None
    return death


@pytest.mark.parametrize("row", [row for row in all_causes() if row.text], ids=name_of)
def test_a_row_finds_the_text_it_was_written_for(row, tmp_path):
    code = row.exit_codes[0] if row.exit_codes else 1
    death = named(tmp_path, row.text, code)
    assert death.cause == row.name
    assert death.evidence, "no line shows it"
    for text in (death.words, death.fix):
        assert text
        assert "{" not in text.replace("{'use_reentrant': False}", "")
        assert "\0" not in text


@pytest.mark.parametrize(("text", "code", "cause"), TEXTS, ids=[t[0][:40] for t in TEXTS])
def test_a_text_of_the_wild_is_named(text, code, cause, tmp_path):
    assert named(tmp_path, text, code).cause == cause


@pytest.mark.parametrize("log", UNKNOWN_LOGS, ids=range(len(UNKNOWN_LOGS)))
def test_a_log_with_nothing_known_in_it_is_unknown_with_its_last_lines(log, tmp_path):
    death = named(tmp_path, log)
    assert death.cause == UNKNOWN
    assert "exit code 1" in death.words
    shown = [line.text for line in death.evidence]
    last = [line for line in log.split("\n") if line][-5:]
    assert shown == (last or ["rank 0 ended with exit code 1; 0 kills for want of memory"])


@pytest.mark.parametrize("row", all_causes(), ids=name_of)
def test_a_row_is_whole(row):
    assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", row.name)
    assert row.grade in get_args(Grade)
    assert row.any_of or row.exit_codes or row.facts, "nothing can find it"
    assert bool(row.text) == bool(row.any_of) or row.name == "exception"
    assert set(row.facts) <= FACTS
    groups = {name for p in row.any_of for name in re.compile(p).groupindex}
    for text in (row.words, row.fix, row.script_fix):
        assert placeholders(text) <= FACTS | groups, text


@pytest.mark.parametrize("row", all_causes(), ids=name_of)
def test_a_fix_names_keys_that_a_job_has(row):
    pasted = re.findall(r"(?:\{again\}|or|and) ((?:[a-z_.]+=\S+ ?)+)", row.fix)
    for key in re.findall(r"([a-z_.]+)=", " ".join(pasted)):
        assert key in job_keys() or key in ALIASES, f"`{key}` is no key of a job"


def test_names_are_of_one_subject_and_one_grade():
    homes, grades = {}, {}
    for subject, rows in SUBJECTS.items():
        for row in rows:
            assert homes.setdefault(row.name, subject) == subject
            assert grades.setdefault(row.name, row.grade) == row.grade
    assert len(homes) > 60


def test_every_row_of_the_forty_has_a_source():
    sources = " ".join(row.source for row in all_causes())
    cited = {
        int(n)
        for found in re.findall(r"failure ([\d, and]+)", sources)
        for n in re.findall(r"\d+", found)
    }
    assert set(range(1, 41)) - cited == {16}  # slow.py: GPUs that cannot reach each other
