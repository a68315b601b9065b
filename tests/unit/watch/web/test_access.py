"""Who may see the pages."""

import asyncio

import pytest

from phalanx.watch.web.access import Access, Guard, Session


async def inside(scope, receive, send):
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"secret"})


def ask(access, path="/", *, query="", cookie=None, method="GET", kind="http", headers=()):
    sent = []

    async def send(message):
        sent.append(message)

    pairs = [(b"host", b"here:1"), *headers]
    if cookie:
        ours = access.cookie_for(cookie).partition(";")[0]
        pairs.append((b"cookie", f"a=b; {ours}; c=d".encode()))
    scope = {"type": kind, "path": path, "query_string": query.encode(), "method": method}
    asyncio.run(Guard(inside, access)({**scope, "headers": pairs}, None, send))
    return sent


def status(sent):
    return sent[0]["status"]


def test_a_link_works_once_and_becomes_a_cookie():
    links = []
    access = Access(on_link=links.append)
    token = access.link_token
    assert status(ask(access)) == 403
    assert status(ask(access, query="token=wrong")) == 403
    sent = ask(access, "/run/x", query=f"token={token}")
    headers = dict(sent[0]["headers"])
    assert (status(sent), headers[b"location"]) == (303, b"/run/x")
    cookie = headers[b"set-cookie"].decode()
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie
    session = cookie.partition(";")[0].partition("=")[2]
    assert token not in session
    assert status(ask(access, cookie=session)) == 200
    assert status(ask(access, query=f"token={token}")) == 403, "a second time"
    assert links == [access.link_token] != [token]


@pytest.mark.parametrize("cookie", ["", "wrong", "é", "a" * 5000, '"'])
def test_other_cookies_are_none(cookie):
    assert status(ask(Access(), cookie=cookie)) == 403


def test_no_answer_without_the_link_says_anything_of_the_runs():
    sent = ask(Access())
    assert b"secret" not in sent[1]["body"]


def test_metrics_have_a_token_of_their_own():
    access = Access(metrics_token="m" * 20)
    bearer = [(b"authorization", b"Bearer " + b"m" * 20)]
    assert status(ask(access, "/metrics")) == 403
    assert status(ask(access, "/metrics", headers=bearer)) == 200
    assert status(ask(access, "/", headers=bearer)) == 403, "it opens nothing else"
    assert status(ask(access, "/metrics", query="token=" + "m" * 20)) == 403


def test_nothing_is_written_and_nothing_framed():
    access = Access()
    session = access.exchange(access.link_token)
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert status(ask(access, cookie=session, method=method)) == 405
    headers = dict(ask(access, cookie=session)[0]["headers"])
    assert headers[b"x-frame-options"] == b"DENY"
    assert b"default-src 'self'" in headers[b"content-security-policy"]


def test_websockets_need_the_cookie_and_our_own_page():
    access = Access()
    session = access.exchange(access.link_token)
    ours, theirs = (b"origin", b"http://here:1"), (b"origin", b"http://evil.example")
    assert ask(access, kind="websocket")[0]["type"] == "websocket.close"
    assert ask(access, kind="websocket", cookie=session, headers=[theirs])[0]["code"] == 4403
    assert ask(access, kind="websocket", cookie=session, headers=[ours])[0]["type"] == (
        "websocket.accept"
    )


def test_a_redirect_never_leaves_this_server():
    access = Access()
    sent = ask(access, "//evil.example/x", query=f"token={access.link_token}")
    assert dict(sent[0]["headers"])[b"location"] == b"/"


def test_old_sessions_make_room():
    access = Access()
    first = access.exchange(access.link_token)
    for _ in range(150):
        last = access.exchange(access.link_token)
    assert access.session(access.cookie_for(first)) is None
    assert access.session(access.cookie_for(last)) == Session()
    assert access.session("no cookie at all;;;==") is None


def test_two_servers_on_one_host_keep_their_own_cookies():
    one, other = Access(), Access()
    cookies = [a.cookie_for(a.exchange(a.link_token)).partition(";")[0] for a in (one, other)]
    sent = "; ".join(cookies)
    assert len({cookie.partition("=")[0] for cookie in cookies}) == 2
    assert one.session(sent) == other.session(sent) == Session()
    assert one.session(cookies[1]) is None
