"""How long `phalanx --help` takes beside `accelerate --help`, by turns in the same interpreter.

python benchmarks/help_time.py [--rounds 9] [--write]
"""

import argparse
import statistics
import sys
import time
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from side_by_side import Table, run, take_turns

ASKED = 0.25


def seconds_of(module):
    started = time.perf_counter()
    run([sys.executable, "-m", module, "--help"])
    return time.perf_counter() - started


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="write to benchmarks/results")
    arguments = parser.parse_args()
    contestants = {"phalanx --help": lambda: seconds_of("phalanx")}
    if find_spec("accelerate") is not None:
        module = "accelerate.commands.accelerate_cli"
        contestants["accelerate --help"] = lambda: seconds_of(module)
    table = Table(
        "help-time",
        "Time to print the help",
        "| what | median s | least s |",
        f"python benchmarks/help_time.py --rounds {arguments.rounds}",
        packages=("accelerate", "typer"),
    )
    for call in contestants.values():
        call()  # compiled .pyc files and the disk's cache, for both
    turns = take_turns(contestants, arguments.rounds)
    for name, times in turns.items():
        table.add(name, f"{statistics.median(times):.2f}", f"{min(times):.2f}")
    if "accelerate --help" in turns:
        ours, theirs = (statistics.median(times) for times in turns.values())
        judged = "reached" if ours <= ASKED * theirs else "**not reached**"
        table.say("")
        table.say(f"Of accelerate's: {ours / theirs:.2f}, asked at most {ASKED}: {judged}")
    if arguments.write:
        table.write()


if __name__ == "__main__":
    main()
