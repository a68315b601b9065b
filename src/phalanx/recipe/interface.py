"""What a user writes to bring a model of their own: a `Recipe`. Never a loop.

The engine calls the methods below; everything about devices, ranks, precision, order, randomness,
checkpoints and logging is the engine's. This module does not import torch, so that options can be
read and judged without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict

from phalanx.errors import Finding

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


class Stored(NamedTuple):
    """Where a tensor lies on disk: a safetensors file, and its name in there."""

    file: Path
    name: str


class Sample(NamedTuple):
    """What a model made of one test sample: shown and logged after an evaluation."""

    given: str
    made: str
    wanted: str


class Media(NamedTuple):
    """A picture or a film made after an evaluation: kept under `media/` of the run and shown."""

    name: str
    suffix: Literal[".png", ".jpg", ".mp4"]
    content: bytes
    caption: str = ""


class Exported(NamedTuple):
    """What of a model is exported, and under which names. The first dimension of every input and
    output is the batch."""

    module: nn.Module
    """Called with the inputs in their order; gives one tensor, or a tuple of them."""
    inputs: Callable[[Batch], Mapping[str, Tensor]]
    """The named inputs that a micro-batch of the data holds."""
    outputs: Sequence[str]
    """Names of what the module gives."""
    dynamic: Mapping[str, Mapping[int, str]] = {}
    """Axes beside the batch that may be of any length with `--dynamic`: input, axis, its name;
    `32*height` is a multiple of 32."""
    decode: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] | None = None
    """What is read from the outputs (classes, boxes): compared like them."""
    match: Callable[[Mapping[str, Tensor], Mapping[str, Tensor], float], tuple[int, int]] | None = (
        None
    )
    """Of things that are read from the outputs and not in a fixed order, such as detections: how
    many both have together, and how many of them the other side has not. Given the outputs of
    PyTorch and of the file for one batch, and what a number may differ by."""
    stand_in: Callable[[Callable[..., tuple[Tensor, ...]]], nn.Module] | None = None
    """The model that `evaluate` is given when an exported file is evaluated, made of a function
    that runs the file on named inputs. None: it is called like `module`."""


class BenchmarkSettings(NamedTuple):
    """What was asked of a closed-loop benchmark; None: the benchmark's own."""

    tasks: int | None
    """So many of its tasks, the first ones."""
    episodes: int | None
    """Roll-outs of each task."""
    max_steps: int | None
    """Steps after which a roll-out ends."""
    horizon: int | None
    """Actions taken of a prediction before the model is asked again."""
    video: bool
    """Whether films are wanted."""
    seed: int
    """Of all that is random in the roll-outs."""
    workers: int
    """Processes that may run roll-outs."""


class TaskResult(NamedTuple):
    """How a model did in one task."""

    task: str
    successes: int
    episodes: int
    figures: Mapping[str, float] = {}
    """What else was measured, such as a driving score."""


class Benchmarked(NamedTuple):
    """How a model did in a benchmark."""

    tasks: Sequence[TaskResult]
    media: Sequence[Media] = ()
    baselines: Mapping[str, Sequence[TaskResult]] = {}
    """How others did in the same tasks, such as an expert: shown below the model in each, and no
    part of its figures."""


class Collected(NamedTuple):
    """What `phalanx recipes collect` has made."""

    path: Path
    """The folder or file that `data=` of the recipe takes."""
    said: Sequence[str] = ()
    """Lines about it: how many episodes, how many of them good."""


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


class Recipe:
    """A model, its data and its loss."""

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
    export_forms: ClassVar[Mapping[str, str]] = {}
    """What `phalanx export --to` offers for this recipe: each name with its meaning."""
    one_shape: ClassVar[Mapping[str, Any]] = {}
    """Options with which all test samples have one shape: taken for files that have one."""
    spec: str = ""
    """What it was loaded as: a built-in name, or `file.py:Class`."""
    splits: Sequence[Split] = ("train", "test")
    """The splits that are used in this process: `evaluate` and `export` ask for the test split
    alone, and `check` need not look for the other."""
    benchmarks: ClassVar[Mapping[str, str]] = {}
    """What `phalanx evaluate --benchmark` offers for this recipe: each name with its meaning."""
    default_benchmark: ClassVar[str | None] = None
    """The one that `phalanx evaluate` runs after the test split where none is named."""
    Collecting: ClassVar[type[BaseModel] | None] = None
    """What `phalanx recipes collect` may be told: `Options` of its own. None: it collects nothing.
    """

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

    def charts(self, sums: Mapping[str, Any]) -> Iterable[Media]:
        """Pictures of an evaluation that is the best so far or the last, from what `metrics` was
        given. Only the first rank calls it; what fails here is said and ends no run."""
        return ()

    def weights(self) -> Mapping[str, Stored]:
        """Where pretrained weights are read from, by the names that parameters and buffers have in
        the model. What is not named keeps the values that `model` gave it. Every rank asks, and
        reads only its own part. Frozen parameters among them are not saved again in checkpoints."""
        return {}

    def portable_options(self) -> Mapping[str, Any]:
        """Options beside those that were given with which `model` builds the same model where data
        and other files are not at hand. Checkpoints and exported files carry them."""
        return {}

    def weights_file(self, path: Path) -> Path | None:
        """A file of weights that is no plain one but another tool's own, as a safetensors file with
        the names of this model; None: it is none that the recipe knows. Nothing in it is run."""
        return None

    def check_weights(self) -> list[Finding]:
        """What stands between this recipe and its pretrained weights: asked before training, not
        before planning, which needs none."""
        return []

    def export(self, tensors: Mapping[str, Tensor], folder: Path, form: str) -> None:
        """Write what other tools read into a folder. `tensors` are those of a checkpoint, read when
        they are looked up. `form` is `checkpoint` (beside each checkpoint's own files, while
        training goes on: leave the model and global random numbers alone), `final` (at the end of
        training), or one of `export_forms`."""

    def exported(self, model: nn.Module) -> Exported | None:
        """What of the model becomes an ONNX, TorchScript or TensorRT file. None: the forward that
        `evaluate` calls, under the names of its arguments."""
        return None

    def export_metadata(self) -> Mapping[str, Any]:
        """What is written into such files for who runs them: `classes`, `preprocessing`."""
        return {}

    def benchmark(self, model: nn.Module, name: str, settings: BenchmarkSettings) -> Benchmarked:
        """Run the model in the loop, in one of `benchmarks`. It has its weights and is on its
        device; no data is opened. Raises UserError where something is missing for it."""
        raise self._not_written("benchmark")

    @classmethod
    def collect(cls, settings: Any, out: Path | None) -> Collected:
        """Make data for this recipe as `settings`, a `Collecting`, asks: into a new folder `out`,
        or where the recipe looks for it by itself. Raises UserError where something is missing."""
        raise cls._not_written("collect")

    def samples(self, model: nn.Module) -> Sequence[Sample | Media]:
        """What the model makes of a few test samples, after an evaluation: as text, or as pictures.
        Every rank calls it and runs the same forwards."""
        return []

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
