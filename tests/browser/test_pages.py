"""The pages in a real browser: who may see them, what they show, and what they do not run."""

import contextlib

import pytest
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from tests.browser.conftest import HOSTILE
from tests.browser.pages import Server
from tests.unit.watch.run_folder import Run

CHART = """
const box = [...document.querySelectorAll('.px-card')].find(e => e.innerText.startsWith(%r));
const chart = box && box.querySelector('.nicegui-echart');
return chart ? getElement(+chart.id.slice(1)).chart.getOption() : null"""


def wait(browser, is_there, seconds=30):
    def look(driver):
        with contextlib.suppress(WebDriverException):  # what is drawn anew is gone for a moment
            return is_there(driver)
        return None

    return WebDriverWait(browser, seconds, poll_frequency=0.1).until(look)


def text_of(browser):
    return browser.find_element(By.TAG_NAME, "body").text


def shows(browser, *words):
    wait(browser, lambda b: all(word in text_of(b) for word in words))


def enter(browser, server, name=None):
    browser.get(server.new_link())
    shows(browser, "runs,")
    if name is not None:
        browser.get(link_of(browser, By.LINK_TEXT, name))
        wait(browser, lambda b: b.find_element(By.CSS_SELECTOR, ".px-tile"))


def link_of(browser, by, words):
    """Where a link leads. The list is drawn anew every second: found and read in one go."""
    return wait(browser, lambda b: b.find_element(by, words).get_attribute("href"))


def click(browser, selector, text=""):
    def clicked(driver):
        found = driver.find_elements(By.CSS_SELECTOR, selector)
        one = next((element for element in found if element.text.startswith(text)), None)
        if one is not None:
            one.click()
        return one is not None

    wait(browser, clicked)


def open_tab(browser, name):
    click(browser, ".q-tab", name)


def chart(browser, title):
    return browser.execute_script(CHART % title)


def errors(browser):
    return [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]


def test_without_its_link_nothing_is_shown(browser, server):
    browser.get(f"{server.address}/")
    assert "needs its link" in text_of(browser)
    assert "first" not in text_of(browser)
    browser.get(f"{server.address}/?token=wrong")
    assert "needs its link" in text_of(browser)


def test_the_link_opens_the_list_once_and_nothing_comes_from_elsewhere(browser, server):
    used = server.new_link()
    enter(browser, server)
    shows(browser, "4 runs, 0 running", "first", "second", "dead", "finished", "failed")
    assert browser.current_url == f"{server.address}/", "the token stays in the address"
    urls = browser.execute_script(
        "return performance.getEntriesByType('resource').map(e => e.name)"
    )
    assert urls
    assert all(url.startswith(server.address) for url in urls), urls
    assert errors(browser) == []
    browser.execute_cdp_cmd("Network.clearBrowserCookies", {})
    browser.get(used)
    assert "needs its link" in text_of(browser)


def test_a_finished_run_has_its_figures_and_every_tab(browser, server):
    enter(browser, server, "first")
    shows(browser, "100.0%", "best accuracy", "0.900", "plan 640", "restarts")
    wait(browser, lambda b: chart(b, "loss"))
    drawn = chart(browser, "loss")
    assert drawn["series"][-1]["data"][-1][0] == 200
    assert any("restart" in str(mark) for mark in drawn["series"][-1]["markLine"]["data"])
    open_tab(browser, "system")
    shows(browser, "SLOW", "GPU memory, GiB", "time of a step")
    open_tab(browser, "time line")
    shows(browser, "rank 1 died: killed by SIGKILL", "plan revision 1", "attempt 2 begins")
    open_tab(browser, "plan")
    shows(browser, "4 GPUs are free", "samples per second")
    open_tab(browser, "findings")
    shows(browser, "straggler", "phalanx doctor")
    assert errors(browser) == []


def test_smoothing_and_the_axis_change_the_curve(browser, server):
    enter(browser, server, "first")
    wait(browser, lambda b: chart(b, "loss"))
    before = chart(browser, "loss")
    slider = browser.find_element(By.CSS_SELECTOR, ".q-slider")

    def is_smoothed(b):
        # Again and again: a page that is shown may not listen yet.
        ActionChains(b).move_to_element_with_offset(slider, -60, 0).click().perform()
        return chart(b, "loss")["series"] != before["series"]

    wait(browser, is_smoothed)
    next(
        button
        for button in browser.find_elements(By.TAG_NAME, "button")
        if button.text == "wall time"
    ).click()
    wait(browser, lambda b: chart(b, "loss")["xAxis"][0]["axisLabel"]["formatter"] == "{value} s")


def test_a_dead_run_shows_its_finding_at_once(browser, server):
    enter(browser, server, "dead")
    shows(
        browser,
        "failed",
        "out-of-memory",
        "rank 1 ran out of GPU memory",
        "phalanx train --resume runs/dead micro_batch_size=8",
    )


def test_a_live_run_moves_its_curve_without_a_reload(browser, tmp_path):
    made = Run(tmp_path / "runs", "live")
    made.begin()
    made.step(10)
    made.step(20)
    made.hold()
    server = Server(tmp_path)
    try:
        enter(browser, server, "live")
        shows(browser, "running", "20 / 200 steps")
        wait(browser, lambda b: chart(b, "loss"))
        browser.execute_script("window.isSamePage = true")
        for step in range(30, 101, 10):
            made.step(step)
        wait(browser, lambda b: chart(b, "loss")["series"][-1]["data"][-1][0] == 100)
        shows(browser, "50.0%", "100 / 200 steps")
        made.end(
            "failed",
            20.0,
            100,
            "x",
            [
                {
                    "slug": "rank-killed",
                    "what": "rank 1 was killed",
                    "why": "w",
                    "fix": "f",
                    "severity": "error",
                }
            ],
        )
        shows(browser, "failed", "rank-killed")
        assert browser.execute_script("return window.isSamePage === true")
    finally:
        server.stop()
    assert "Traceback" not in server.log.read_text()


def test_two_runs_are_compared(browser, server):
    enter(browser, server)
    for name in ("first", "second"):
        box = f"//tr[.//a[text()='{name}']]//*[contains(@class, 'q-checkbox')]"
        wait(browser, lambda b, box=box: [b.find_element(By.XPATH, box).click()])
    button = wait(
        browser,
        lambda b: next(
            e
            for e in b.find_elements(By.TAG_NAME, "button")
            if e.text == "compare" and e.is_enabled()
        ),
    )
    button.click()
    shows(
        browser, "comparison of 2 runs", "differences of the jobs", "optimizer.lr", "0.003", "0.01"
    )
    assert "recipe" not in text_of(browser), "what is the same is no difference"
    options = browser.execute_script(
        "const chart = document.querySelector('.nicegui-echart');"
        "return getElement(+chart.id.slice(1)).chart.getOption()"
    )
    names = {line["name"] for line in options["series"]}
    assert {"first", "second"} <= names
    assert errors(browser) == []


def test_on_a_phone_nothing_leaves_the_screen(browser, server):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True},
    )
    enter(browser, server)
    wide = "return document.documentElement.scrollWidth"
    assert browser.execute_script(wide) <= 390
    enter_run = link_of(browser, By.LINK_TEXT, "first")
    browser.get(enter_run)
    shows(browser, "best accuracy")
    wait(browser, lambda b: chart(b, "loss"))
    assert browser.execute_script(wide) <= 390
    left = browser.find_elements(By.CSS_SELECTOR, ".px-chart")
    assert {round(box.rect["x"]) for box in left} == {round(left[0].rect["x"])}, "one column"


def test_dark_and_light_and_it_is_remembered(browser, server):
    enter(browser, server)
    click(browser, "button[aria-label^='dark']")
    dark = "return document.body.classList.contains('body--dark')"
    wait(browser, lambda b: b.execute_script(dark))
    colour = "return getComputedStyle(document.body).backgroundColor"
    assert browser.execute_script(colour) == "rgb(14, 18, 27)"
    browser.get(link_of(browser, By.LINK_TEXT, "first"))
    wait(browser, lambda b: b.execute_script(dark))
    click(browser, "button[aria-label^='dark']")
    wait(browser, lambda b: not b.execute_script(dark))
    assert browser.execute_script(colour) == "rgb(244, 246, 251)"


def test_hostile_content_is_shown_as_text(browser, server):
    enter(browser, server)
    shows(browser, "<img src=x onerror")
    browser.get(link_of(browser, By.PARTIAL_LINK_TEXT, "<img src=x"))
    shows(browser, HOSTILE)
    wait(browser, lambda b: chart(b, "loss"))
    browser.execute_script(  # as a mouse over the curve would
        "for (const e of document.querySelectorAll('.nicegui-echart')) getElement(+e.id.slice(1))"
        ".chart.dispatchAction({type: 'showTip', seriesIndex: 0, dataIndex: 1})"
    )
    for tab in ("system", "time line", "findings", "pictures"):
        open_tab(browser, tab)
        shows(browser, HOSTILE)
    open_tab(browser, "time line")
    browser.execute_script(
        "for (const e of document.querySelectorAll('.nicegui-echart')) getElement(+e.id.slice(1))"
        ".chart.dispatchAction({type: 'showTip', seriesIndex: 1, dataIndex: 0})"
    )
    open_tab(browser, "logs")
    shows(browser, f"needle {HOSTILE}")
    search = browser.find_element(By.CSS_SELECTOR, "input[placeholder=search]")
    search.send_keys("needle")
    shows(browser, f"2: needle {HOSTILE}")
    assert browser.execute_script("return window.owned") is None


def test_pictures_are_shown_and_other_files_are_not(browser, server):
    enter(browser, server)
    href = link_of(browser, By.PARTIAL_LINK_TEXT, "<img src=x")
    identifier = href.rpartition("/")[2]
    browser.get(href)
    wait(browser, lambda b: b.find_element(By.CSS_SELECTOR, ".px-tile"))
    open_tab(browser, "pictures")
    loaded = "return [...document.querySelectorAll('.px-pictures img')].map(e => e.naturalWidth)"
    wait(browser, lambda b: sorted(b.execute_script(loaded)) == [0, 3])
    cookie = "; ".join(f"{c['name']}={c['value']}" for c in browser.get_cookies())
    assert server.ask(f"/media/{identifier}/0", Cookie=cookie)[0] == 200
    for path in (
        f"/media/{identifier}/1",
        f"/media/{identifier}/../../../plan.json",
        f"/media/{identifier}/..%2f..%2fplan.json",
        f"/media/{identifier}/%2e%2e/%2e%2e/plan.json",
        "/media/..%2f..%2f/0",
        f"/run/{identifier}/../../../../etc/passwd",
        "/../../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/_nicegui/../../../etc/passwd",
    ):
        status, body = server.ask(path, Cookie=cookie)
        assert status in (400, 404, 422), path
        assert b"root:" not in body, path
        assert b"schema_version" not in body, path


def test_a_film_plays(browser, server, runs):
    enter(browser, server)
    browser.get(link_of(browser, By.PARTIAL_LINK_TEXT, "first"))
    wait(browser, lambda b: b.find_element(By.CSS_SELECTOR, ".px-tile"))
    open_tab(browser, "pictures")
    playing = (
        "const [v] = document.querySelectorAll('.px-pictures video');"
        "return v ? [v.videoWidth, v.videoHeight, v.currentTime > 0, v.error] : null"
    )
    wait(browser, lambda b: b.execute_script(playing) == [96, 64, True, None])


def test_prometheus_reads_with_its_own_token(server):
    token = server.log.read_text().partition("Bearer ")[2].partition("'")[0]
    assert server.ask("/metrics")[0] == 403
    status, body = server.ask("/metrics", Authorization=f"Bearer {token}")
    assert status == 200
    assert b'phalanx_run_step{run="first"} 200' in body
    assert server.ask("/", Authorization=f"Bearer {token}")[0] == 403


@pytest.mark.parametrize("path", ["/run/000000000000", "/compare?run=x&run=y"])
def test_what_is_not_there_is_told(browser, server, path):
    enter(browser, server)
    browser.get(server.address + path)
    shows(browser, "all runs")


def test_the_ssh_tunnel_is_told_when_the_machine_is_far(tmp_path, monkeypatch):
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.9 5000 10.0.0.1 22")
    Run(tmp_path / "runs")
    server = Server(tmp_path)
    try:
        port = server.address.rpartition(":")[2]
        server.wait(lambda: f"ssh -N -L {port}:127.0.0.1:{port} " in server.log.read_text())
        assert "@10.0.0.1" in server.log.read_text()
    finally:
        server.stop()
