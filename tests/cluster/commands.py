"""Commands on several hosts (hosts.py), and how far their run has come."""

import subprocess
import sys
import time

from tests.fixtures.event_lines import read_events

PORT = 29500
DEADLINE_S = 240


class Commands:
    """Commands on hosts, ended when the test is."""

    def __init__(self, hosts, folder):
        self._hosts = hosts
        self._folder = folder
        self._children = []

    def start(self, host, *argv, verb="train", rendezvous=None, nodes=2):
        """Start a command on a host."""
        rendezvous = rendezvous or f"{self._hosts.address(0)}:{PORT}"
        words = ["-m", "phalanx", verb, "--nodes", nodes, "--rendezvous", rendezvous, *argv]
        log = self._folder / f"said-{len(self._children)}"
        with log.open("wb") as file:
            child = subprocess.Popen(
                self._hosts.argv(host, sys.executable, *words),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        child.said = log.read_text
        self._children.append(child)
        return child

    def close(self):
        for child in self._children:
            child.kill()
            child.wait()

    @property
    def said(self):
        return "\n".join(child.said() for child in self._children)


def wait_for(is_done, commands):
    deadline = time.monotonic() + DEADLINE_S
    while not is_done():
        assert time.monotonic() < deadline, commands.said
        time.sleep(0.1)


def steps(run):
    if not run.events.is_dir():
        return []
    return [event.data["step"] for event in read_events(run.events) if event.kind == "step"]


def pid_of(run, rank):
    """The newest process of a rank."""
    found = [e for e in read_events(run.events) if e.kind == "start" and e.data["rank"] == rank]
    return found[-1].data["pid"]
