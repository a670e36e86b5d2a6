"""Places the vertices of a directed graph in layers, for pictures. Pure; knows nothing
of topologies.

    edges -> ranks (longest path) -> lanes for edges that pass a rank -> order
    (barycentres) -> x (least squares)

Invariant: no two vertices overlap, and every edge goes down, except those that close a
cycle. The same graph has the same picture: no number is drawn at random, and ties
follow the given order of vertices.
Turned down: a layout engine (Graphviz is a program to install, and megabytes in a
page).
Source: Sugiyama, Tagawa, Toda: Methods for visual understanding of hierarchical system
structures (1981).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import (
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

SWEEPS = 12
LANE = 10.0
"""The width of an edge that passes a rank."""
_STRAIGHT = 4.0
"""The weight of lanes, relative to vertices, when vertices are placed straight below
their neighbours.
"""

Vertex: TypeAlias = str
Edge: TypeAlias = tuple[Vertex, Vertex]
Size: TypeAlias = tuple[float, float]
"""Width and height."""
_Neighbour: TypeAlias = tuple[Vertex, float, float]
"""The vertex at the other end of an edge, and the distances of the edge's ends from the
middles of both vertices.
"""


@dataclass(frozen=True, slots=True)
class Placed:
    """The positions of vertices and edges.

    Shape: `centres` of vertices. The route of an edge is the points that it passes
    between its ends, from start to end.
    """

    width: float
    height: float
    centres: Mapping[Vertex, tuple[float, float]]
    routes: Mapping[Edge, Sequence[tuple[float, float]]]


def ranks(
    vertices: Iterable[Vertex],
    edges: Iterable[Edge],
    *,
    near: bool = False,
) -> dict[Vertex, int]:
    """Return the rank of each vertex: below all vertices with an edge to it, except in
    a cycle.

    `near`: a vertex to which nothing leads is directly above the first that it leads
    to, instead of at the top.
    """
    below: dict[Vertex, list[Vertex]] = {vertex: [] for vertex in vertices}
    for start, end in _downwards(below, edges):
        below[start].append(end)
    order = _parents_first(below)
    found = dict.fromkeys(below, 0)
    for vertex in order:
        for child in below[vertex]:
            found[child] = max(found[child], found[vertex] + 1)
    if near:
        led_to = {child for children in below.values() for child in children}
        for vertex in order:
            if vertex not in led_to and below[vertex]:
                found[vertex] = min(found[child] for child in below[vertex]) - 1
    return found


def place(
    sizes: Mapping[Vertex, Size],
    edges: Iterable[Edge],
    rank: Mapping[Vertex, int],
    *,
    gap: Size,
    ports: Mapping[Edge, tuple[float, float]] | None = None,
) -> Placed:
    """Return the positions of the vertices.

    `gap`: the least distance between vertices beside and below each other. `ports`: how
    far from the middle of its start and of its end an edge begins and ends.
    """
    known = list(dict.fromkeys(edges))
    grid = _Grid(dict(sizes), [[] for _ in range(max(rank.values(), default=-1) + 1)])
    for vertex in sizes:
        grid.rows[rank[vertex]].append(vertex)
    lanes = {
        edge: grid.lanes(edge, rank, (ports or {}).get(edge, (0.0, 0.0)))
        for edge in known
        if edge[0] != edge[1]
    }
    grid.order()
    x = grid.across(gap[0])
    y, bottom = grid.down(gap[1])
    left = min((x[vertex] - size[0] / 2 for vertex, size in sizes.items()), default=0.0)
    centres = {vertex: (x[vertex] - left, y[vertex]) for vertex in grid.sizes}
    right = max(
        (centres[vertex][0] + size[0] / 2 for vertex, size in sizes.items()),
        default=0.0,
    )
    routes = {
        edge: [centres[lane] for lane in passed] for edge, passed in lanes.items()
    }
    return Placed(
        right,
        bottom,
        {vertex: centres[vertex] for vertex in sizes},
        routes,
    )


@dataclass(slots=True)
class _Grid:
    """The rows of a picture, from left to right: vertices, and lanes where edges pass a
    row.
    """

    sizes: dict[Vertex, Size]
    rows: list[list[Vertex]]
    above: dict[Vertex, list[_Neighbour]] = field(default_factory=dict)
    below: dict[Vertex, list[_Neighbour]] = field(default_factory=dict)

    def lanes(
        self,
        edge: Edge,
        rank: Mapping[Vertex, int],
        port: tuple[float, float],
    ) -> list[Vertex]:
        """Add a lane in each row that an edge passes; return them in the direction of
        the edge. `rank`: the row of each vertex; `port`: where the edge leaves its
        first vertex and meets its last.
        """
        upper, lower = sorted(edge, key=lambda vertex: rank[vertex])
        names = [
            f"{edge[0]}\0{edge[1]}\0{row}"
            for row in range(rank[upper] + 1, rank[lower])
        ]
        for name, row in zip(names, range(rank[upper] + 1, rank[lower]), strict=True):
            self.sizes[name] = (LANE, 0.0)
            self.rows[row].append(name)
        if rank[upper] < rank[lower]:
            first, last = port if upper == edge[0] else port[::-1]
            chain = [(upper, first), *((name, 0.0) for name in names), (lower, last)]
            for (one, from_), (next_, to) in pairwise(chain):
                self.below.setdefault(one, []).append((next_, from_, to))
                self.above.setdefault(next_, []).append((one, to, from_))
        return names if upper == edge[0] else names[::-1]

    def order(self) -> None:
        """Order rows by the positions of neighbours, down and up in turn; keep the
        order with the fewest crossings.
        """
        best = [list(row) for row in self.rows]
        fewest = self._crossings()
        for sweep in range(SWEEPS):
            beside, rows = (
                (self.above, self.rows)
                if sweep % 2 == 0
                else (self.below, self.rows[::-1])
            )
            for row in rows:
                at = {
                    vertex: place
                    for other in self.rows
                    for place, vertex in enumerate(other)
                }
                row.sort(
                    key=lambda vertex: _mean(
                        [
                            at[one] + self._share(one, port)
                            for one, _, port in beside.get(vertex, ())
                        ],
                        at[vertex],
                    )
                )
            if (crossings := self._crossings()) < fewest:
                best = [list(row) for row in self.rows]
                fewest = crossings
        self.rows = best

    def down(self, gap: float) -> tuple[dict[Vertex, float], float]:
        """Return the y of each vertex, and the y at which the last row ends."""
        y: dict[Vertex, float] = {}
        top = 0.0
        for row in self.rows:
            tall = max((self.sizes[vertex][1] for vertex in row), default=0.0)
            y.update(dict.fromkeys(row, top + tall / 2))
            top += tall + gap
        return y, max(0.0, top - gap)

    def across(self, gap: float) -> dict[Vertex, float]:
        """Return the x of each vertex: near its neighbours, in order, with gaps."""
        x: dict[Vertex, float] = {}
        for row in self.rows:
            x.update(zip(row, self._spaced(row, lambda _: 0.0, gap), strict=True))
        for sweep in range(SWEEPS):
            beside, rows = (
                (self.above, self.rows)
                if sweep % 2 == 0
                else (self.below, self.rows[::-1])
            )
            for row in rows:
                wanted = {
                    vertex: _mean(
                        [
                            x[one] + port - own
                            for one, own, port in beside.get(vertex, ())
                        ],
                        x[vertex],
                    )
                    for vertex in row
                }
                x.update(
                    zip(row, self._spaced(row, wanted.__getitem__, gap), strict=True)
                )
        return x

    def _spaced(
        self,
        row: Sequence[Vertex],
        wanted: Callable[[Vertex], float],
        gap: float,
    ) -> list[float]:
        """Return the x of each vertex of a row, with gaps and in order, as near as
        possible to the wanted positions (least squares).
        """
        shift = 0.0
        shifts = []
        for before, vertex in zip([None, *row], row, strict=False):
            if before is not None:
                shift += (self.sizes[before][0] + self.sizes[vertex][0]) / 2 + gap
            shifts.append(shift)
        blocks: list[tuple[float, float, int]] = []
        """Vertices that touch: the mean of their wanted positions, their weight, their
        number.
        """
        for vertex, shift in zip(row, shifts, strict=True):
            mean = wanted(vertex) - shift
            weight = _STRAIGHT if self.sizes[vertex][1] == 0 else 1.0
            count = 1
            while blocks and blocks[-1][0] >= mean:
                other, heavy, many = blocks.pop()
                mean = (mean * weight + other * heavy) / (weight + heavy)
                weight = weight + heavy
                count = count + many
            blocks.append((mean, weight, count))
        means = [mean for mean, _, count in blocks for _ in range(count)]
        return [mean + shift for mean, shift in zip(means, shifts, strict=True)]

    def _share(self, vertex: Vertex, port: float) -> float:
        """Return the position of a port within its vertex, from -0.5 to 0.5."""
        return port / max(self.sizes[vertex][0], LANE)

    def _crossings(self) -> int:
        count = 0
        for upper, lower in pairwise(self.rows):
            at = {vertex: place for place, vertex in enumerate(lower)}
            ends = [
                (place + self._share(vertex, own), at[one] + self._share(one, port))
                for place, vertex in enumerate(upper)
                for one, own, port in self.below.get(vertex, ())
            ]
            passed: list[float] = []  # where edges that begin further left end
            for _, end in sorted(ends):
                count += len(passed) - bisect_right(passed, end)
                insort(passed, end)
        return count


def _downwards(vertices: Iterable[Vertex], edges: Iterable[Edge]) -> list[Edge]:
    """Return the edges without self-loops, with each edge reversed that would close a
    cycle.
    """
    children: dict[Vertex, list[Vertex]] = {vertex: [] for vertex in vertices}
    for start, end in edges:
        if start != end:
            children[start].append(end)
    found: list[Edge] = []
    done: set[Vertex] = set()
    for root in children:
        path: dict[Vertex, int] = {}
        stack = [] if root in done else [root]
        while stack:
            vertex = stack[-1]
            at = path.setdefault(vertex, 0)
            if at == len(children[vertex]):
                stack.pop()
                del path[vertex]
                done.add(vertex)
                continue
            path[vertex] = at + 1
            child = children[vertex][at]
            found.append((child, vertex) if child in path else (vertex, child))
            if child not in path and child not in done:
                stack.append(child)
    return found


def _parents_first(below: Mapping[Vertex, Sequence[Vertex]]) -> list[Vertex]:
    waits = dict.fromkeys(below, 0)
    for children in below.values():
        for child in children:
            waits[child] += 1
    order = [vertex for vertex in below if not waits[vertex]]
    for vertex in order:
        for child in below[vertex]:
            waits[child] -= 1
            if not waits[child]:
                order.append(child)
    return order


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
