"""Optional interface: show what the model makes of test samples, as text, pictures and charts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from phalanx.recipe.optional import OptionalInterface

if TYPE_CHECKING:
    from torch import nn


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


class Showing(OptionalInterface):
    """A recipe that shows samples or draws charts after an evaluation."""

    def samples(self, model: nn.Module) -> Sequence[Sample | Media]:
        """Return what the model makes of a few test samples, as text or as pictures. Every rank
        calls it after an evaluation and runs the same forwards."""
        return ()

    def charts(self, sums: Mapping[str, Any]) -> Iterable[Media]:
        """Draw an evaluation that is the best so far or the last, from what `metrics` was given.
        Only the first rank calls it; an error here is reported and ends no run."""
        return ()
