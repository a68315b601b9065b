"""The machines a user has named: read from and kept in their configuration, judged on both ways.

What stands there ends on the command line of ssh, so each value has a shape. No secret is kept:
keys and everything else about a connection are OpenSSH's own (`~/.ssh/config`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from phalanx.errors import Finding, UserError, did_you_mean
from phalanx.run.directory import write_atomic

PATH = "phalanx"
"""Where things go over there unless said otherwise: below the home folder."""
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}"
_USER = r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}"
_HOST = r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?|[0-9A-Fa-f]*:[0-9A-Fa-f:.]+"
_TARGET = re.compile(
    r"(?:(?P<user>.*)@)?(?:\[(?P<v6>[^\]@]*)\]|(?P<host>[^@:]*))(?::(?P<port>[^:]*))?", re.DOTALL
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A machine that is reached over ssh."""

    name: str
    host: str
    """A host, an address, or an alias of `~/.ssh/config`."""
    user: str | None = None
    port: int | None = None
    path: str = PATH
    """Folder for everything of ours there; a relative one is below the home folder."""
    python: str | None = None
    """An environment's Python that is used as it is; None: one is made."""
    site_packages: bool = False
    """Whether the environment that is made also sees what the machine's own Python has."""

    @property
    def target(self) -> str:
        """As a person writes it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = f"{self.user}@" if self.user else ""
        return f"{user}{host}" + (f":{self.port}" if self.port else "")

    @property
    def by_hand(self) -> str:
        """The command that reaches it by hand."""
        port = f"-p {self.port} " if self.port else ""
        return f"ssh {port}{f'{self.user}@' if self.user else ''}{self.host}"


def make_place(
    name: str,
    target: str,
    *,
    path: str = PATH,
    python: str | None = None,
    site_packages: bool = False,
) -> Place:
    """A place from what a user says of it; raises a UserError with all that is wrong."""
    found = _TARGET.fullmatch(target)
    part = found.groupdict() if found else {"user": None, "v6": None, "host": "", "port": None}
    host = part["v6"] or part["host"] or ""
    findings = list(_wrong_values(name, target, part["user"], host, part["port"]))
    for option, value in (("--path", path), ("--python", python)):
        if value is not None and (problem := _path_problem(value)):
            findings.append(
                Finding(
                    slug="remote-path",
                    what=f"{option} {value!r} {problem}",
                    why="it names a place on the other machine and is shown to people",
                    fix=f"{option} {'~/phalanx' if option == '--path' else '~/env/bin/python'}",
                )
            )
    if findings:
        raise UserError(findings)
    port = int(part["port"]) if part["port"] else None
    return Place(
        name=name,
        host=host,
        user=part["user"],
        port=port,
        path=path,
        python=python,
        site_packages=site_packages,
    )


def _wrong_values(
    name: str, target: str, user: str | None, host: str, port: str | None
) -> Iterator[Finding]:
    if not re.fullmatch(_NAME, name, re.ASCII):
        yield Finding(
            slug="remote-name",
            what=f"{name!r} cannot be the name of a remote",
            why=f"a name matches {_NAME}",
            fix="phalanx remote add lab alice@gpu.example.org",
        )
    is_host = re.fullmatch(_HOST, host, re.ASCII)
    is_user = user is None or re.fullmatch(_USER, user, re.ASCII)
    is_port = port is None or (re.fullmatch(r"\d{1,5}", port, re.ASCII) and 0 < int(port) < 65536)
    if not (is_host and is_user and is_port):
        wrong = "host" if not is_host else "user" if not is_user else "port"
        yield Finding(
            slug="remote-target",
            what=f"{target!r} names no machine: its {wrong} cannot be one",
            why="it is USER@HOST:PORT, where user and port may be missing and HOST is a name, an "
            "address ([::1] in brackets) or an alias of ~/.ssh/config; anything else could be "
            "taken for an option of ssh or be run",
            fix="phalanx remote add lab alice@gpu.example.org:22",
        )


def _path_problem(path: str) -> str | None:
    if not path or path.isspace():
        return "is empty"
    if any(ord(c) < 32 or ord(c) == 127 or 0xD800 <= ord(c) < 0xE000 for c in path):
        return "holds a line break, a control character or no valid text"
    if path.startswith("-"):
        return "begins with `-`, as an option does"
    return None


def config_file() -> Path:
    """The user's file of remotes, which may not be there yet."""
    given = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    # freedesktop.org, "XDG Base Directory": a relative path is ignored.
    root = given if given.is_absolute() else Path.home() / ".config"
    return root / "phalanx" / "remotes.yaml"


def load_places() -> dict[str, Place]:
    """Every known place by its name; a file that was spoilt by hand is a Finding."""
    path = config_file()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(_unreadable(path, str(error))) from error
    try:
        records = yaml.safe_load(text) or {}
        return {str(name): _from_record(str(name), record) for name, record in records.items()}
    except (yaml.YAMLError, AttributeError, TypeError, KeyError) as error:
        raise UserError(_unreadable(path, str(error).splitlines()[0])) from error


def _from_record(name: str, record: dict[str, Any]) -> Place:
    python = record.get("python")
    return make_place(
        name,
        str(record["target"]),
        path=str(record.get("path", PATH)),
        python=None if python is None else str(python),
        site_packages=bool(record.get("site_packages", False)),
    )


def _unreadable(path: Path, why: str) -> Finding:
    return Finding(
        slug="remotes-unreadable",
        what=f"`{path}` cannot be read",
        why=why,
        fix=f"mend it, or move it away and add the remotes again: mv {path} {path}.old",
    )


def find_place(name: str) -> Place:
    """The place of this name."""
    places = load_places()
    if name in places:
        return places[name]
    raise UserError(
        Finding(
            slug="remote-unknown",
            what=f"there is no remote {name!r}{did_you_mean(name, places)}",
            why=f"`{config_file()}` knows {', '.join(places) or 'none'}",
            fix="phalanx remote list" if places else "phalanx remote add lab alice@gpu.example.org",
        )
    )


def add_place(place: Place) -> Place | None:
    """Keep a place; the one that had its name until now."""
    places = load_places()
    before = places.get(place.name)
    _save({**places, place.name: place})
    return before


def remove_place(name: str) -> Place:
    """Forget a place; nothing on the machine itself is touched."""
    place = find_place(name)
    places = load_places()
    del places[name]
    _save(places)
    return place


def _save(places: dict[str, Place]) -> None:
    path = config_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    records = {
        name: {
            "target": place.target,
            "path": place.path,
            **({"python": place.python} if place.python else {}),
            **({"site_packages": True} if place.site_packages else {}),
        }
        for name, place in sorted(places.items())
    }
    write_atomic(path, yaml.safe_dump(records, sort_keys=False, allow_unicode=True))
