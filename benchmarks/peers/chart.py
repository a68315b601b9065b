"""Bars as SVG, without a library; colours that can be told apart on a light and on a dark page."""

from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, BAR, GAP = 810, 320, 90, 18, 6
FILLS = {"peer": "#8c959f", "phalanx": "#2da44e", "limit": "none"}

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f }
.title { font-weight: 600; font-size: 14px }
.source { font-size: 11px; fill: #6e7781 }
.phalanx { font-weight: 600 }
.edge { stroke: #6e7781; stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .source { fill: #8d96a0 }
}
"""


def draw_chart(panels, *, source):
    """`panels`: (title, [(label, value, kind)]); each has a scale of its own."""
    body, top = [], 24
    for title, bars in panels:
        body.append(_text(12, top, title, "title"))
        top += 14
        largest = max(value for _, value, _ in bars)
        for label, value, kind in bars:
            length = max(1, round((WIDTH - LEFT - RIGHT) * value / largest))
            edge = ' class="edge"' if kind == "limit" else ""
            middle = top + BAR - 5
            body.append(_text(LEFT - 8, middle, label, kind, anchor="end"))
            body.append(
                f'<rect x="{LEFT}" y="{top}" width="{length}" height="{BAR}" rx="2" '
                f'fill="{FILLS[kind]}"{edge}/>'
            )
            body.append(_text(LEFT + length + 6, middle, f"{value:,.0f}", kind))
            top += BAR + GAP
        top += 30
    body.append(_text(12, top - 12, f"samples per second; {source}", "source"))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" '
        f'role="img" aria-label="Samples per second of Phalanx and its peers">'
    )
    return "\n".join([head, f"<style>{STYLE}</style>", *body, "</svg>"]) + "\n"


def _text(x, y, text, kind, *, anchor="start"):
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'
