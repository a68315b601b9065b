"""A real sshd on loopback with a throw-away key, and a user who knows it.

The user's ssh is a script that names a configuration of its own: OpenSSH looks for ~/.ssh by the
user's entry in passwd, whatever HOME says. Nothing of the real ~/.ssh is read or written.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

PACKAGES = "openssh-server openssh-client rsync"
PYTHON = sys.executable
SOURCE = Path(__file__).parents[2] / "src"

SSHD = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
PidFile {folder}/sshd.pid
AuthorizedKeysFile {folder}/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
SetEnv PYTHONPATH={python_path} PATH={path} XDG_CACHE_HOME={folder}/cache
"""
SSH = """\
Host *
  IdentityFile {folder}/{key}
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/{known}
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
"""


def find(name):
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


class Server:
    """An sshd, and what it has started."""

    def __init__(self, folder, python_path, path="/usr/local/bin:/usr/bin:/bin"):
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        for key in ("host", "id", "other"):
            argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
            subprocess.run(argv, check=True, timeout=30)
        shutil.copy(folder / "id.pub", folder / "authorized_keys")
        self.know(folder / "known", (folder / "host.pub").read_text())
        self.know(folder / "changed", (folder / "other.pub").read_text())
        (folder / "nothing").touch()
        text = SSHD.format(port=self.port, folder=folder, python_path=python_path, path=path)
        (folder / "sshd_config").write_text(text)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # where a root's sshd keeps an empty folder
        argv = [find("sshd"), "-D", "-f", str(folder / "sshd_config"), "-E", str(folder / "log")]
        self.process = subprocess.Popen(argv)
        wait_for(self._answers, log=folder / "log")

    def know(self, path, public):
        path.write_text(f"[127.0.0.1]:{self.port} {' '.join(public.split()[:2])}\n")

    def _answers(self):
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    @property
    def target(self):
        return f"{psutil.Process().username()}@127.0.0.1:{self.port}"

    def drop(self):
        """Cut every connection, as a lost network does: nobody is told. How many there were."""
        count = 0
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if process.name().startswith("sshd"):
                    process.kill()
                    count += 1
        return count

    def end(self):
        self.drop()
        self.process.terminate()
        self.process.wait(30)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    missing = [name for name in ("sshd", "ssh", "ssh-keygen", "rsync") if find(name) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} here: apt-get install {PACKAGES}")
    server = Server(tmp_path_factory.mktemp("sshd"), SOURCE)
    yield server
    server.end()


class User:
    """Who sits at this machine: a configuration, an ssh, and what they have started over there."""

    def __init__(self, server, folder, monkeypatch):
        self.server = server
        self.home = folder
        self._monkeypatch = monkeypatch
        self._started = []
        self.far = folder / "far; $(touch pwned) 'it' é"
        monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
        self.use()

    def use(self, *, key="id", known="known"):
        """Log in with this key, knowing these hosts."""
        text = SSH.format(folder=self.server.folder, key=key, known=known)
        (self.home / "ssh_config").write_text(text)
        script = self.home / "bin" / "ssh"
        script.parent.mkdir(exist_ok=True)
        real = shutil.which("ssh", path=os.environ["PATH"].partition(":")[2])
        script.write_text(f"#!/bin/sh\nexec {real} -F '{self.home}/ssh_config' \"$@\"\n")
        script.chmod(0o755)

    def start(self, *argv):
        """A command in the background; it does not outlive the test."""
        child = subprocess.Popen(
            [PYTHON, "-m", "phalanx", *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(child)
        return child

    def end(self):
        for child in self._started:
            if child.poll() is None:
                child.kill()
            child.communicate()
        for path in self.far.glob("started/*/pids.json"):
            for pid, _ in json.loads(path.read_text()).values():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)  # ranks follow the process that started them


@pytest.fixture
def user(server, tmp_path, monkeypatch):
    user = User(server, tmp_path, monkeypatch)
    yield user
    user.end()


def wait_for(is_done, *, log=None, process=None, timeout_s=120):
    """Poll until it is so; a loaded machine may take its time."""
    deadline = time.monotonic() + timeout_s
    while not is_done():
        is_over = process is not None and process.poll() is not None
        assert not is_over, process.communicate()
        said = log.read_text() if log is not None and log.exists() else ""
        assert time.monotonic() < deadline, said
        time.sleep(0.1)
