"""Roll-outs in several processes: results in order, one batch of answers for all that wait."""

import os

import pytest

from phalanx.errors import Finding, UserError
from phalanx.recipe import roll_out

BROKEN, REFUSED, DEAD = "broken", "refused", "dead"


def count_up(episode):
    """Asks `length` times, and keeps what was answered."""
    start, length = episode
    heard = []
    for step in range(length):
        heard.append((yield start + step))
    return heard


def square(number):
    return number * number, os.getpid()


def fail(kind):
    if kind == BROKEN:
        raise ValueError("the arm is broken")
    if kind == REFUSED:
        raise UserError(Finding(slug="refused", what="no", why="so", fix="another"))
    if kind == DEAD:
        os._exit(7)
    return kind


def test_every_episode_gets_its_own_answers_in_order():
    asked = []

    def answer(seen):
        asked.append(len(seen))
        return [10 * value for value in seen]

    told = []
    episodes = [(100 * index, 1 + index % 3) for index in range(9)]
    results = roll_out(count_up, episodes, answer=answer, workers=2, together=3, done=told.append)
    assert results == [[10 * (start + step) for step in range(n)] for start, n in episodes]
    assert max(asked) >= 3  # of one process at least, all at once
    assert told[-1] == 9
    assert told == sorted(told)


def test_plain_functions_need_nobody_who_answers():
    results = roll_out(square, range(5), workers=2)
    assert [value for value, _ in results] == [0, 1, 4, 9, 16]
    assert os.getpid() not in {pid for _, pid in results}
    assert roll_out(square, [], workers=2) == []


@pytest.mark.parametrize(
    ("kind", "error", "said"),
    [
        (BROKEN, RuntimeError, "the arm is broken"),
        (REFUSED, UserError, "refused"),
        (DEAD, UserError, "exit code 7"),
    ],
)
def test_what_goes_wrong_in_a_process_is_raised_here(kind, error, said):
    with pytest.raises(error, match=said):
        roll_out(fail, ["fine", kind], workers=1)
