"""Hooks of MkDocs: files beside docs/ that its pages link to (results of benchmarks, recipes' own
pages, README) become pages of the site under `repository/`, and links are turned that way."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(!?\[[^\]]*\])\(([^)#\s]+)(#[^)\s]*)?\)")
_FOLDERS = ("benchmarks", "src/phalanx/recipes")
_SINGLE = ("README.md", "README.zh-CN.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
_HIDDEN = {".venv", ".venv-peers", ".venv-detection"}


def _outside() -> list[str]:
    """Pages beside docs/, by their path in the repository."""
    found = [name for name in _SINGLE if (ROOT / name).is_file()]
    for folder in _FOLDERS:
        found += [
            path.relative_to(ROOT).as_posix()
            for path in sorted((ROOT / folder).rglob("*.md"))
            if not _HIDDEN & set(path.parts)
        ]
    return found


def on_files(files: Files, config: Any) -> Files:
    for name in _outside():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, f"repository/{name}", content=text))
    results = sorted((ROOT / "benchmarks" / "results").glob("*.md"), reverse=True)
    listed = "".join(f"- [{path.stem}]({path.name})\n" for path in results)
    content = f"# Results\n\nEach with its date, machine, versions and command.\n\n{listed}"
    name = "repository/benchmarks/results/index.md"
    files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    place = page.file.src_uri
    real = place.removeprefix("repository/") if place.startswith("repository/") else f"docs/{place}"

    def turned(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return link[0]
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(real), target))
        inside = wanted.startswith("docs/")
        uri = wanted.removeprefix("docs/") if inside else f"repository/{wanted}"
        for known in (uri, f"{uri}/index.md", f"{uri}/README.md"):
            if files.get_file_from_path(known) is not None:
                relative = posixpath.relpath(known, posixpath.dirname(place) or ".")
                return f"{text}({relative}{anchor})"
        if not inside and (ROOT / wanted).exists():  # code: named, not linked
            return text.lstrip("!").strip("[]")
        return link[0]  # --strict names it

    return _LINK.sub(turned, markdown)
