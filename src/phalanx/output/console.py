"""The only place that prints: data to stdout, messages to stderr, one renderer for Findings."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from phalanx.errors import Finding
from phalanx.output.language import label, translate

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_STYLE = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_PIPE_WIDTH = 120  # a pipe has no width of its own; rich would cut tables at 80


@cache
def stdout() -> Console:
    """Where data goes: the answer to the command."""
    return _console(stderr=False)


@cache
def stderr() -> Console:
    """Where messages go: findings and progress."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    stream = _Lasting("stderr" if stderr else "stdout")
    interactive = stream.isatty() and not os.environ.get("CI")
    return Console(
        file=cast("IO[str]", stream),
        highlight=False,
        force_terminal=interactive,
        force_interactive=interactive,
        width=None if stream.isatty() else _PIPE_WIDTH,
        soft_wrap=not stream.isatty(),
    )


class _Lasting:
    """A stream that is written to after its terminal was closed or its reader has gone (`| head`)
    loses the words; the training goes on, and logs and events have them."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def _stream(self) -> IO[str]:
        """Whatever is that stream now: notebooks and tests put their own in its place."""
        stream = getattr(sys, self._name)
        # While something moves, rich puts its own in that place, which writes to the first one.
        first: IO[str] = getattr(stream, "rich_proxied_file", stream)
        return first

    def __getattr__(self, name: str) -> Any:
        if name == "rich_proxied_file":  # rich would write past us
            raise AttributeError(name)
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._lose()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._lose()

    def _lose(self) -> None:
        with suppress(OSError), Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())


def write_to(path: Path) -> None:
    """Send all that is printed from here on to the end of a file, native code's output too."""
    sys.stdout.flush()
    sys.stderr.flush()
    with path.open("ab", buffering=0) as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    stdout.cache_clear()  # they may have been a terminal's
    stderr.cache_clear()


def say(text: str = "", *, style: str | None = None) -> None:
    """Print one line of the answer; `text` is literal, brackets included."""
    stdout().print(translate(text), style=style, markup=False)


def tell(text: str) -> None:
    """Print one line about what is going on, beside the answer."""
    stderr().print(translate(text), markup=False)


def pass_on(text: str, *, is_update: bool = False) -> None:
    """Print what another program printed, as it is. An update is written over by what comes next,
    on a terminal."""
    is_terminal = stdout().is_terminal
    start = "\r\x1b[2K" if is_terminal else ""
    if is_update and is_terminal:
        text = text[: stdout().width - 1]  # of two lines only the second would be written over
    stream = _Lasting("stdout")
    stream.write(f"{start}{text}" + ("" if is_update and is_terminal else "\n"))
    stream.flush()


def say_next(*steps: tuple[str, str]) -> None:
    """Print commands to type next, each with its meaning."""
    say("next:")
    for command, meaning in steps:
        say_command(command, meaning)


def say_command(command: str, meaning: str) -> None:
    """Print a command to type, and under it what it does."""
    say(f"  {command}")
    say(f"      {meaning}", style="dim")


def say_json(data: Any) -> None:
    """Print data for another program."""
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")


def say_text(text: str) -> None:
    """Print a file as it is, neither wrapped nor styled."""
    sys.stdout.write(text)


def show_findings(findings: Iterable[Finding]) -> None:
    """Print each Finding as slug, what, why, fix."""
    from rich.text import Text

    for finding in findings:
        head = Text(f"{label(finding.severity)}[{finding.slug}]", style=_STYLE[finding.severity])
        console = stderr()
        console.print(head + Text(f": {translate(finding.what)}", style="default not bold"))
        console.print(Text(f"  {label('why')}: {translate(finding.why)}"))
        console.print(Text(f"  {label('fix')}: {translate(finding.fix)}"))


def table(
    rows: Iterable[Sequence[str]],
    *,
    header: Sequence[str] | None = None,
    title: str | None = None,
    right: Sequence[int] = (),
) -> None:
    """Print aligned columns; `right` names the columns that hold numbers."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = Table(
        title=label(title) if title else None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD if header else None,
        show_header=header is not None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
    )
    rows = list(rows)
    for index in range(len(header) if header else max((len(row) for row in rows), default=0)):
        grid.add_column(
            label(header[index]) if header else "", justify="right" if index in right else "left"
        )
    for row in rows:
        name, *cells = row
        grid.add_row(Text(label(name)), *(Text(translate(cell)) for cell in cells))
    console = stdout()
    with console.capture() as captured:
        console.print(grid)
    for line in captured.get().splitlines():  # rich pads every line to the table's width
        console.file.write(line.rstrip() + "\n")


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Show that something is going on, on a terminal only; call what it gives with what is next."""
    console = stderr()
    if not console.is_interactive:
        yield lambda text: None
        return
    with console.status(translate(what)) as status:
        yield lambda text: status.update(translate(text))


Draw = Callable[[int, int], "RenderableType"]
"""Makes a picture for so many columns and lines."""


def draw(picture: Draw) -> None:
    """Print a picture as wide as the terminal; in a pipe as wide as COLUMNS says."""
    console = stdout()
    is_given = not console.is_terminal and os.environ.get("COLUMNS", "").isdigit()
    width = int(os.environ["COLUMNS"]) if is_given else console.width
    with console.capture() as captured:
        console.print(picture(width, console.height), width=width, soft_wrap=False)
    for line in captured.get().splitlines():  # rich pads lines of tables
        console.file.write(line.rstrip() + "\n")


@contextmanager
def live(picture: Draw) -> Iterator[Callable[[], None]]:
    """A picture that is drawn anew in its place whenever what this gives is called; the last one
    stays. Ctrl-C ends it."""
    from rich.live import Live

    console = stdout()

    def make() -> RenderableType:
        return picture(console.width, console.height)

    with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False) as shown:
        yield lambda: shown.update(make(), refresh=True)
