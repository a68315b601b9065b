"""Phalanx trains any PyTorch model on every GPU you have.

`phalanx.check()`, `phalanx.plan(job)`, `phalanx.estimate(job)`, `phalanx.train(job)`,
`phalanx.launch(script)`, `phalanx.doctor(run)`, `phalanx.verify(job)`, `phalanx.bench(job)`,
`phalanx.evaluate(run)` and `phalanx.export(run)` are the commands of the same names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.api import (
        bench,
        check,
        doctor,
        estimate,
        evaluate,
        export,
        launch,
        plan,
        train,
        verify,
    )
    from phalanx.diagnose.examine import Diagnosis
    from phalanx.verbs.bench import Bench
    from phalanx.verbs.closed_loop import Benchmark
    from phalanx.verbs.estimate import Estimate
    from phalanx.verbs.evaluate import Evaluated
    from phalanx.verbs.export import Export
    from phalanx.verbs.launch import ScriptResult
    from phalanx.verbs.train import Result
    from phalanx.verbs.verify import Verification

__all__ = [
    "Bench",
    "Benchmark",
    "Diagnosis",
    "Estimate",
    "Evaluated",
    "Export",
    "Result",
    "ScriptResult",
    "Verification",
    "bench",
    "check",
    "doctor",
    "estimate",
    "evaluate",
    "export",
    "launch",
    "plan",
    "train",
    "verify",
]


def __getattr__(name: str) -> Any:
    # Loaded when first used: `import phalanx.recipe` must stay light.
    if name in __all__:
        from phalanx import api

        return getattr(api, name)
    raise AttributeError(f"module 'phalanx' has no attribute {name!r}")
