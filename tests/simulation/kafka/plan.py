"""Faults as values: which request meets which fault is decided by a *plan*, outside of the cluster that obeys it.

A plan is asked about each request on its way (`Call`), in the order in which they are made, and answers with a fault or
None. Nothing else chooses: a run with the same plan, the same seed and the same steps is the same run.

    Script   the n-th request of a kind, to a place, of a client
    Chance   each request, with a probability for each fault, from a seeded generator

What befalls brokers and topics (`Cluster.stop`, `pause`, `move`, `remake`, ...) is no answer to a request: `Cluster.at`
does it at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal, NamedTuple, Protocol, TypeAlias

from coopstreams.topology.columns import TopicPartition

Kind = Literal[
    "append", "produce", "fetch", "end offset", "start offset", "delete records",
    "take over", "send offsets", "commit", "abort", "marker", "end transaction", "list transactions",
    "join", "sync", "heartbeat", "commit offsets", "fetch offsets", "topics", "views",
    "create topics", "delete topics", "describe topic",
]  # fmt: skip
"""What is asked. `append` is no request yet: a record is given to the client (`Early`). `marker` is the coordinator's,
to a place.
"""

Where: TypeAlias = TopicPartition | str
"""A partition, or the name of a topic, a group or a transactional id."""


class Call(NamedTuple):
    """A request on its way. `by`: the client, or the transactional id whose marker it is."""

    kind: Kind
    where: Where
    by: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The request never arrives, or (`answer`) only its answer is lost, for as long as the client asks. Of a fetch:
    nothing comes of that partition.
    """

    answer: bool = False


@dataclass(frozen=True, slots=True)
class Late:
    """The request arrives so much later than the client gives up. Of a marker: it is written so much later, and nobody
    gives up.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class Slow:
    """The request takes so long to arrive, and its answer so long to come back: others act in between."""

    request: float
    answer: float = 0.0


@dataclass(frozen=True, slots=True)
class Skipped:
    """Of a marker: the coordinator takes the place for deleted, and never writes it (KAFKA-20734). Only of brokers that
    `skip`.
    """


@dataclass(frozen=True, slots=True)
class Stale:
    """The leader or coordinator of before answers, with what it knew when it was stopped short; nothing, if there is
    none that woke.
    """


@dataclass(frozen=True, slots=True)
class Torn:
    """A fetch gives so many records of that partition at most, and does not say yet that this is the end."""

    records: int


@dataclass(frozen=True, slots=True)
class Early:
    """Of an `append`: the client sends at once what it has of that partition, not when it is flushed."""


@dataclass(frozen=True, slots=True)
class Crash:
    """The process ends: before the request has its effect, or after it."""

    after: bool = False


Fault: TypeAlias = Lost | Late | Slow | Skipped | Stale | Torn | Early | Crash


class Crashed(BaseException):
    """Raised out of the call at which a process ends. No `except Exception` may hear of it."""


class Plan(Protocol):
    """Decides over each request."""

    def fault(self, call: Call) -> Fault | None:
        """Return what happens to it; None: it is answered."""
        ...


class NoFaults:
    """A cluster without faults."""

    def fault(self, call: Call) -> Fault | None:
        """Return None."""
        return None


@dataclass(slots=True)
class On:
    """A fault for the n-th request (and those after it, `times` in all) of a kind; None: any place, any client."""

    kind: Kind
    fault: Fault
    where: Where | None = None
    by: str | None = None
    nth: int = 1
    times: int = 1
    _seen: int = 0

    def meets(self, call: Call) -> bool:
        """Whether this request is one of them; to be asked once about each."""
        if self.kind != call.kind or self.where not in (None, call.where) or self.by not in (None, call.by):
            return False
        self._seen += 1
        return self.nth <= self._seen < self.nth + self.times


@dataclass(slots=True)
class Script:
    """Faults that are written down. Of two that meet a request, the first counts."""

    rules: Sequence[On]

    def fault(self, call: Call) -> Fault | None:
        """Return that of the first rule that meets the request; every rule counts it."""
        return next(iter([rule.fault for rule in self.rules if rule.meets(call)]), None)


@dataclass(slots=True)
class Chance:
    """Faults by chance: for each kind of request, each fault with its probability."""

    rng: Random
    rates: Mapping[Kind, Sequence[tuple[float, Fault]]]
    until: int | None = None
    """After so many requests nothing fails any more: the run is to come to its end."""
    asked: int = field(default=0)

    def fault(self, call: Call) -> Fault | None:
        """Draw one number for each request, whatever its kind."""
        self.asked += 1
        drawn = self.rng.random()
        if self.until is not None and self.asked > self.until:
            return None
        for rate, fault in self.rates.get(call.kind, ()):
            if drawn < rate:
                return fault
            drawn -= rate
        return None
