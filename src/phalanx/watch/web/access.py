"""Who may see the pages: a link works once and becomes a cookie, everything else is refused.

The same for every interface, loopback too: other users of the machine can reach it.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_MOST_SESSIONS = 100
_WRITING_PATHS = ("/_nicegui_ws/",)  # how a page that has no websocket talks to the server
# The pages' own scripts are made in the browser (Vue templates), so they need eval; nothing is
# fetched from elsewhere.
_HEADERS = (
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data: blob:; media-src 'self'; "
        b"style-src 'self' 'unsafe-inline'; font-src 'self' data:; "
        b"script-src 'self' 'unsafe-inline' 'unsafe-eval'; connect-src 'self' ws: wss:; "
        b"frame-ancestors 'none'; base-uri 'self'; form-action 'none'",
    ),
)
_REFUSED = """<!doctype html><html><head><meta charset="utf-8"><title>Phalanx</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:18vh auto;padding:0 1.5rem;
color:#334;background:#f6f7fb}@media(prefers-color-scheme:dark){body{color:#cdd3e0;background:#10141f}}
code{background:#8883;padding:.1em .35em;border-radius:4px}</style></head><body>
<h1>This page needs its link</h1>
<p>The link that <code>phalanx watch --web</code> printed works once. When it was used, the command
has printed a new one in its terminal: open that.</p></body></html>"""


@dataclass
class Session:
    """What is remembered for one browser."""

    is_dark: bool | None = None
    """None: as its system has it."""


class Access:
    """Links, cookies and the token of /metrics of one server."""

    def __init__(
        self,
        *,
        metrics_token: str | None = None,
        on_link: Callable[[str], None] = lambda token: None,
    ) -> None:
        """`on_link` hears the token of the next link when one was used."""
        self._link = secrets.token_urlsafe(24)
        self._on_link = on_link
        self._sessions: dict[str, Session] = {}
        # Browsers keep cookies by host, not by port: two servers must not take each other's.
        self._cookie = f"phalanx_watch_{secrets.token_hex(4)}"
        self.metrics_token = metrics_token or secrets.token_urlsafe(24)

    @property
    def link_token(self) -> str:
        return self._link

    def exchange(self, token: str) -> str | None:
        """A session for the token of a link, which is then worth nothing; None when it is wrong."""
        if not _same(token, self._link):
            return None
        self._link = secrets.token_urlsafe(24)
        session = secrets.token_urlsafe(32)
        while len(self._sessions) >= _MOST_SESSIONS:
            self._sessions.pop(next(iter(self._sessions)))
        self._sessions[session] = Session()
        self._on_link(self._link)
        return session

    def cookie_for(self, session: str) -> str:
        """What the browser of a session is told to keep."""
        return f"{self._cookie}={session}; Path=/; HttpOnly; SameSite=Lax"

    def session(self, header: str) -> Session | None:
        """The session of a browser that sends these cookies; None when it has no link."""
        try:
            cookie = SimpleCookie(header).get(self._cookie)
        except CookieError:
            return None
        given = cookie.value if cookie is not None else None
        found = next((k for k in self._sessions if given and _same(given, k)), None)
        return self._sessions[found] if found is not None else None

    def may_read_metrics(self, header: str) -> bool:
        kind, _, token = header.partition(" ")
        return kind.lower() == "bearer" and _same(token.strip(), self.metrics_token)


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(errors="replace"), other.encode())


class Guard:
    """Stands before the application."""

    def __init__(self, app: App, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        session = self._access.session(headers.get("cookie", ""))
        if scope["type"] == "websocket":
            if session is None or not _is_own(headers):
                await send({"type": "websocket.close", "code": 4403})
                return
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if session is None and await self._exchange(scope, send):
            return
        is_read = scope["method"] in ("GET", "HEAD") or path.startswith(_WRITING_PATHS)
        is_metrics = path == "/metrics" and self._access.may_read_metrics(
            headers.get("authorization", "")
        )
        if not is_read:
            await _answer(send, 405, b"read-only", "text/plain")
        elif session is None and not is_metrics:
            await _answer(send, 403, _REFUSED.encode(), "text/html; charset=utf-8")
        else:
            await self._app(scope, receive, _with_headers(send))

    async def _exchange(self, scope: Scope, send: Send) -> bool:
        """A link that is right becomes a cookie; the token then leaves the address."""
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        session = self._access.exchange(token) if token and scope["method"] == "GET" else None
        if session is None:
            return False
        path = scope["path"] if not scope["path"].startswith("//") else "/"
        more = [
            (b"set-cookie", self._access.cookie_for(session).encode()),
            (b"location", path.encode()),
        ]
        await _answer(send, 303, b"", "text/plain", more)
        return True


def _is_own(headers: dict[str, str]) -> bool:
    """Whether a websocket was opened by one of our pages, and not by somebody else's."""
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host")


def _with_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *_HEADERS]}
        await send(message)

    return sending


async def _answer(
    send: Send, status: int, body: bytes, kind: str, more: list[tuple[bytes, bytes]] | None = None
) -> None:
    headers = [(b"content-type", kind.encode()), (b"cache-control", b"no-store")]
    headers += [(b"content-length", str(len(body)).encode()), *_HEADERS, *(more or [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
