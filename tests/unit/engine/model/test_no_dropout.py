"""Dropout that is disabled leaves values and generators alone, and comes back."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from phalanx.engine.model.no_dropout import DISABLED, clear_rates, dropout_disabled

X = torch.ones(4, 8, 16)


@pytest.mark.parametrize(
    ("run", "name"),
    [
        (lambda: nn.Dropout(0.5)(X), "F.dropout"),
        (lambda: F.dropout(X, 0.5), "F.dropout"),
        (lambda: F.dropout(X.clone(), 0.5, inplace=True), "F.dropout"),
        (lambda: nn.Dropout2d(0.5)(X), "F.feature_dropout"),
        (lambda: nn.AlphaDropout(0.5)(X), "F.alpha_dropout"),
        (
            lambda: F.scaled_dot_product_attention(X, X, X, dropout_p=0.5),
            "F.scaled_dot_product_attention",
        ),
        (
            lambda: F.scaled_dot_product_attention(X, X, X, None, 0.5),
            "F.scaled_dot_product_attention",
        ),
        (
            lambda: (
                nn.MultiheadAttention(16, 2, dropout=0.5)(X, X, X, need_weights=False)[0] * 0 + X
            ),
            "F.scaled_dot_product_attention",
        ),
    ],
    ids=["module", "function", "inplace", "2d", "alpha", "attention", "by-position", "multihead"],
)
def test_nothing_is_dropped_or_drawn(run, name):
    DISABLED.clear()
    torch.manual_seed(1)
    with dropout_disabled():
        first = run()
        assert torch.allclose(first, X)
    assert name in DISABLED
    assert not torch.equal(F.dropout(X, 0.5), X), "it is back afterwards"


def test_a_layer_that_does_not_train_has_nothing_to_disable():
    DISABLED.clear()
    with dropout_disabled():
        nn.Dropout(0.5).eval()(X)
    assert not DISABLED


def test_rates_that_modules_hold_are_cleared():
    class Path(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop_prob, self.momentum, self.is_dropped = 0.3, 0.1, True

    model = nn.Sequential(nn.Dropout(0.2), Path(), nn.LSTM(4, 4, num_layers=2, dropout=0.5))
    assert clear_rates(model) == ["0.p", "1.drop_prob", "2.dropout"]
    assert (model[0].p, model[1].drop_prob, model[2].dropout) == (0.0, 0.0, 0.0)
    assert (model[1].momentum, model[1].is_dropped) == (0.1, True)
    assert clear_rates(model) == []
