"""The policy as a file that other tools run: what is known and noise go in, actions come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from phalanx.recipe import Batch

FILE_INPUTS = ("state", "task", "images", "seen")
"""What an exported policy is given of a batch, where the batch has it; noise besides."""


class Acting(nn.Module):
    """The network as a function of tensors."""

    def __init__(self, network: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.network = network
        self.names = names

    def forward(self, *given: Tensor) -> Tensor:
        """The inputs by their names, noise last."""
        actions: Tensor = self.network(dict(zip(self.names, given[:-1], strict=True)), given[-1])
        return actions


class Exportable(nn.Module):
    """Stands in for the network in an evaluation: a file does the acting."""

    denoises = False

    def __init__(self, run: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self._run = run

    def forward(self, batch: Batch, noise: Tensor) -> Tensor:
        named = {name: batch[name] for name in FILE_INPUTS if name in batch}
        return self._run(**named, noise=noise)[0]
