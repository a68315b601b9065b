"""One rank, the whole model, no process group."""

from phalanx.engine.strategies.base import Strategy


class Single(Strategy):
    """The base strategy as it is."""
