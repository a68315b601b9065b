"""Batches compared element by element, and one sample told from another."""

import numpy as np
import pytest

from phalanx.diagnose.content import Content, describe_parts, nearest_sample, read_content
from phalanx.diagnose.recording import Recording, batch_file
from tests.unit.diagnose.recordings import make_run

SIDES = "here", "there"


def content(ids=(4, 5, 6), **parts):
    made = Content()
    made.add(list(ids), {name: np.asarray(value) for name, value in parts.items()})
    return made


def describe(one, many):
    return list(describe_parts(one, many, SIDES))


def test_equal_content_has_nothing_to_describe():
    x = [[1.0, np.nan], [2.0, 3.0], [4.0, 5.0]]
    assert describe(content(x=x, name="cat"), content(x=x, name="cat")) == []


def test_elements_are_counted_and_one_is_shown():
    x = np.arange(12).reshape(3, 4)
    other = x.copy()
    other[1, 2], other[2, 0] = 70, 80
    assert describe(content(x=x), content(x=other)) == [
        "`x` in 2 of 12 elements (2 of 3 samples), such as sample 5 at [2]: 6 here, 70 there"
    ]


def test_parts_without_a_row_per_sample_are_described_too():
    one = content(scale=0.5, boxes=np.zeros((7, 4)), words="cat")
    many = content(scale=0.25, boxes=np.zeros((8, 4)), words="dog")
    assert describe(one, many) == [
        "`scale` in 1 of 1 elements, such as: 0.5 here, 0.25 there",
        "`boxes` has shape (7, 4) here and (8, 4) there",
        "`words` in 1 of 1 elements, such as: cat here, dog there",
    ]


def test_samples_are_compared_whatever_their_order_and_padding():
    one = content(x=[[1, 2], [3, 4], [5, 6]])
    assert describe(one, content(ids=(6, 5, 4), x=[[5, 6], [3, 4], [1, 2]])) == []
    assert describe(one, content(x=[[1, 2, 0], [3, 4, 0], [5, 6, 0]])) == []


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ("one token", (5, 5)),
        ("noise", (5, 5)),
        ("another", (5, 6)),
        ("another with noise", (5, 6)),
        ("unlike any", None),
    ],
)
def test_an_augmented_sample_is_told_from_another_one(found, expected):
    draw = np.random.default_rng(1)
    x = draw.normal(size=(3, 40)) if "token" not in found else draw.integers(0, 99, (3, 40))
    given = x.copy()
    noise = 0.1 * draw.normal(size=40)
    given[1] = {
        "one token": lambda: np.where(np.arange(40) == 7, 100, x[1]),
        "noise": lambda: x[1] + noise,
        "another": lambda: x[2],
        "another with noise": lambda: x[2] + noise,
        "unlike any": lambda: draw.normal(size=40),
    }[found]()
    answer = nearest_sample(content(x=given), content(x=x))
    assert answer == (None if expected is None else (*expected, "x"))


def test_a_label_that_many_share_tells_nothing():
    ids = range(10)
    assert nearest_sample(content(ids, y=[1] * 10), content(ids, y=[0] * 5 + [1] * 5)) is None


def test_content_that_was_too_large_to_keep_is_not_there(tmp_path):
    run = Recording(make_run(1).ranks, tmp_path)
    assert read_content(run, 0) is None
    (tmp_path / "batches").mkdir()
    np.savez(batch_file(tmp_path, 0, 0), np.array(["x"]), np.ones((3, 2)))
    assert read_content(run, 0, 0).rows["x"].keys() == {0, 1, 2}
    assert read_content(run, 0) is None, "another slot is missing"
