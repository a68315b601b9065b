#!/usr/bin/env bash
# Runs tests or benchmarks from a copy of the tree on a machine with a GPU and no network.
# Wheels that the machine lacks lie in ./wheels: pip download --python-version 3.12 \
#   --only-binary=:all: --no-deps -d wheels NAME==VERSION ...
set -euo pipefail
cd "$(dirname "$0")/.."
python3 -m pip install --quiet --no-index --no-deps --find-links wheels wheels/*.whl
export PYTHONPATH="$PWD/src" PYTHONUNBUFFERED=1
exec "$@"
