"""What ssh says when it does not get through, as Findings that say what to do about it."""

from __future__ import annotations

from phalanx.errors import Finding
from phalanx.places.remote.places import Place

AGAIN = ("remote-resolve", "remote-refused", "remote-unreachable")
"""Refusals that may pass by themselves: a machine that starts again, a network that comes back."""


def refusal(place: Place, said: str) -> Finding | None:
    """The Finding for ssh's last words; None when they are about something else."""
    words = " ".join(line.strip() for line in said.strip().splitlines()[-3:])
    lower = said.lower()
    target, by_hand = place.target, place.by_hand
    if "could not resolve" in lower:
        return Finding(
            slug="remote-resolve",
            what=f"no machine is called {place.host!r}",
            why=f"ssh says: {words}",
            fix=f"mend the name: phalanx remote add {place.name} USER@HOST; or an alias in "
            "~/.ssh/config; a VPN may have to be on",
        )
    if "identification has changed" in lower:
        host = f"[{place.host}]:{place.port}" if place.port else place.host
        return Finding(
            slug="remote-host-key-changed",
            what=f"{target} shows another host key than the one that is known",
            why="the machine was set up anew, or somebody sits in between; ask who runs it",
            fix=f"only if it is right: ssh-keygen -R '{host}', then `{by_hand}` once by hand",
        )
    if "host key verification failed" in lower or "no matching host key fingerprint" in lower:
        return Finding(
            slug="remote-host-key",
            what=f"the host key of {target} is not known here",
            why="Phalanx takes no key that you have not seen; StrictHostKeyChecking is yours",
            fix=f"connect once by hand and compare the fingerprint: {by_hand}",
        )
    if "permission denied" in lower or "too many authentication failures" in lower:
        return Finding(
            slug="remote-denied",
            what=f"{target} does not let this user in",
            why=f"ssh says: {words}; no password is asked for, a key or an agent must do",
            fix=f"ssh-copy-id {by_hand.removeprefix('ssh ')}, or IdentityFile in ~/.ssh/config",
        )
    if "connection refused" in lower:
        return Finding(
            slug="remote-refused",
            what=f"{target} is there and takes no connection",
            why=f"ssh says: {words}; nothing listens on port {place.port or '22'}, or that of "
            "~/.ssh/config",
            fix=f"start sshd there, or name its port: phalanx remote add {place.name} "
            f"{place.target.rpartition(':')[0] or place.target}:2222",
        )
    unreachable = ("timed out", "no route to host", "network is unreachable", "host is down")
    if "connect to" in lower and any(word in lower for word in unreachable):
        return Finding(
            slug="remote-unreachable",
            what=f"{target} cannot be reached",
            why=f"ssh says: {words}",
            fix=f"is it on, is the VPN on, does a firewall stand in between: {by_hand}",
        )
    if "bad configuration option" in lower or "bad owner or permissions" in lower:
        return Finding(
            slug="remote-ssh-config",
            what="ssh does not take its own configuration",
            why=f"ssh says: {words}",
            fix=f"mend ~/.ssh/config until this works: {by_hand} true",
        )
    return None
