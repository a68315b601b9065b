"""An exported model beside PyTorch's: how far apart their outputs are, and how long each takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from phalanx.engine.model.exported_forward import Run
from phalanx.errors import Finding, UserError
from phalanx.exporter.samples import Inputs
from phalanx.recipe.graphs import Exported
from phalanx.recipe.questions import Difference, ExportAnswer, ExportQuestion

_TOLERANCE = {"fp32": 1e-4, "fp16": 1e-2, "int8": 0.1}
"""Of the largest value of an output, or of 1 where that is less."""
_TENSORRT_TOLERANCE = 1e-3  # fp32 kernels that add in another order, over many layers
MATCHED = "matched one to one"
_TIMED_S, _MOST_RUNS, _LEAST_RUNS = 0.5, 200, 5


def tolerance_of(request: ExportQuestion, *, on_tensorrt: bool = False) -> float:
    tolerance = _TOLERANCE[request.precision]
    return max(tolerance, _TENSORRT_TOLERANCE) if on_tensorrt else tolerance


class Comparison:
    """Collects what PyTorch gives first; what an exported model gives is held against it."""

    def __init__(self, exported: Exported, batches: Iterable[Inputs], run: Run) -> None:
        self._exported = exported
        self.batches: list[Inputs] = []
        self._wanted: list[dict[str, Tensor]] = []
        for inputs in batches:
            self.batches.append(inputs)
            self._wanted.append(self._named(run(*inputs.values())))
        self.torch_ms = time_ms(run, self.batches[0])

    @property
    def samples(self) -> int:
        return sum(len(next(iter(inputs.values()))) for inputs in self.batches)

    def _named(self, outputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
        found = {
            name: tensor.detach().cpu().clone()
            for name, tensor in zip(self._exported.outputs, outputs, strict=True)
        }
        if self._exported.decode is not None:
            found |= {name: t.cpu() for name, t in self._exported.decode(dict(found)).items()}
        return found

    def differences(self, run: Run, tolerance: float, *, is_exact: bool) -> list[Difference]:
        """Of each output over all batches; `is_exact`: whole numbers may not differ at all."""
        made = [self._named(run(**inputs)) for inputs in self.batches]
        found = [
            _difference(
                name,
                [wanted[name] for wanted in self._wanted],
                [found[name] for found in made],
                tolerance,
                is_exact=is_exact,
            )
            for name in self._wanted[0]
        ]
        return [*found, *self._matched(made, tolerance, is_exact=is_exact)]

    def _matched(
        self, made: list[dict[str, Tensor]], tolerance: float, *, is_exact: bool
    ) -> list[Difference]:
        """Of what has no fixed order: how many are on one side alone."""
        if self._exported.match is None:
            return []
        pairs = zip(self._wanted, made, strict=True)
        counts = [self._exported.match(wanted, found, tolerance) for wanted, found in pairs]
        total, alone = (sum(column) for column in zip(*counts, strict=True))
        limit = 0.0 if is_exact else None
        return [Difference(MATCHED, [total], alone, limit, is_count=True)]


def _difference(
    name: str, wanted: list[Tensor], made: list[Tensor], tolerance: float, *, is_exact: bool
) -> Difference:
    shape = list(wanted[0].shape)
    if any(a.shape != b.shape for a, b in zip(wanted, made, strict=True)):
        return Difference(name, shape, float("inf"), 0.0)
    if not wanted[0].is_floating_point():
        count = sum(int((a != b).sum()) for a, b in zip(wanted, made, strict=True))
        return Difference(name, shape, count, 0.0 if is_exact else None, is_count=True)
    pairs = [(a.double(), b.double()) for a, b in zip(wanted, made, strict=True) if a.numel()]
    scale = max([1.0, *(float(a.abs().max()) for a, _ in pairs)])
    # A NaN on one side alone is no small difference.
    gaps = [torch.where(a.isnan() & b.isnan(), 0.0, (a - b).abs()).max() for a, b in pairs]
    largest = max((float(gap.nan_to_num(float("inf"))) for gap in gaps), default=0.0)
    return Difference(name, shape, largest, tolerance * scale)


def judge(report: ExportAnswer, request: ExportQuestion) -> None:
    """Outputs that are too far off: nothing is written then, but for int8, whose metrics tell."""
    far = [d for d in report.differences if not d.is_within]
    if not far:
        return
    finding = Finding(
        slug="export-differs",
        what=f"the exported model gives other outputs than PyTorch on {report.samples} samples",
        why="; ".join(
            f"`{d.output}` is off by {d.largest:.3g}, at most {d.limit:.3g}" for d in far
        ),
        fix={
            "fp16": "the same without --half",
            "int8": "its figures on the test split decide; --half loses less",
            "fp32": "another --opset, or --to torchscript",
        }[request.precision],
        severity="warning" if request.is_int8 else "error",
    )
    if not request.is_int8:
        raise UserError(finding)
    report.findings.append(finding)


def time_ms(
    run: Run, inputs: Mapping[str, Tensor], wait: Callable[[], None] = lambda: None
) -> float:
    """Milliseconds of one batch: the fastest of as many runs as half a second has, since what else
    runs on a machine makes some of them slower and none faster."""
    values = list(inputs.values())
    for _ in range(2):
        run(*values)
    wait()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < _LEAST_RUNS or (
        time.perf_counter() - began < _TIMED_S and len(times) < _MOST_RUNS
    ):
        started = time.perf_counter()
        run(*values)
        wait()
        times.append(time.perf_counter() - started)
    return 1e3 * min(times)
