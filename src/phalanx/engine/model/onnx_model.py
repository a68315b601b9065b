"""An ONNX file that is run by onnxruntime, called with tensors."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phalanx.errors import Finding, UserError

_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def require_onnx() -> None:
    """Raises a Finding that names what is not installed."""
    absent = [name for name in _PACKAGES if find_spec(name) is None]
    if absent:
        raise UserError(
            Finding(
                slug="missing-extra",
                what=f"ONNX files need {', '.join(absent)}, not installed",
                why="they come with the extra `export`",
                fix="pip install 'phalanx[export]'",
            )
        )


class OnnxModel:
    """A session of onnxruntime on the CPU; called with tensors by position or by name."""

    def __init__(self, path: Path, *, threads: int | None = None) -> None:
        require_onnx()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors; what it could not fold is nobody's business
        if threads is not None:
            options.intra_op_num_threads = threads
        try:
            self._session: Any = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # each of onnxruntime's errors is a class of its own
            raise UserError(
                Finding(
                    slug="onnx-unreadable",
                    what=f"`{path}` cannot be run",
                    why=f"onnxruntime {onnxruntime.__version__}: "
                    f"{' '.join(str(error).split())[:600]}",
                    fix="export it again: phalanx export RUN --to onnx",
                )
            ) from error
        self._path = path
        self.inputs: dict[str, list[int | str | None]] = {
            given.name: list(given.shape) for given in self._session.get_inputs()
        }
        """Each with its shape; a name stands for a dynamic axis."""
        self.outputs: list[str] = [made.name for made in self._session.get_outputs()]
        firsts = {shape[0] for shape in self.inputs.values() if shape}
        self.batch = next((size for size in firsts if isinstance(size, int)), None)
        """The only batch size that it takes; None: any."""

    def __call__(self, *given: Tensor, **named: Tensor) -> tuple[Tensor, ...]:
        """Any number of samples: a file for a fixed batch runs several times, its last batch filled
        up with samples that are thrown away again."""
        feed = {**dict(zip(self.inputs, given, strict=False)), **named}
        self._check(feed)
        samples = len(next(iter(feed.values())))
        if self.batch is None or samples == self.batch:
            return self._run(feed)
        parts = []
        for first in range(0, samples, self.batch):
            part = {name: t[first : first + self.batch] for name, t in feed.items()}
            parts.append(self._run({name: self._filled(t) for name, t in part.items()}))
        return tuple(torch.cat(column)[:samples] for column in zip(*parts, strict=True))

    def _filled(self, tensor: Tensor) -> Tensor:
        assert self.batch is not None
        missing = self.batch - len(tensor)
        return torch.cat([tensor, tensor[-1:].expand(missing, *tensor.shape[1:])])

    def _run(self, feed: dict[str, Tensor]) -> tuple[Tensor, ...]:
        arrays = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in feed.items()}
        return tuple(torch.from_numpy(array) for array in self._session.run(None, arrays))

    def _check(self, feed: dict[str, Tensor]) -> None:
        wrong = [f"no `{name}`" for name in self.inputs if name not in feed]
        wrong += [f"`{name}` is unknown to the file" for name in feed if name not in self.inputs]
        for name in feed.keys() & self.inputs.keys():
            here, there = list(feed[name].shape), self.inputs[name]
            pairs = list(zip(here[1:], there[1:], strict=False))
            if len(here) != len(there) or any(isinstance(b, int) and a != b for a, b in pairs):
                wrong.append(f"`{name}` is {here} here, {there} in the file")
        if wrong:
            raise UserError(
                Finding(
                    slug="onnx-inputs",
                    what=f"`{self._path}` does not take what the recipe gives it",
                    why="; ".join(wrong),
                    fix="evaluate it with the recipe and options that it was exported with, or "
                    "export it with --dynamic",
                )
            )
