"""`BranchedKStream`: a stream that is split. Each record goes only to the first branch
whose predicate is true.

Relies on: `graph.graph` (`Flow`), `naming` (one name for each branch, in this order).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from coopstreams.topology.dsl.function_checks import checked
from coopstreams.topology.errors import TopologyError
from coopstreams.topology.graph.graph import Flow
from coopstreams.topology.graph.nodes import Branch, Function, Split
from coopstreams.topology.naming import check_name

if TYPE_CHECKING:
    from coopstreams.topology.dsl.kstream import (
        KStream,
    )  # a stream is split and its branches are streams

K = TypeVar("K")
V = TypeVar("V")


class BranchedKStream(Generic[K, V]):
    """A stream with the branches added so far, made by `KStream.split`.

    `default_branch` or `no_default_branch` ends the split and returns the streams. A
    branch without `name=` is called "1", "2", ...; the default one "0".
    """

    __slots__ = ("_flow", "_name", "_names", "_predicates")

    def __init__(self, flow: Flow, name: str | None) -> None:
        self._flow = flow
        self._name = name
        self._names: list[str] = []
        self._predicates: list[Function] = []

    def branch(
        self,
        predicate: Callable[[K, V], bool],
        *,
        name: str | None = None,
    ) -> BranchedKStream[K, V]:
        """Add a branch for the records for which `predicate(key, value)` is true and no
        earlier predicate is.
        """
        self._predicates.append(checked("branch", predicate, "key", "value"))
        self._add(name or str(len(self._predicates)))
        return self

    def default_branch(self, *, name: str | None = None) -> dict[str, KStream[K, V]]:
        """Return the branches by name, with one more for the records for which no
        predicate is true.
        """
        self._add(name or "0")
        return self._split()

    def no_default_branch(self) -> dict[str, KStream[K, V]]:
        """Return the branches by name. A record for which no predicate is true is
        dropped.

        Raises:
            TopologyError: there is no branch; call `branch(predicate, name=...)`
            before.
        """
        if not self._predicates:
            raise TopologyError(
                "split(): there is no branch. Write .split().branch(predicate, name=...).default_branch()."
            )
        return self._split()

    def _add(self, name: str) -> None:
        if check_name(name, "the name of the branch") in self._names:
            raise TopologyError(f'split(): two branches are named "{name}"')
        self._names.append(name)

    def _split(self) -> dict[str, KStream[K, V]]:
        from coopstreams.topology.dsl.kstream import KStream

        graph = self._flow.graph
        split = self._flow.then(
            "KSTREAM-BRANCH-",
            self._name,
            partial(Split, predicates=tuple(self._predicates)),
        )
        branches = {}
        for number, name in enumerate(self._names):
            node = Branch(
                name=graph.names.take(split.node + name),
                parents=(split.node,),
                number=number,
            )
            branches[name] = KStream[K, V](replace(split, node=graph.attach(node)))
        return branches
