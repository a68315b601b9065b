"""A server as the command starts it, and Debian's chromium to open its pages with."""

import http.client
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"


def why_no_browser():
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"needs {' and '.join(absent)}: apt install chromium chromium-driver" if absent else None


def open_browser():
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for word in (
        "--headless=new",
        "--no-sandbox",  # as root, which CI is
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1280,900",
        "--hide-scrollbars",
    ):
        options.add_argument(word)
    options.binary_location = shutil.which("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


class Server:
    """`phalanx watch --web` on a folder of runs."""

    def __init__(self, folder, *words):
        self.log = folder / "server.txt"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "phalanx", "watch", "--web", *words],
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.wait(self.links)

    def wait(self, is_there):
        deadline = time.monotonic() + 60
        while not is_there():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def links(self):
        return re.findall(r"http://\S+token=\S+", self.log.read_text())

    @property
    def address(self):
        return self.links()[0].partition("/?")[0]

    def new_link(self):
        return self.links()[-1]

    def ask(self, path, **headers):
        """(status, body) of a path exactly as it is written, which a browser would tidy."""
        there = urlsplit(self.address)
        line = http.client.HTTPConnection(there.hostname, there.port, timeout=20)
        line.putrequest("GET", path, skip_host=False)
        for name, value in headers.items():
            line.putheader(name, value)
        line.endheaders()
        answer = line.getresponse()
        return answer.status, answer.read()

    def stop(self):
        self.process.terminate()
        self.process.wait(30)
