"""What holds for every test: a marker by folder, a clean environment, no silent skips.

The folder says what a test needs: `contract` the source alone, `unit` one module, `cli` the command
line, `ranks` several processes that train together, `gpu` a GPU, `recipes` a built-in recipe,
`faults` a run that is broken on purpose, `cluster` a Slurm and `remote` an sshd, which they bring
up themselves, `browser` Debian's chromium and its driver.
A test elsewhere that starts ranks says so with `@pytest.mark.ranks`.
"""

import collections
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import filelock
import hypothesis
import pytest

from tests.cluster.hosts import Hosts, why_not
from tests.ranks.command import end_started

# How long an example takes is the machine's business: tests measure no time.
hypothesis.settings.register_profile("phalanx", deadline=None)
hypothesis.settings.load_profile("phalanx")

_HERE = Path(__file__).parent
# `only`: the further cases alone, as `make test-full` runs them; `1`: every case.
_FULL = os.environ.get("PHALANX_FULL", "")
_FOLDERS = {
    "contract": "reads the source and the docs",
    "unit": "one module, no processes",
    "cli": "the command line",
    "ranks": "starts several ranks; at most two such tests run at a time",
    "gpu": "needs a GPU",
    "recipes": "trains a built-in recipe",
    "faults": "breaks a run on purpose",
    "cluster": "brings up a Slurm of its own",
    "remote": "brings up an sshd of its own",
    "browser": "opens pages in a browser",
    "benchmarks": "the scripts of benchmarks/, without measuring",
}


def pytest_configure(config):
    # Whoever starts this in the background, or with nohup, has these ignored, and so would every
    # command that a test starts and then interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # Threads of OpenMP spin while they wait for each other, and workers of pytest share cores: a
    # thread that spins keeps the one it waits for from running. Read where torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    for name, meaning in _FOLDERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    config.addinivalue_line("markers", "full: another case of a slow test, in `make test-full`")
    config.addinivalue_line("markers", "asks: begins with an empty cache, see `asked_before`")
    if "s" not in config.option.reportchars:
        config.option.reportchars += "s"  # the reason of every skip is printed


def pytest_report_header():
    lines = []
    if not _FULL:
        lines.append("tests marked `full` are left out: `make test-full` runs them")
    if find_spec("ultralytics") is None:
        lines.append("tests/recipes/detection has an environment of its own: `make test-detection`")
    return lines


def pytest_collection_modifyitems(config, items):
    if _FULL not in ("", "only"):
        return
    is_wanted = _FULL == "only"
    left_out = [i for i in items if (i.get_closest_marker("full") is not None) != is_wanted]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_itemcollected(item):
    # Not in pytest_collection_modifyitems: there xdist has read the groups already.
    folder = item.path.relative_to(_HERE).parts[0]
    if folder in _FOLDERS:
        item.add_marker(folder)
    if folder in ("cluster", "faults", "remote"):  # their commands start ranks
        item.add_marker(pytest.mark.ranks)
    if item.get_closest_marker("ranks"):
        # One worker runs the tests of a group, one after the other: those that share the pool of
        # ranks, a Slurm, an sshd or what a folder has prepared; else those of one file.
        kind = item.path.stem if folder in ("faults", "ranks") else folder
        kind = "pool" if "pool" in item.fixturenames else kind
        item.add_marker(pytest.mark.xdist_group(kind))


def pytest_terminal_summary(terminalreporter, config):
    """Write how long every test took, and show where the time went."""
    if config.option.collectonly:
        return
    seconds = collections.Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if hasattr(report, "duration") and getattr(report, "nodeid", ""):
                seconds[report.nodeid] += report.duration
    folders = collections.Counter()
    for name, took in seconds.items():
        folders["/".join(name.split("/")[:2])] += took
    of = "".join(
        f"-{part}" for part in (_FULL, "detection" * bool(find_spec("ultralytics"))) if part
    )
    file = _HERE.parent / "build" / f"test-times{of}.tsv"
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(f"{took:.2f}\t{name}\n" for name, took in seconds.most_common()))
    shown = ", ".join(f"{name} {took:.0f} s" for name, took in folders.most_common(8))
    terminalreporter.write_line(f"time by folder: {shown}; every test: {file.name} in build/")


@pytest.fixture(scope="session")
def asked_before(tmp_path_factory):
    """A user's cache in which torch and the digits recipe have answered, and in which language
    models stay: most of a command's time would be asking them again, in every test."""
    if "PYTEST_XDIST_WORKER" not in os.environ:  # for a few tests it does not pay
        return None
    folder = tmp_path_factory.getbasetemp().parent / "asked"  # of all workers
    folder.mkdir(exist_ok=True)
    with filelock.FileLock(folder / "lock"):
        if not (folder / "phalanx").is_dir():
            env = {**os.environ, "XDG_CACHE_HOME": str(folder)}
            for words in (["digits"], ["digits", "--machine", "A100-80"]):
                command = [sys.executable, "-m", "phalanx", "plan", *words]
                subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
            (folder / "phalanx" / "models").mkdir()
    return folder / "phalanx"


@pytest.fixture(autouse=True)
def _restored_environment(request, tmp_path_factory):
    before = dict(os.environ)
    # No test sees what this user's commands have kept, nor what another test has.
    name = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
    cache = tmp_path_factory.getbasetemp() / "cache" / name
    os.environ["XDG_CACHE_HOME"] = str(cache)
    os.environ["PHALANX_LANG"] = "en"  # whatever the locale
    runs_commands = not {"contract", "unit", "gpu"} & {
        mark.name for mark in request.node.iter_markers()
    }
    if runs_commands and not request.node.get_closest_marker("asks"):
        _take_over(request.getfixturevalue("asked_before"), cache / "phalanx")
    yield
    end_started()
    for name in set(os.environ) - set(before) - {"PYTEST_CURRENT_TEST"}:
        del os.environ[name]
    os.environ.update(before)


def _take_over(asked, cache):
    if asked is None or cache.exists():
        return
    for kind in ("torch", "traces"):
        shutil.copytree(asked / kind, cache / kind)
    (cache / "models").symlink_to(asked / "models")


@pytest.fixture
def hosts():
    """Two hosts joined by a network."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    made = Hosts(2)
    try:
        made.up()
        yield made
    finally:
        made.down()


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
