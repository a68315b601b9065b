"""Builds wheel and sdist into dist/, then does with the wheel what a new user does: a clean
environment, nothing of this folder, `phalanx train digits`.

python scripts/release.py                                        with this Python
python scripts/release.py --python python3.12 --python python3.13   with each of these
python scripts/release.py --environment DIR                      in an environment that has torch
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
DEMO = (["check"], ["plan", "digits"], ["train", "digits"], ["evaluate"], ["doctor"])


def build() -> Path:
    """Wheel and sdist; the wheel is made from the sdist, so that both hold what is needed."""
    for old in DIST.glob("phalanx-*"):
        old.unlink()
    run([sys.executable, "-m", "build", "--outdir", str(DIST), str(ROOT)])
    return next(DIST.glob("phalanx-*.whl"))


def missing_files(wheel: Path) -> list[str]:
    """Files of the package that git keeps and the wheel has not got."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "src/phalanx"], cwd=ROOT, capture_output=True, check=True
    ).stdout.decode()
    kept = {name.removeprefix("src/") for name in listed.split("\0") if name}
    with zipfile.ZipFile(wheel) as archive:
        return sorted(kept - set(archive.namelist()))


def run(argv: list[str], **options: Any) -> None:
    sys.stdout.write(f"+ {' '.join(argv)}\n")
    sys.stdout.flush()
    subprocess.run(argv, check=True, **options)


def install(wheel: Path, python: str, environment: Path) -> Path:
    """A fresh environment with the wheel and the tested versions of what it needs."""
    constraints = str(ROOT / "constraints.txt")
    run([python, "-m", "venv", str(environment)])
    pip = [
        str(environment / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "-c",
        constraints,
    ]
    torch = next(
        line
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if line.startswith("torch==")
    )
    run([*pip, torch])  # first, so that pip takes the build meant for this machine
    run([*pip, f"{wheel}[digits]"])
    return environment


def demo(environment: Path) -> None:
    """The commands of a first hour, from a folder that has nothing of ours."""
    with tempfile.TemporaryDirectory(prefix="phalanx-demo-") as folder:
        for words in DEMO:
            argv = [str(environment / "bin" / "phalanx"), *words]
            run(argv, cwd=folder, stdin=subprocess.DEVNULL)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", action="append", help="an interpreter; may be given again")
    parser.add_argument(
        "--environment", action="append", type=Path, help="one that has torch: the wheel goes in"
    )
    given = parser.parse_args(argv)
    wheel = build()
    missing = missing_files(wheel)
    if missing:
        sys.stderr.write("not in the wheel:\n  " + "\n  ".join(missing) + "\n")
        return 1
    for environment in given.environment or []:
        python = str(environment / "bin" / "python")
        run(
            [
                python,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--force-reinstall",
                "--no-deps",
                str(wheel),
            ]
        )
        demo(environment)
    pythons = given.python or ([] if given.environment else [sys.executable])
    for python in pythons:
        with tempfile.TemporaryDirectory(prefix="phalanx-release-") as folder:
            demo(install(wheel, python, Path(folder) / "env"))
    sys.stdout.write(f"{wheel.relative_to(ROOT)} installs and trains\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
