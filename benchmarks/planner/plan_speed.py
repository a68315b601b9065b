"""How long it takes to trace a model, and how much memory, without a GPU.

    python benchmarks/planner/plan_speed.py [--write]

Each model is traced in a process of its own, in which torch is imported before the clock starts:
forward and backward in fp32 and bf16, with and without recomputed blocks, on tensors without
values, and a fetch of samples. `compiled too` is what a plan for CUDA asks, once for each recipe.
Memory is the most that process ever held (`ru_maxrss`), torch with
it.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECIPE = f"{ROOT / 'tests' / 'fixtures' / 'recipes' / 'learners.py'}:SequenceRecipe"
RESULTS = ROOT / "benchmarks" / "results"

MODELS = {
    "decoder 124M": {"width": 768, "heads": 12, "depth": 12, "length": 1024, "symbols": 50257},
    "decoder 7B": {"width": 4096, "heads": 32, "depth": 32, "length": 2048, "symbols": 32000},
}

CHILD = """
import json, resource, sys, time
import torch
from phalanx.tracing.trace import trace_recipe
spec, options, precisions = json.loads(sys.argv[1])
wall, cpu = time.perf_counter(), time.process_time()
trace, findings = trace_recipe(spec, options, precisions)
assert trace is not None and trace.operators, findings or trace.activations_unknown
print(json.dumps({
    "seconds": time.perf_counter() - wall,
    "cpu_seconds": time.process_time() - cpu,
    "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    "parameters": trace.parameters,
    "rows": len(trace.operators["bf16"]),
    "torch": torch.__version__,
}))
"""


def measure(options, precisions):
    argv = [sys.executable, "-c", CHILD, json.dumps([RECIPE, options, precisions])]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/")
    arguments = parser.parse_args()
    rows = []
    for name, options in MODELS.items():
        for precisions in (("bf16",), ("bf16", "bf16+compiled")):
            found = measure(options, precisions)
            more = ", compiled too" if len(precisions) > 1 else ""
            rows.append(
                f"| {name}{more} | {found['parameters']:,} | "
                f"{found['seconds']:.1f} s | {found['cpu_seconds']:.1f} s | "
                f"{found['peak_bytes'] / 2**30:.2f} GiB | {found['rows']} |"
            )
    lines = [
        "# Tracing a model: how long, how much memory",
        "",
        f"- date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"- machine: {len(os.sched_getaffinity(0))} CPU cores, load {os.getloadavg()[0]:.1f}",
        f"- versions: python {platform.python_version()}, torch {found['torch']}",
        "- command: python benchmarks/planner/plan_speed.py",
        "",
        "| model | parameters | time | CPU time | peak memory | rows of operators, bf16 |",
        "|---|--:|--:|--:|--:|--:|",
        *rows,
    ]
    print("\n".join(lines))
    if arguments.write:
        path = RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-plan-speed.md"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
