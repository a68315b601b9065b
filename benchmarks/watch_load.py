"""How soon `phalanx watch` shows something where there is much to show, and what memory it takes.

    .venv/bin/python benchmarks/watch_load.py [--runs 1000] [--events 1000000] [--write]

Makes a folder of runs (100 steps each) and one run with so many `step` events. Then, with an empty
cache and again with what the first look kept:

- terminal: from the command to its first picture on a terminal, and until all is read; peak memory;
- page: from the address to the first row, or the first curve, in Debian's chromium, whose own
  pages, scripts included, have been loaded once before; peak memory of the server.

And what sampling eight ranks costs: CPU time of one look, over the five seconds between two.
"""

import argparse
import json
import math
import multiprocessing
import os
import pty
import random
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from side_by_side import Table

from phalanx.supervise.usage import UsageSampler
from phalanx.watch.web.library import run_id
from tests.browser.pages import Server, open_browser
from tests.unit.watch.run_folder import Run, plan


def many_runs(folder, count):
    for number in range(count):
        made = Run(folder, f"run-{number:05d}")
        made.begin()
        for step in range(10, 101, 10):
            made.step(step)
        made.evaluate(100, number / count)
        made.run.results_file.write_text(f"time,step,accuracy\n1,100,{number / count}\n")
        made.end("finished" if number % 7 else "failed")


def long_run(folder, events):
    made = Run(folder, "long", plan_record=plan(total_steps=events + 1))
    made.begin()
    numbers = random.Random(0)  # noqa: S311
    template = {"v": 1, "t": 0, "kind": "step", "writer": "rank-0", "attempt": 0}
    with (made.run.events / "rank-0.jsonl").open("a") as file:
        for step in range(1, events + 1):
            record = template | {
                "t": round(1.8e9 + step / 10, 6),
                "step": step,
                "epoch": step / 1000,
                "samples": 64 * step,
                "loss": 2.3 * math.exp(-4 * step / events) + 0.1 * numbers.random(),
                "terms": {"cross_entropy": 1.0},
                "lr": 0.003 * (1 - step / events),
                "grad_norm": 0.64,
                "samples_per_s": 2976.869,
                "data_wait": 0.02,
                "memory_bytes": 313540608,
                "alloc_retries": 0,
                "major_faults": 1,
                "loss_scale": None,
            }
            file.write(json.dumps(record, separators=(",", ":")) + "\n")
    return made


def time_terminal(folder, run):
    """(seconds to the first picture, CPU seconds until then, seconds to the last, peak bytes)."""
    main, side = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "45"}
    env.pop("CI", None)
    begun = time.perf_counter()
    argv = [sys.executable, "-m", "phalanx", "watch", str(run)]
    process = subprocess.Popen(argv, cwd=folder, stdin=side, stdout=side, stderr=side, env=env)
    os.close(side)
    first, used, peak = None, 0.0, 0
    while True:
        if select.select([main], [], [], 0.02)[0]:
            try:
                text = os.read(main, 65536).decode(errors="replace")
            except OSError:
                break
            if first is None and "loss" in text:
                first, used = time.perf_counter() - begun, _cpu_s(process.pid)
        peak = max(peak, _resident(process.pid))
    process.wait()
    os.close(main)
    return first, used, time.perf_counter() - begun, peak


def _resident(pid):
    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return 0


PORT = "18437"


def _cpu_s(pid):
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


ROW = "return document.querySelectorAll('tbody tr a').length"
CURVE = """
const chart = document.querySelector('.px-chart');
if (!chart) return 0;
const made = getElement(+chart.id.slice(1));
return made && made.chart ? made.chart.getOption().series[0].data.length : 0"""


def time_page(browser, address, script):
    begun = time.perf_counter()
    browser.get(address)
    while not browser.execute_script(script):
        time.sleep(0.01)
    return time.perf_counter() - begun


def time_pages(browser, folder, name, script, path="/"):
    """(first paint, CPU seconds of the server meanwhile, again, its bytes) with a server that has
    just been started, always at the same port: the browser keeps scripts by address."""
    server = Server(folder, name, "--port", PORT)
    try:
        browser.get(server.new_link().replace("/?", "/compare?"))  # reads no run
        before = _cpu_s(server.process.pid)
        first = time_page(browser, server.address + path, script)
        used = _cpu_s(server.process.pid) - before
        time.sleep(8)
        again = time_page(browser, server.address + path, script)
        return first, used, again, _resident(server.process.pid)
    finally:
        server.stop()


def sampling_share():
    """Share of one core that samples of eight ranks take."""
    children = [multiprocessing.Process(target=time.sleep, args=(60,)) for _ in range(8)]
    for child in children:
        child.start()
    sampler = UsageSampler([child.pid for child in children], [])
    begun, looks = time.process_time(), 50
    for _ in range(looks):
        sampler._next_s = 0.0
        assert len(sampler.look()) == 8
    used = (time.process_time() - begun) / looks
    for child in children:
        child.kill()
    return used / 5


def add_page(table, what, paint):
    first, used, again, size = paint
    table.add(what, f"{first:.2f}", f"{used:.2f}", f"{again:.2f}", "", f"{size / 2**20:.0f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument(
        "--ahead", action="store_true", help="measure before other processes, on a shared machine"
    )
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    words = f"--runs {arguments.runs} --events {arguments.events}" + " --ahead" * arguments.ahead
    table = Table(
        "watch-load",
        f"`phalanx watch` with {arguments.runs:,} runs and a run of {arguments.events:,} events",
        "| what | first paint, s | CPU of ours, s | again, s | all read, s | memory, MiB |",
        f"python benchmarks/watch_load.py {words} --write",
        packages=("rich", "nicegui"),
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        many_runs(folder / "many", arguments.runs)
        made = long_run(folder / "one", arguments.events)
        if arguments.ahead:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        first = time_terminal(folder, made.run.path)
        again = time_terminal(folder, made.run.path)
        table.add(
            f"terminal, {arguments.events:,} events",
            f"{first[0]:.2f}",
            f"{first[1]:.2f}",
            f"{again[0]:.2f}",
            f"{first[2]:.2f}",
            f"{max(first[3], again[3]) / 2**20:.0f}",
        )
        many_runs(folder / "warm", 1)
        warm = f"/run/{run_id(next((folder / 'warm').iterdir()))}"
        browser = open_browser()
        try:
            time_pages(browser, folder, "warm", ROW)
            time_pages(browser, folder, "warm", CURVE, warm)
            paint = time_pages(browser, folder, "many", ROW)
            add_page(table, f"page, list of {arguments.runs:,} runs", paint)
            for path in (folder / "cache").rglob("run-*.json"):
                path.unlink()
            where = f"/run/{run_id(made.run.path.resolve())}"
            paint = time_pages(browser, folder, "one", CURVE, where)
            add_page(table, f"page, run of {arguments.events:,} events", paint)
        finally:
            browser.quit()
    table.say(
        f"\nSamples of eight ranks take {sampling_share():.3%} of one core. Terminal: from the "
        "command, Python's start included; page: from the address to a row or a curve in chromium. "
        f"Other processes wanted the cores meanwhile: load {os.getloadavg()[0]:.0f}."
    )
    if arguments.write:
        table.write()


if __name__ == "__main__":
    main()
