"""What it costs that threads of OpenMP spin while they wait for each other: steps a second of a
small convolution network on all cores, alone and beside other busy processes.

    python benchmarks/waiting_threads.py [--seconds 5] [--turns 3]

Ranks get `GOMP_SPINCOUNT=10000` (phalanx.launch.rank_environment) for what this shows.
"""

import argparse
import os
import statistics
import subprocess
import sys

SETTINGS = {
    "libgomp's own": {},
    "GOMP_SPINCOUNT=10000": {"GOMP_SPINCOUNT": "10000"},
    "GOMP_SPINCOUNT=1000": {"GOMP_SPINCOUNT": "1000"},
    "OMP_WAIT_POLICY=passive": {"OMP_WAIT_POLICY": "passive"},
}
WORK = """
import sys, time, torch
blocks = [torch.nn.Sequential(torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.BatchNorm2d(32),
                              torch.nn.SiLU()) for _ in range(12)]
model, batch = torch.nn.Sequential(*blocks), torch.randn(8, 32, 24, 24)
def step():
    model(batch).sum().backward()
    model.zero_grad()
for _ in range(3):
    step()
begun, steps = time.perf_counter(), 0
while time.perf_counter() - begun < float(sys.argv[1]):
    step()
    steps += 1
print(steps / (time.perf_counter() - begun))
"""


def measure(setting, seconds):
    ours = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run(
        [sys.executable, "-c", WORK, str(seconds)],
        env={**inherited, **setting}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return float(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    for busy in (0, cores):
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        try:
            found = {name: [] for name in SETTINGS}
            for _ in range(given.turns):
                for name, setting in SETTINGS.items():
                    found[name].append(measure(setting, given.seconds))
        finally:
            for other in others:
                other.kill()
        for name, rates in found.items():
            print(
                f"{cores} cores, {busy} other busy processes, {name}: "
                f"{statistics.median(rates):.1f} steps/s ({min(rates):.1f} to {max(rates):.1f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
