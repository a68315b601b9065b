"""Hosts on this machine: network namespaces on a bridge, each with an address, a name and the file
system of the machine, which is how nodes share one.

Names and addresses are this process's own, so that several can be there at a time."""

import os
import secrets
import shutil
import subprocess
from pathlib import Path


def why_not():
    """Why there can be no such hosts here; None when there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return "no ip or unshare here: apt-get install iproute2 util-linux"
    name = f"try{secrets.token_hex(3)}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode != 0:
        return f"no network namespaces here: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


class Hosts:
    """`count` hosts, named `stem`1, `stem`2, ...; the machine itself is .1 on their bridge."""

    def __init__(self, count, stem="node"):
        self.id = secrets.token_hex(3)
        number = secrets.randbelow(64 * 256)
        # For networks that nobody routes to (RFC 6598).
        self._net = f"100.{64 + number // 256}.{number % 256}"
        self.names = [f"{stem}{n + 1}" for n in range(count)]
        self.gateway = f"{self._net}.1"
        self._bridge = f"br{self.id}"

    def up(self, *, also=()):
        """`also`: lines for /etc/hosts of every host."""
        ip = self._ip
        ip("link", "add", self._bridge, "type", "bridge")
        ip("addr", "add", f"{self.gateway}/24", "dev", self._bridge)
        ip("link", "set", self._bridge, "up")
        known = [f"{self.address(n)} {name}" for n, name in enumerate(self.names)]
        for n in range(len(self.names)):
            space = self.space(n)
            ip("netns", "add", space)
            ip(
                "link",
                "add",
                self._cable(n),
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                space,
            )
            ip("link", "set", self._cable(n), "master", self._bridge, "up")
            ip("-n", space, "addr", "add", f"{self.address(n)}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            ip("-n", space, "link", "set", "lo", "up")
            folder = Path("/etc/netns") / space
            folder.mkdir(parents=True)
            lines = ["127.0.0.1 localhost", f"127.0.1.1 own-{self.names[n]}", *known, *also]
            (folder / "hosts").write_text("\n".join(lines) + "\n")

    def down(self):
        for n in range(len(self.names)):
            subprocess.run(["ip", "netns", "del", self.space(n)], capture_output=True)
            shutil.rmtree(Path("/etc/netns") / self.space(n), ignore_errors=True)
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True)

    def address(self, n):
        return f"{self._net}.{11 + n}"

    def space(self, n):
        return f"{self.names[n]}-{self.id}"

    def argv(self, n, *argv):
        """A command on a host; the process is that of the command, none stands between."""
        named = 'hostname "$0"; exec "$@"'
        unshared = ["unshare", "--uts", "bash", "-c", named, self.names[n]]
        return ["ip", "netns", "exec", self.space(n), *unshared, *map(str, argv)]

    def cut(self, n):
        """Pull the cable: nobody is told."""
        self._ip("link", "set", self._cable(n), "down")

    def mend(self, n):
        self._ip("link", "set", self._cable(n), "up")

    def _cable(self, n):
        return f"v{n}{self.id}"

    def _ip(self, *argv):
        subprocess.run(["ip", *argv], check=True, capture_output=True, timeout=30)
