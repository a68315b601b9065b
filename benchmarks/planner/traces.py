"""Traces of the models, kept beside this file so that nobody waits for them twice.

    python benchmarks/planner/traces.py [--only NAME ...]

A kept trace is used again while the recipe's files and those that trace it are the same.
"""

import argparse
import hashlib
import json
import time
from pathlib import Path

from points import MODELS, SCALING, find_settings, options_key

import phalanx
from phalanx.codec import from_json, to_json
from phalanx.planner.schema.trace import Trace
from phalanx.recipe.loading import recipe_fingerprint

FOLDER = Path(__file__).with_name(".traces")
SOURCES = (
    "engine/*.py",
    "planner/schema/trace.py",
    "planner/schema/footprint.py",
    "planner/schema/operators.py",
)
TRACING = (
    "trace", "activations", "as_cuda", "blocks", "recompute", "operator", "recurrence", "kernels",
    "attention", "footprint", "workspaces", "live", "compiled", "fused", "speed",
)  # fmt: skip


def trace_file(setting):
    """Where the trace of a setting's model is kept, by everything it follows from."""
    digest = hashlib.sha256(recipe_fingerprint(f"{MODELS}:{setting.model}").encode())
    digest.update(options_key(setting).encode())
    package = Path(phalanx.__file__).parent
    for path in sorted(path for pattern in SOURCES for path in package.glob(pattern)):
        if any(word in path.stem for word in TRACING):
            digest.update(path.read_bytes())
    return FOLDER / f"{_kind(setting)}-{digest.hexdigest()[:12]}.json"


def _kind(setting):
    return setting.model + "+compiled" * setting.is_compiled


def read_trace(setting):
    """The trace of a setting's model; made and kept when it is not there."""
    path = trace_file(setting)
    if path.is_file():
        return from_json(Trace, json.loads(path.read_text(encoding="utf-8")))
    from phalanx.tracing.trace import trace_recipe

    trace, findings = trace_recipe(
        f"{MODELS}:{setting.model}",
        setting.options,
        compiled=("fp32", "bf16") if setting.is_compiled else (),
    )
    if trace is None:
        raise RuntimeError("; ".join(finding.what for finding in findings))
    FOLDER.mkdir(exist_ok=True)
    for stale in FOLDER.glob(f"{_kind(setting)}-*.json"):
        if json.loads(stale.read_text())["options"] == trace.options:
            stale.unlink()
    path.write_text(json.dumps(to_json(trace)), encoding="utf-8")
    return trace


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], help="part of a setting's name")
    seen = set()
    for setting in find_settings(parser.parse_args().only, also=SCALING):
        path = trace_file(setting)
        if path in seen:
            continue
        seen.add(path)
        started, was_there = time.perf_counter(), path.is_file()
        trace = read_trace(setting)
        took = "kept" if was_there else f"{time.perf_counter() - started:.1f} s"
        print(
            f"{_kind(setting):21} {took:>8} {trace.parameters:>12,} parameters, "
            f"{trace.num_blocks} blocks; "
            f"{trace.activations_unknown or trace.compiled_unknown or 'traced'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
