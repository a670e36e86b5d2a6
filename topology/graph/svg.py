"""A drawing of a topology as an SVG file, which browsers show in the reader's colours,
light or dark.
"""

from __future__ import annotations

from html import escape

from coopstreams.topology.graph.drawing import LINE, PADDING, Box, Drawing, Frame, Point

MARGIN = 16.0
_STYLE = """
  svg { font: 13px system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; background: #fcfcfa }
  text { fill: #1d1f23 } .soft { fill: #6a6f78; font-size: 12px }
  .frame { fill: #f3f4f1 } .title { paint-order: stroke; stroke: #f3f4f1; stroke-width: 6 }
  .topic { fill: #dfe8fb } .operator { fill: #fcfcfa; stroke: #d3d5d0 }
  path { fill: none; stroke: #8b9099; stroke-width: 1.25 } #tip path { fill: #8b9099; stroke: none }
  @media (prefers-color-scheme: dark) {
    svg { background: #14161a } text { fill: #e6e7e9 } .soft { fill: #989da6 }
    .frame { fill: #1c1f25 } .title { stroke: #1c1f25 }
    .topic { fill: #26375c } .operator { fill: #14161a; stroke: #3a3f48 }
  }
"""


def svg(drawing: Drawing, title: str) -> str:
    """Return the file."""
    width = drawing.width + 2 * MARGIN
    height = drawing.height + 2 * MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="{-MARGIN:.0f} {-MARGIN:.0f} {width:.0f} {height:.0f}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0.5L8 4L0 7.5Z"/></marker></defs>',
            *(_rectangle("frame", frame, 8) for frame in drawing.frames),
            *(
                f'<path d="{curve(arrow.points)}" marker-end="url(#tip)"/>'
                for arrow in drawing.arrows
            ),
            *(
                _text(
                    "soft title", "start", frame.x + PADDING, frame.y + 20, frame.title
                )
                for frame in drawing.frames
            ),
            *map(_box, drawing.boxes),
            "</svg>\n",
        ]
    )


def curve(points: tuple[Point, ...]) -> str:
    """Return the path through these points, each of which it passes vertically."""
    (x, y), *rest = points
    parts = [f"M{x:.1f} {y:.1f}"]
    for to_x, to_y in rest:
        middle = (y + to_y) / 2
        parts.append(
            f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
        )
        x = to_x
        y = to_y
    return "".join(parts)


def _box(box: Box) -> str:
    texts = [(box.title, "name"), *([(box.subtitle, "soft")] if box.subtitle else [])]
    texts += [(line.text, "soft") for line in box.lines]
    x = box.x + box.width / 2
    top = box.y + PADDING / 2 + LINE - 5
    lines = [
        _text(style, "middle", x, top + LINE * number, text)
        for number, (text, style) in enumerate(texts)
    ]
    rectangle = _rectangle(box.kind, box, box.height / 2 if box.kind == "topic" else 5)
    return "\n".join(
        [
            f"<g><title>{escape(box.id.partition(':')[2])}</title>{rectangle}",
            *lines,
            "</g>",
        ]
    )


def _rectangle(style: str, at: Box | Frame, radius: float) -> str:
    place = (
        f'x="{at.x:.1f}" y="{at.y:.1f}" width="{at.width:.1f}" height="{at.height:.1f}"'
    )
    return f'<rect class="{style}" {place} rx="{radius:.1f}"/>'


def _text(style: str, anchor: str, x: float, y: float, text: str) -> str:
    return f'<text class="{style}" text-anchor="{anchor}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
