"""`phalanx watch --web`: serves the pages, and says how to reach them."""

from __future__ import annotations

import getpass
import os
import platform
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

from phalanx.errors import Finding, UserError
from phalanx.output import console
from phalanx.verbs.watch import library_of
from phalanx.watch.web.access import Access
from phalanx.watch.web.server import bind, serve

_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104


def serve_runs(
    named: list[str],
    *,
    output: Path,
    remote: str | None,
    host: str,
    port: int,
    token_file: Path | None,
) -> int:
    """Serve the pages until Ctrl-C."""
    _need_web()

    with ExitStack() as stack:
        library = library_of(named, output, remote, stack)
        listening = stack.enter_context(bind(host, port))
        port = listening.getsockname()[1]

        def say_link(token: str) -> None:
            console.say(f"  {_address(host, port)}/?token={token}")

        def say_next(token: str) -> None:
            console.say("the link was used; for another browser:")
            say_link(token)

        access = Access(metrics_token=_token(token_file), on_link=say_next)
        console.say("open this link; it works once, Ctrl-C ends the page:")
        say_link(access.link_token)
        _say_tunnel(host, port)
        shown = "TOKEN" if token_file is not None else access.metrics_token
        console.say(
            f"Prometheus: curl -H 'Authorization: Bearer {shown}' {_address(host, port)}/metrics",
            style="dim",
        )
        serve(library, access, listening)
    return 0


def _need_web() -> None:
    if find_spec("nicegui") is None:
        raise UserError(
            Finding(
                slug="no-web",
                what="the web page needs NiceGUI, which is not installed",
                why="--web; it is in the extra `web`",
                fix='pip install "phalanx[web]"',
            )
        )


def _address(host: str, port: int) -> str:
    name = platform.node() if host in _WILDCARDS else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}"


def _say_tunnel(host: str, port: int) -> None:
    """How to reach a page on a machine that one is logged in to over ssh, or in a Slurm job."""
    connection = os.environ.get("SSH_CONNECTION", "").split()
    if not connection and "SLURM_JOB_ID" not in os.environ:
        return
    if host not in ("127.0.0.1", "localhost", "::1"):
        return
    there = platform.node() if "SLURM_JOB_ID" in os.environ else connection[2]
    console.say("this machine is far away; on yours, before you open the link:")
    console.say(f"  ssh -N -L {port}:127.0.0.1:{port} {getpass.getuser()}@{there}")


def _token(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        token, said = "", str(error)
    else:
        said = f"it holds {len(token)} characters"
    if len(token) < 16:
        raise UserError(
            Finding(
                slug="watch-token",
                what=f"`{path}` holds no token of 16 characters or more",
                why=f"--metrics-token-file; {said}",
                fix=f"openssl rand -hex 24 > {path}",
            )
        )
    return token
