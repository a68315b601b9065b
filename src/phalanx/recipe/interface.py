"""What a user writes to bring a model of their own: a `Recipe`. Never a loop.

The engine calls the methods below; everything about devices, ranks, precision, order, randomness,
checkpoints and logging is the engine's. What only some recipes do is an interface of its own, which
a recipe inherits beside `Recipe`: see `phalanx.recipe.first_version.INTERFACES`. This module does
not import torch, so that options can be read and judged without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict

from phalanx.errors import Finding
from phalanx.recipe.first_version import FirstVersion

if TYPE_CHECKING:
    from torch import Tensor, nn

Split = Literal["train", "test"]
Batch = Any
"""What the data returned for a micro-batch: tensors in any nesting of dict, list and tuple."""


class Options(BaseModel):
    """Base of a recipe's options: unknown keys are refused, the docstring under a field is help."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Term(NamedTuple):
    """One named term of a loss: a sum over the micro-batch, and what the sum is divided by."""

    sum: Tensor
    weight: float | Tensor


class Rows(NamedTuple):
    """What `evaluate` finds in a micro-batch where a sum would not do, such as every detection: a
    table with any number of rows, equally wide in all of them. The rows of all micro-batches are
    put below each other in the order of the samples, on any number of ranks."""

    table: Tensor


class Epoch(NamedTuple):
    """Which pass over the data a micro-batch belongs to."""

    number: int
    """Counted from 0."""
    total: int
    """Passes that the whole run makes."""


class Data(Protocol):
    """An indexable data set.

    The engine prefers `__getitems__(ids, keys)`, which returns a whole micro-batch; without it,
    `__getitem__(index, key)` or `__getitem__(index)` gives one sample and torch's default collate
    makes the batch. `ids` and `keys` are int64 numpy arrays (see `phalanx.recipe.keys`). Data that
    changes in the course of a run takes a third argument, `__getitems__(ids, keys, epoch)`: an
    `Epoch`.

    With `loader.cache: ram` what a `load(index)` of it returns is kept in memory: it reads and
    decodes without randomness, and the methods above call it. With `disk` it is kept for later runs
    too, under what `origin(index)` returns: a text that is another one when the sample is, such as
    path, size and time of its file with the options that `load` heeds.
    """

    def __len__(self) -> int: ...


class Recipe(FirstVersion):
    """A model, its data and its loss.

    A recipe writes `model`, `data` and `loss`, `evaluate` and `metrics` where it has a test split,
    and `weight` where the loss is not divided by the number of samples. `groups`, `blocks`,
    `example` and `check` are hooks with defaults.
    """

    Options: ClassVar[type[Options]] = Options
    """The recipe's options: a pydantic model."""
    metric: ClassVar[str] = "loss"
    """The metric that decides which checkpoint is best."""
    metric_mode: ClassVar[Literal["max", "min"]] = "min"
    """Whether a larger or a smaller metric is better."""
    loss_gain: ClassVar[float] = 1.0
    """What the gradients of the loss are multiplied by, for rates and clipping that were found with
    a loss which is a sum over so many samples. What is shown and compared is the loss without."""
    least_weight: ClassVar[float] = 0.0
    """What the weight of a whole global batch counts at least, where it depends on predictions."""
    spec: str = ""
    """What it was loaded as: a built-in name, or `file.py:Class`."""
    splits: Sequence[Split] = ("train", "test")
    """The splits that are used in this process: `evaluate` and `export` ask for the test split
    alone, and `check` need not look for the other."""

    def __init__(self, options: Any) -> None:
        self.options = options

    def model(self) -> nn.Module:
        """Build the model with fresh weights, on the default device."""
        raise self._not_written("model")

    def data(self, split: Split) -> Data:
        """Open the data of a split: `train`, or `test` for evaluation."""
        raise self._not_written("data")

    def weight(self, batch: Batch) -> float | Mapping[str, float] | None:
        """What the loss of this micro-batch is divided by, before any forward: samples, tokens.

        One number for every term, or one per named term. None says that it depends on the
        predictions; then `loss` returns a single term, or terms that share one weight, and the
        engine divides after the reduction.
        """
        return float(count_samples(batch))

    def loss(self, model: nn.Module, batch: Batch, keys: Tensor) -> Mapping[str, Term]:
        """Named terms, each a sum over the micro-batch and its weight. The loss is the sum of
        term sums divided by term weights over the whole global batch."""
        raise self._not_written("loss")

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor | float | Rows]:
        """Sums over the micro-batch that `metrics` turns into figures; `Rows` are not added up."""
        raise self._not_written("evaluate")

    def metrics(self, sums: Mapping[str, Any]) -> Mapping[str, float]:
        """Figures from the sums over the whole test split; where `evaluate` gave `Rows` it is the
        table of all of them, on the CPU. Every rank calls it."""
        raise self._not_written("metrics")

    def groups(self, model: nn.Module) -> list[dict[str, Any]] | None:
        """Optimizer groups as torch takes them, plus `lr_scale`; None: one group of everything."""
        return None

    def blocks(self, model: nn.Module) -> Iterable[nn.Module]:
        """The repeated parts of the model: what to shard, checkpoint and compile."""
        return ()

    def example(self) -> Batch | None:
        """A micro-batch for tracing and export; None: the first samples of the train split."""
        return None

    def check(self) -> list[Finding]:
        """Problems to report before anything starts, such as a data folder that is not there."""
        return []

    @classmethod
    def _not_written(cls, method: str) -> NotImplementedError:
        return NotImplementedError(f"{cls.__name__}.{method} is not written")


def count_samples(batch: Batch) -> int:
    """The first dimension of the first tensor found in a batch."""
    for leaf in leaves(batch):
        shape = getattr(leaf, "shape", None)
        if shape:
            return int(shape[0])
    raise TypeError("no tensor with a first dimension in this batch: define Recipe.weight")


def leaves(tree: Any) -> Iterable[Any]:
    """Every leaf of nested dicts, lists and tuples."""
    if isinstance(tree, Mapping):
        for value in tree.values():
            yield from leaves(value)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from leaves(value)
    else:
        yield tree
