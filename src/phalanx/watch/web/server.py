"""The server of the pages: bound first, so that the printed address is true; read-only."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, PlainTextResponse, Response
from nicegui import ui

from phalanx.errors import ExitCode, Finding, UserError
from phalanx.watch.prometheus import CONTENT_TYPE, render_metrics
from phalanx.watch.watched_run import WatchedRun
from phalanx.watch.web.access import Access, Guard, Session
from phalanx.watch.web.compare_page import MOST_RUNS, ComparePage
from phalanx.watch.web.library import Library, run_id
from phalanx.watch.web.list_page import ListPage
from phalanx.watch.web.run_figures import Settings, make_figures, media_file
from phalanx.watch.web.run_page import RunPage
from phalanx.watch.web.theme import SMOOTHING

_OPENED_FOR_METRICS = 20


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; 0 is any free port."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        raise UserError(
            Finding(
                slug="watch-port",
                what=f"{host} port {port} cannot be listened on: {error.strerror or error}",
                why=f"--host {host} --port {port}",
                fix="phalanx watch --web --port 0",
            ),
            exit_code=ExitCode.LAUNCH,
        ) from error
    return listening


def serve(library: Library, access: Access, listening: socket.socket) -> None:
    """Answer until the command is interrupted."""
    config = uvicorn.Config(
        Guard(make_app(library, access), access),
        log_level="error",
        access_log=False,  # it would hold the links
        timeout_graceful_shutdown=2,
        lifespan="on",
    )
    uvicorn.Server(config).run(sockets=[listening])


def make_app(library: Library, access: Access) -> FastAPI:
    """Pages, pictures and figures for Prometheus."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/metrics")
    def metrics() -> Response:
        summaries, _ = library.summaries()
        running = [one for one in summaries if one.status == "running"][:_OPENED_FOR_METRICS]
        text = render_metrics(summaries, _watched(library, [one.path for one in running]))
        return PlainTextResponse(text, media_type=CONTENT_TYPE)

    @app.get("/media/{identifier}/{number}")
    def media(identifier: str, number: int) -> Response:
        opened = library.open(identifier)
        found = opened.read(lambda w: media_file(w, number)) if opened is not None else None
        if found is None:
            return PlainTextResponse("no such picture", status_code=404)
        return FileResponse(found[0], media_type=found[1])

    def session_of(request: Request) -> Session:
        return access.session(request.headers.get("cookie", "")) or Session()

    def page(path: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return ui.page(path, response_timeout=30)

    @page("/")
    async def list_page(request: Request) -> None:
        await ListPage(library, session_of(request)).refresh()

    @page("/run/{identifier}")
    async def run_page(request: Request, identifier: str) -> None:
        opened = await asyncio.to_thread(library.open, identifier)
        if opened is None:
            _nothing_here("no such run")
            return
        first = Settings(smoothing=SMOOTHING)
        figures = await asyncio.to_thread(opened.read, lambda w: make_figures(w, first))
        RunPage(opened, figures, session_of(request))

    @page("/compare")
    async def compare_page(request: Request) -> None:
        wanted = list(dict.fromkeys(request.query_params.getlist("run")))[:MOST_RUNS]
        opened = [found for name in wanted if (found := library.open(name)) is not None]
        if len(opened) < 2:
            _nothing_here("a comparison needs two runs of the list")
            return
        await ComparePage(opened, session_of(request)).refresh()

    def _nothing_here(text: str) -> None:
        ui.label(text).classes("text-h6 q-pa-lg")
        ui.link("all runs", "/").classes("q-px-lg")

    ui.run_with(
        app,
        title="Phalanx",
        favicon="🛡",
        dark=None,
        show_welcome_message=False,
        reconnect_timeout=20.0,
    )
    return app


def _watched(library: Library, paths: list[str]) -> list[WatchedRun]:
    found = []
    for path in paths:
        opened = library.open(run_id(Path(path)))
        if opened is not None:
            found.append(opened.read(lambda watched: watched))
    return found
