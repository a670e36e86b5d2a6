"""The layout of a topology as a picture: boxes and arrows. `svg` writes it as a file;
an instance's page shows it.

Topics are boxes; a source and a sink are the arrows from and to their topics. The
operators of a sub-topology are in a frame. An arrow names the counters of `/v1/status`
that count the records on it:

    from a topic                   what the sub-topology consumed
    to a topic                     what it produced
    below and above an operator    the same, if the operator forwards one record for each; else nothing

Invariant: a drawing depends on the topology alone, so all instances that run the same
topology have the same picture. Turned down: counting on each edge while records pass (a
statement for each record and operator), only to draw it.
Relies on: `layers` (where each box is).
"""

from __future__ import annotations

import re
from collections.abc import (
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from html import escape
from itertools import chain
from typing import Literal, TypeAlias

from coopstreams.topology.graph.join_nodes import StreamGlobalJoin, stores_of
from coopstreams.topology.graph.layers import (
    Edge,
    Placed,
    Size,
    place,
    ranks,
)
from coopstreams.topology.graph.nodes import (
    AsyncMap,
    Late,
    Map,
    MapValues,
    Merge,
    Node,
    Peek,
    Processing,
    SelectKey,
    Sink,
    Source,
    Split,
    StreamTableJoin,
    Structure,
    SubTopology,
    ToStream,
)
from coopstreams.topology.naming import changelog_topic, internal_topic

Counter: TypeAlias = tuple[Literal["consumed", "produced"], str, str]
"""A counter of the totals in `/v1/status`: its name, the sub-topology, the topic."""
Counters: TypeAlias = tuple[Counter, ...]
"""The counters whose sum is shown; empty: nothing is shown."""
Point: TypeAlias = tuple[float, float]

LINE = 17.0
"""The height of a line of text."""
LETTER = 7.3
"""The approximate width of a letter."""
RATE = 7
"""The room for a rate after the name of a store, in letters."""
PADDING = 12.0
LEAST_WIDTH = 72.0
GAP: Size = (28.0, 42.0)
PORT: Size = (16.0, 0.0)
"""The size of the point at which an arrow passes the border of a frame."""
TITLE = 8.0
"""The room for a frame's title, beside that of the first arrows."""
_GENERATED = re.compile(r"^K(STREAM|TABLE)-[A-Z-]+-\d{10}$|-repartition-filter$")
_ONE_FOR_ONE = (MapValues, Map, SelectKey, Peek, ToStream, Merge)


@dataclass(frozen=True, slots=True)
class Line:
    """A store in an operator's box.

    `reads`: whether the operator only looks the store up. `counts`: the counter of the
    store's changelog records.
    """

    store: str
    reads: bool
    counts: Counters = ()

    @property
    def text(self) -> str:
        """The text of the line."""
        return f"reads {self.store}" if self.reads else self.store


@dataclass(frozen=True, slots=True)
class Box:
    """A topic or an operator in the drawing. `id`: by which an `Arrow` names it.
    `lines`: its stores. `names`: the nodes whose drops and failures it shows. `x` and
    `y`: its upper left corner.
    """

    id: str
    kind: Literal["topic", "operator"]
    title: str
    subtitle: str
    lines: tuple[Line, ...]
    names: tuple[str, ...]
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Arrow:
    """An arrow between two boxes. `start` and `end` are the ids of the boxes. It passes
    each of its points vertically. `counts`: the counters whose rate it shows.
    """

    start: str
    end: str
    points: tuple[Point, ...]
    counts: Counters


@dataclass(frozen=True, slots=True)
class Frame:
    """The frame of a sub-topology, around its operators. `x` and `y`: its upper left
    corner.
    """

    subtopology: int
    title: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Drawing:
    """The picture of a topology: its size, its frames, boxes and arrows. Units: pixels."""

    width: float
    height: float
    frames: tuple[Frame, ...]
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


@dataclass(frozen=True, slots=True)
class _Content:
    """A box without its place: its text, its stores, and the nodes that it stands for."""

    kind: Literal["topic", "operator"]
    title: str
    subtitle: str
    lines: tuple[Line, ...]
    names: tuple[str, ...]

    @property
    def size(self) -> Size:
        letters = [
            len(self.title),
            len(self.subtitle),
            *(len(line.text) + RATE * bool(line.counts) for line in self.lines),
        ]
        width = max(LEAST_WIDTH, 2 * PADDING + LETTER * max(letters))
        return width, LINE * (1 + bool(self.subtitle) + len(self.lines)) + PADDING


def drawn(topology: Structure) -> Drawing:
    """Return the picture of a topology."""
    contents = _contents(topology)
    edges = _edges(topology)
    framed: dict[str, Placed] = {}
    parts: dict[str, SubTopology] = {}
    block_of: dict[str, str] = {}
    for part in topology.subtopologies:
        block = _block(part)
        block_of |= {_node(node.name): block for node in part.nodes}
        inside = _inside(part, contents, edges)
        if inside is not None:
            framed[block] = inside
            parts[block] = part
    outer = _edges_between(edges, block_of, contents)
    sizes: dict[str, Size] = {
        name: content.size for name, content in contents.items() if name not in block_of
    }
    sizes |= {block: _frame_size(part, framed[block]) for block, part in parts.items()}
    ports = {edge: _ports(framed, edge, ends) for edge, ends in outer.items()}
    whole = place(sizes, outer, ranks(sizes, outer, near=True), gap=GAP, ports=ports)
    corners = _corners(whole, framed)
    centres = dict(whole.centres)
    for block, inside in framed.items():
        left, top = corners[block]
        for name, (x, y) in inside.centres.items():
            centres[name] = (x + left, y + top)
    pen = _Pen(contents, block_of, framed, whole, corners, centres)
    return Drawing(
        width=whole.width + 2,
        height=whole.height + 2,
        frames=tuple(
            _frame(part, whole.centres[block], sizes[block])
            for block, part in parts.items()
        ),
        boxes=_boxes(contents, centres),
        arrows=tuple(
            Arrow(*edge, pen.points(edge), counts) for edge, counts in edges.items()
        ),
    )


def _edges_between(
    edges: Iterable[Edge],
    block_of: Mapping[str, str],
    contents: Mapping[str, _Content],
) -> dict[Edge, Edge]:
    """Return the edges of the outer drawing, in which each frame (sub-topology) is a
    single box. Each is mapped to the edge between two boxes whose arrow it places.

    `block_of`: the frame of each box within a frame. `contents`: all boxes by name.
    Several edges between the same two frames become one, which stands for the last of
    them. An edge within a frame is left out. A topic outside of the frames may have an
    edge to itself.
    """
    found: dict[Edge, Edge] = {}
    for start, end in edges:
        outer = (block_of.get(start, start), block_of.get(end, end))
        if outer[0] != outer[1] or outer[0] in contents:
            found[outer] = (start, end)
    return found


def _corners(whole: Placed, framed: Mapping[str, Placed]) -> dict[str, Point]:
    """Return the upper left corner of the inside of each frame. `whole`: where the
    frames are; `framed`: what is in each.
    """
    corners: dict[str, Point] = {}
    for block, inside in framed.items():
        x, y = whole.centres[block]
        corners[block] = (x - inside.width / 2, y + (TITLE - inside.height) / 2)
    return corners


def _title(part: SubTopology) -> str:
    return f"Sub-topology {part.id}" + (
        "" if part.divisible else ", one task a partition"
    )


def _frame(
    part: SubTopology,
    centre: Point,
    size: Size,
) -> Frame:
    return Frame(
        part.id,
        _title(part),
        centre[0] - size[0] / 2,
        centre[1] - size[1] / 2,
        *size,
    )


def _frame_size(part: SubTopology, inside: Placed) -> Size:
    # Wide enough for an arrow into the middle to miss the title.
    least = 2 * LETTER * len(_title(part))
    return max(least, inside.width) + 2 * PADDING, inside.height + TITLE + 2 * PADDING


def _ports(
    framed: Mapping[str, Placed],
    edge: Edge,
    ends: Edge,
) -> tuple[float, float]:
    """Return, for the frames in which an arrow begins and ends, how far from the middle
    of the border the arrow passes it. Units: pixels.

    `edge`: the two frames, or boxes outside of frames. `ends`: the boxes between which
    the arrow goes.
    """
    return (
        _port(framed, edge[0], ends[0], _exit(ends[1])),
        _port(framed, edge[1], ends[1], _entry(ends[0])),
    )


def _port(
    framed: Mapping[str, Placed],
    block: str,
    name: str,
    port: str,
) -> float:
    """Return how far from the middle of a frame an arrow passes its border; 0 for a box
    that is in no frame.

    `block`: the frame. `name`: the box. `port`: the id of the point at the border.
    Units: pixels.
    """
    if block == name:
        return 0.0
    inside = framed[block]
    return inside.centres[port][0] - inside.width / 2


def _boxes(
    contents: Mapping[str, _Content],
    centres: Mapping[str, Point],
) -> tuple[Box, ...]:
    return tuple(
        _box(name, content, centres[name])
        for name, content in contents.items()
        if name in centres
    )


def _box(
    name: str,
    content: _Content,
    centre: Point,
) -> Box:
    """Return a box with this content around a centre."""
    width, height = content.size
    x = centre[0] - width / 2
    y = centre[1] - height / 2
    return Box(
        name,
        content.kind,
        content.title,
        content.subtitle,
        content.lines,
        content.names,
        x,
        y,
        width,
        height,
    )


@dataclass(frozen=True, slots=True)
class _Pen:
    """Joins the parts of an arrow's route inside and outside of frames."""

    contents: Mapping[str, _Content]
    block_of: Mapping[str, str]
    framed: Mapping[str, Placed]
    whole: Placed
    corners: Mapping[str, Point]
    centres: Mapping[str, Point]

    def points(self, edge: Edge) -> tuple[Point, ...]:
        start, end = edge
        inner = self.block_of.get(start)
        outer = self.block_of.get(end)
        points = [self._end(start, below=True)]
        if inner is not None and inner == outer:
            points += self._within(inner, edge)
        else:
            if inner is not None:
                points += [
                    *self._within(inner, (start, _exit(end))),
                    self._at(inner, _exit(end)),
                ]
            points += self.whole.routes.get((inner or start, outer or end), ())
            if outer is not None:
                points += [
                    self._at(outer, _entry(start)),
                    *self._within(outer, (_entry(start), end)),
                ]
        return (*points, self._end(end, below=False))

    def _end(self, name: str, *, below: bool) -> Point:
        x, y = self.centres[name]
        half = self.contents[name].size[1] / 2
        return x, y + half if below else y - half

    def _within(self, block: str, edge: Edge) -> list[Point]:
        return [
            self._outside(block, at) for at in self.framed[block].routes.get(edge, ())
        ]

    def _at(self, block: str, port: str) -> Point:
        return self._outside(block, self.framed[block].centres[port])

    def _outside(self, block: str, at: Point) -> Point:
        left, top = self.corners[block]
        return at[0] + left, at[1] + top


def _contents(topology: Structure) -> dict[str, _Content]:
    """Return the content of each box, by its id."""
    topics: dict[str, list[str]] = {}
    operators: dict[str, _Content] = {}
    made = {store.name for store in topology.stores}
    for part in topology.subtopologies:
        for node in part.nodes:
            for topic in _topics_of(node):
                topics.setdefault(topic, []).append(node.name)
            if not isinstance(node, Source | Sink):
                lines = tuple(_lines(topology, part, node, made))
                subtitle = "" if _GENERATED.search(node.name) else node.name
                operators[_node(node.name)] = _Content(
                    "operator",
                    _words(node),
                    subtitle,
                    lines,
                    (node.name,),
                )
    for table in topology.global_tables:
        topics.setdefault(table.topic, [])
        lines = (Line(table.store.name, reads=False),)
        operators[_global(table.store.name)] = _Content(
            "operator",
            "global table",
            "",
            lines,
            (table.store.name,),
        )
    internal = {topic.name for topic in topology.internal_topics}
    prefix = internal_topic(topology.application_id, "")
    return {
        _topic(topic): _Content(
            "topic",
            topic.removeprefix(prefix) if topic in internal else topic,
            "",
            (),
            tuple(nodes),
        )
        for topic, nodes in topics.items()
    } | operators


def _lines(
    topology: Structure,
    part: SubTopology,
    node: Node,
    made: set[str],
) -> Iterator[Line]:
    """Yield the lines about stores in a node's box. `made`: the stores that nodes here
    write.
    """
    for store in stores_of(node):
        if store.name in made:
            changelog = changelog_topic(topology.application_id, store.name)
            yield Line(
                store.name,
                False,
                (("produced", str(part.id), changelog),) if store.logged else (),
            )
    if isinstance(node, StreamTableJoin | StreamGlobalJoin):
        yield Line(node.store.name, reads=True)
    elif isinstance(node, Processing):
        own = {store.name for store in node.stores}
        yield from (
            Line(name, reads=name not in made)
            for name in node.store_names
            if name not in own
        )


def _edges(topology: Structure) -> dict[Edge, Counters]:
    """Return the arrows, each with the counters of the records on it."""
    found: dict[Edge, Counters] = {}
    for part in topology.subtopologies:
        nodes = {node.name: node for node in part.nodes}
        passes = _passes(part)
        for node in part.nodes:
            for parent in node.parents:
                above = nodes[parent]
                for start in _starts(above):
                    counts = passes[parent, node.name]
                    if _reads_topics_by_name(above):
                        topic = start.removeprefix(_topic(""))
                        counts = (("consumed", str(part.id), topic),)
                    for end in _ends(node):
                        found[start, end] = found.get((start, end), ()) or counts
    for table in topology.global_tables:
        found[_topic(table.topic), _global(table.store.name)] = ()
    return found


def _starts(above: Node) -> list[str]:
    """Return the boxes at which the arrows from a node begin: the topics of a source,
    or the node.
    """
    if isinstance(above, Source):
        return [_topic(topic) for topic in _topics_of(above)]
    return [_node(above.name)]


def _ends(node: Node) -> list[str]:
    """Return the boxes at which the arrows to a node end: the topic of a sink, or the
    node.
    """
    if isinstance(node, Sink):
        return [_topic(topic) for topic in _topics_of(node)]
    return [_node(node.name)]


def _reads_topics_by_name(node: Node) -> bool:
    """Whether a node is a source of several named topics, so that the records of each
    topic are counted separately.
    """
    return isinstance(node, Source) and node.pattern is None and len(node.topics) > 1


def _passes(part: SubTopology) -> dict[Edge, Counters]:
    """Return the counters on the edge from each node to each of its children."""
    writers: dict[str, int] = {}
    children: dict[str, list[Node]] = {node.name: [] for node in part.nodes}
    for node in part.nodes:
        if isinstance(node, Sink):
            writers[node.topic] = writers.get(node.topic, 0) + len(node.parents)
        for parent in node.parents:
            children[parent].append(node)
    out = _counted_above(part)
    for node in reversed(part.nodes):
        if not out.get(node.name) and not isinstance(node, Split | Processing):
            below = _known_below(part, node, children[node.name], out, writers)
            out[node.name] = next(below, ())
    found: dict[Edge, Counters] = {}
    for node in part.nodes:
        for child in children[node.name]:
            found[node.name, child.name] = _counts(part, node, child, out, writers)
    return found


def _counted_above(part: SubTopology) -> dict[str, Counters]:
    """Return, for each node that forwards one record for each consumed record, the
    counters of the sources above it.
    """
    out: dict[str, Counters] = {}
    for node in part.nodes:
        if isinstance(node, Source):
            out[node.name] = tuple(
                ("consumed", str(part.id), topic) for topic in node.topics
            )
        elif _one_for_one(node):
            above = [out.get(parent, ()) for parent in node.parents]
            known = all(above)
            out[node.name] = tuple(chain.from_iterable(above)) if known else ()
    return out


def _counts(
    part: SubTopology,
    node: Node,
    child: Node,
    out: Mapping[str, Counters],
    writers: Mapping[str, int],
) -> Counters:
    if isinstance(child, Sink) and writers[child.topic] == 1:
        return (("produced", str(part.id), child.topic),)
    # Only some of the records take this edge.
    if isinstance(child, Late) or isinstance(node, Split):
        return ()
    return out.get(node.name, ())


def _known_below(
    part: SubTopology,
    node: Node,
    children: Sequence[Node],
    out: Mapping[str, Counters],
    writers: Mapping[str, int],
) -> Iterator[Counters]:
    """Yield the counters of each child that counts its records; each counts all records
    that the node forwards. `out`: the known counters of what nodes forward; `writers`:
    how many sinks a topic has.
    """
    for child in children:
        if isinstance(child, Sink) and writers[child.topic] == 1:
            yield (("produced", str(part.id), child.topic),)
        elif (
            _one_for_one(child)
            and child.parents == (node.name,)
            and out.get(child.name)
        ):
            yield out[child.name]


def _one_for_one(node: Node) -> bool:
    """Whether a node forwards one record for each record."""
    return isinstance(node, _ONE_FOR_ONE) or (
        isinstance(node, AsyncMap) and not node.flat
    )


def _inside(
    part: SubTopology,
    contents: Mapping[str, _Content],
    edges: Iterable[Edge],
) -> Placed | None:
    """Return the places of a sub-topology's operators in its frame, and of the ports to
    its topics; None if it has no operators.
    """
    names = [_node(node.name) for node in part.nodes]
    sizes: dict[str, Size] = {
        name: contents[name].size for name in names if name in contents
    }
    own = set(sizes)
    if not own:
        return None
    inner: list[Edge] = []
    exits = set()
    for start, end in edges:
        if start not in own and end not in own:
            continue
        first = start
        if start not in own:
            first = _entry(start)
            sizes[first] = PORT
        last = end
        if end not in own:
            last = _exit(end)
            sizes[last] = PORT
            exits.add(last)
        inner.append((first, last))
    rank = ranks(sizes, inner)
    bottom = max(rank.values())
    rank |= dict.fromkeys(exits, bottom)
    return place(sizes, inner, rank, gap=GAP)


def _words(node: Node) -> str:
    """Return the operator in words: `MapValues` is `map values`."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", type(node).__name__).lower()


def _topics_of(node: Node) -> Sequence[str]:
    if isinstance(node, Source):
        return node.topics if node.pattern is None else (node.pattern.pattern,)
    return (node.topic,) if isinstance(node, Sink) else ()


def _topic(name: str) -> str:
    return f"topic:{name}"


def _node(name: str) -> str:
    return f"node:{name}"


def _global(name: str) -> str:
    return f"global:{name}"


def _entry(name: str) -> str:
    return f"entry:{name}"


def _exit(name: str) -> str:
    return f"exit:{name}"


def _block(part: SubTopology) -> str:
    return f"block:{part.id}"


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
    """Return the drawing as the text of an SVG file."""
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
            *(_svg_rectangle("frame", frame, 8) for frame in drawing.frames),
            *(
                f'<path d="{curve(arrow.points)}" marker-end="url(#tip)"/>'
                for arrow in drawing.arrows
            ),
            *(
                _svg_text(
                    "soft title",
                    "start",
                    frame.x + PADDING,
                    frame.y + 20,
                    frame.title,
                )
                for frame in drawing.frames
            ),
            *map(_svg_box, drawing.boxes),
            "</svg>\n",
        ]
    )


def curve(points: tuple[Point, ...]) -> str:
    """Return the SVG path through these points. It passes each point vertically."""
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


def _svg_box(box: Box) -> str:
    texts = [(box.title, "name"), *([(box.subtitle, "soft")] if box.subtitle else [])]
    texts += [(line.text, "soft") for line in box.lines]
    x = box.x + box.width / 2
    top = box.y + PADDING / 2 + LINE - 5
    lines = [
        _svg_text(style, "middle", x, top + LINE * number, text)
        for number, (text, style) in enumerate(texts)
    ]
    rectangle = _svg_rectangle(
        box.kind,
        box,
        box.height / 2 if box.kind == "topic" else 5,
    )
    return "\n".join(
        [
            f"<g><title>{escape(box.id.partition(':')[2])}</title>{rectangle}",
            *lines,
            "</g>",
        ]
    )


def _svg_rectangle(
    style: str,
    at: Box | Frame,
    radius: float,
) -> str:
    place = (
        f'x="{at.x:.1f}" y="{at.y:.1f}" width="{at.width:.1f}" height="{at.height:.1f}"'
    )
    return f'<rect class="{style}" {place} rx="{radius:.1f}"/>'


def _svg_text(
    style: str,
    anchor: str,
    x: float,
    y: float,
    text: str,
) -> str:
    return f'<text class="{style}" text-anchor="{anchor}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
