"""The digits that ship inside scikit-learn, read without importing it."""

import numpy as np
from sklearn.datasets import load_digits

from phalanx.recipes.digits.data import _sklearn_rows


def test_the_file_holds_what_scikit_learn_gives():
    digits = load_digits()
    rows = _sklearn_rows()
    assert np.array_equal(rows[:, :-1], digits.data)
    assert np.array_equal(rows[:, -1], digits.target)
