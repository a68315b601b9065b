"""Optional interface: say what of the model becomes an ONNX, TorchScript or TensorRT file. Without
it, that is the forward that `evaluate` calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from phalanx.recipe.optional import OptionalInterface

if TYPE_CHECKING:
    from torch import Tensor, nn


class Exported(NamedTuple):
    """What of a model is exported, and under which names. The first dimension of every input and
    output is the batch."""

    module: nn.Module
    """Called with the inputs in their order; gives one tensor, or a tuple of them."""
    inputs: Callable[[Any], Mapping[str, Tensor]]
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


class ExportingGraphs(OptionalInterface):
    """A recipe that says what of its model a graph holds."""

    one_shape: ClassVar[Mapping[str, Any]] = {}
    """Options with which all test samples have one shape: taken for files that have one."""

    def exported(self, model: nn.Module) -> Exported | None:
        """Return what of the model becomes a graph. None: the forward that `evaluate` calls, under
        the names of its arguments."""
        return None

    def export_metadata(self) -> Mapping[str, Any]:
        """Return what is written into the file for its users: `classes`, `preprocessing`."""
        return {}
