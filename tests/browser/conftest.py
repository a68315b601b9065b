"""One browser for all tests of this folder, and a folder of runs to look at."""

import pytest

from tests.browser.pages import SCREENSHOTS, Server, open_browser, why_no_browser
from tests.cli.test_watch import dead_run
from tests.unit.run.sinks.test_process import png
from tests.unit.watch.run_folder import Run, whole_run

HOSTILE = "<img src=x onerror=window.owned=1><script>window.owned=1</script>"


@pytest.fixture(scope="session")
def chromium():
    reason = why_no_browser()
    if reason is not None:
        pytest.skip(reason)
    browser = open_browser()
    yield browser
    browser.quit()


def hostile_run(folder):
    """Every text that can come from outside is HTML. A name of a folder cannot have a slash."""
    name = HOSTILE.replace("/", "")
    made = Run(folder, name, job=f"recipe: '{HOSTILE}'\n")
    made.begin(device=HOSTILE)
    for step in (10, 20, 30):
        made.step(step, terms={HOSTILE: 1.0, "other": 2.0})
    made.evaluate(30, 0.5, metrics={HOSTILE: 0.5})
    record = dict.fromkeys(("what", "why", "fix", "slug"), HOSTILE)
    made.finding(5.0, severity="error", **record)
    made.write("stop", 6.0, reason=HOSTILE)
    made.write(
        "samples",
        6.5,
        "rank-0",
        step=30,
        samples=[{"given": HOSTILE, "made": HOSTILE, "wanted": HOSTILE}],
    )
    folder = made.run.path / "media" / "step-30"
    folder.mkdir(parents=True)
    (folder / "<b>.png").write_bytes(png())
    for file in ("media/step-30/<b>.png", "../../../etc/passwd"):
        made.write("media", 7.0, "rank-0", step=30, name=HOSTILE, file=file, caption=HOSTILE)
    made.log(0, f"{HOSTILE}\nneedle {HOSTILE}\n")
    (made.run.logs / f"{name}.log").write_text("x")
    made.append("rank-0", HOSTILE + "\n")
    made.end("failed", reason=HOSTILE)
    return made


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Runs that are over: finished, two to compare, dead, hostile."""
    folder = tmp_path_factory.mktemp("served")
    first = whole_run(folder / "runs", "first", job="recipe: digits\noptimizer:\n  lr: 0.003\n")
    first.film(200)
    whole_run(folder / "runs", "second", job="recipe: digits\noptimizer:\n  lr: 0.01\n")
    dead_run(folder / "runs")
    hostile_run(folder / "runs")
    return folder


@pytest.fixture(scope="session")
def server(runs):
    served = Server(runs)
    yield served
    served.stop()


@pytest.fixture
def browser(chromium, request):
    """The browser without cookies, at its usual size; what it shows at the end is kept."""
    chromium.execute_cdp_cmd("Network.clearBrowserCookies", {})
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    chromium.set_window_size(1280, 900)
    chromium.get_log("browser")
    yield chromium
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    chromium.save_screenshot(str(SCREENSHOTS / f"{request.node.name}.png"))
    chromium.get("about:blank")
