"""Words of a cause with what is known, and without what is not."""

import pytest

from phalanx.diagnose.words import fill_fix, fill_words


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("port {port} is taken", "port 29500 is taken"),
        ("too small: {tried} were asked for, {free} free", "too small"),
        ("a loader ({pid}) is gone", "a loader is gone"),
        ("it failed; {sample}; in step", "it failed; in step"),
        ("{nothing} is known", "... is known"),
    ],
)
def test_parts_that_need_what_is_not_known_are_left_out(text, said):
    assert fill_words(text, {"port": "29500"}) == said


def test_in_a_fix_what_is_not_known_stands_in_capitals():
    values = {"again": "phalanx train job.yaml"}
    assert fill_fix("{again} lr={lr_tenth}", values) == "phalanx train job.yaml lr=LR_TENTH"
