"""What holds for every test: a marker by folder, a clean environment, no silent skips.

The folder says what a test needs: `contract` the source alone, `unit` one module, `cli` the command
line, `ranks` several processes that train together, `gpu` a GPU, `recipes` a built-in recipe,
`cluster` a Slurm and `remote` an sshd, which they bring up themselves.
A test elsewhere that starts ranks says so with `@pytest.mark.ranks`.
"""

import hashlib
import os
from pathlib import Path

import hypothesis
import pytest

# How long an example takes is the machine's business: tests measure no time.
hypothesis.settings.register_profile("phalanx", deadline=None)
hypothesis.settings.load_profile("phalanx")

_HERE = Path(__file__).parent
_IS_FULL = bool(os.environ.get("PHALANX_FULL"))
_FOLDERS = {
    "contract": "reads the source and the docs",
    "unit": "one module, no processes",
    "cli": "the command line",
    "ranks": "starts several ranks; at most two such tests run at a time",
    "gpu": "needs a GPU",
    "recipes": "trains a built-in recipe",
    "cluster": "brings up a Slurm of its own",
    "remote": "brings up an sshd of its own",
}


def pytest_configure(config):
    for name, meaning in _FOLDERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    config.addinivalue_line("markers", "full: another case of a slow test, in `make test-full`")
    if "s" not in config.option.reportchars:
        config.option.reportchars += "s"  # the reason of every skip is printed


def pytest_report_header():
    return "" if _IS_FULL else "tests marked `full` are left out: `make test-full` runs them too"


def pytest_collection_modifyitems(config, items):
    left_out = [] if _IS_FULL else [item for item in items if item.get_closest_marker("full")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_itemcollected(item):
    # Not in pytest_collection_modifyitems: there xdist has read the groups already.
    folder = item.path.relative_to(_HERE).parts[0]
    if folder in _FOLDERS:
        item.add_marker(folder)
    if folder in ("cluster", "remote"):  # one is enough; its jobs are ranks that commands start
        item.add_marker(pytest.mark.ranks)
    if item.get_closest_marker("ranks"):
        # Ranks share the cores. Those of the pool compute, those of commands mostly start up: one
        # test of each kind at a time keeps two cores busy.
        kind = "pool" if "pool" in item.fixturenames else "commands"
        item.add_marker(pytest.mark.xdist_group(kind))


@pytest.fixture(autouse=True)
def _restored_environment(request, tmp_path_factory):
    before = dict(os.environ)
    # No test sees what this user's commands have kept, nor what another test has.
    name = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.getbasetemp() / "cache" / name)
    yield
    for name in set(os.environ) - set(before) - {"PYTEST_CURRENT_TEST"}:
        del os.environ[name]
    os.environ.update(before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    return _no_silent_skip(report, needs_gpu=item.get_closest_marker("gpu") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    return _no_silent_skip(report, needs_gpu=collector.path.is_relative_to(_HERE / "gpu"))


def _no_silent_skip(report, *, needs_gpu):
    """In CI a skipped test is a failed one; only tests that need a GPU may be left out."""
    in_ci = os.environ.get("CI", "").lower() in ("1", "true")
    if in_ci and report.skipped and not needs_gpu and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {reason}"
    return report
