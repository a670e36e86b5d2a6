"""Faults as values: a *plan* outside of the cluster decides which request meets which
fault.

A plan is asked about each request on its way (`Call`), in the order in which they are
made, and answers with a fault or None. So the same plan, seed and steps give the same
run.

    Script   the n-th request of a kind, to a partition, group or id, of a client
    Chance   each request, with a probability for each fault, from a seeded generator

Faults of brokers and topics (`Cluster.stop`, `pause`, `move`, `remake`, ...) belong to
no request: `Cluster.at` causes them at a time.
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
"""The kind of a request. `append` is none yet: the client gets a record (`Early`).
`marker`: from the coordinator to a participant.
"""

Where: TypeAlias = TopicPartition | str
"""A partition, or the name of a topic, a group or a transactional id."""


class Call(NamedTuple):
    """A request under way. `by`: the client, or the transactional id whose marker it
    is.
    """

    kind: Kind
    where: Where
    by: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The request never arrives, or (`answer`) only its answer is lost, for as long as
    the client asks. For a fetch: no records of that partition.
    """

    answer: bool = False


@dataclass(frozen=True, slots=True)
class Late:
    """The request arrives this long after the client has given up. For a marker: it is
    written this much later.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class Slow:
    """The request, and its answer, take this long: other clients act in between."""

    request: float
    answer: float = 0.0


@dataclass(frozen=True, slots=True)
class Skipped:
    """For a marker: the coordinator takes the partition for deleted, and never writes
    it (KAFKA-20734). Only brokers that `skip`.
    """


@dataclass(frozen=True, slots=True)
class Stale:
    """The earlier leader or coordinator answers with its state when it was paused; no
    fault if none has resumed.
    """


@dataclass(frozen=True, slots=True)
class Torn:
    """A fetch returns at most this many records of that partition, and does not report
    the end yet.
    """

    records: int


@dataclass(frozen=True, slots=True)
class Early:
    """For an `append`: the client sends its records of that partition at once, not at
    the flush.
    """


@dataclass(frozen=True, slots=True)
class Crash:
    """The process ends: before the request takes effect, or afterwards."""

    after: bool = False


Fault: TypeAlias = Lost | Late | Slow | Skipped | Stale | Torn | Early | Crash


class Crashed(BaseException):
    """Raised by the call at which a process ends. No `except Exception` may catch it."""


class Plan(Protocol):
    """Decides on the fault of each request."""

    def fault(self, call: Call) -> Fault | None:
        """Return the fault of a request; None: it is answered."""
        ...


class NoFaults:
    """A cluster without faults."""

    def fault(self, call: Call) -> Fault | None:
        """Return None."""
        return None


@dataclass(slots=True)
class On:
    """A fault for the n-th request of a kind, `times` in a row; None: any place, any
    client.
    """

    kind: Kind
    fault: Fault
    where: Where | None = None
    by: str | None = None
    nth: int = 1
    times: int = 1
    _seen: int = 0

    def meets(self, call: Call) -> bool:
        """Whether this request meets the fault; call it once for each request."""
        if (
            self.kind != call.kind
            or self.where not in (None, call.where)
            or self.by not in (None, call.by)
        ):
            return False
        self._seen += 1
        return self.nth <= self._seen < self.nth + self.times


@dataclass(slots=True)
class Script:
    """A list of faults. If two apply to a request, the first one counts."""

    rules: Sequence[On]

    def fault(self, call: Call) -> Fault | None:
        """Return the fault of the first matching rule; every rule counts the request."""
        return next(iter([rule.fault for rule in self.rules if rule.meets(call)]), None)


@dataclass(slots=True)
class Chance:
    """Faults by chance: for each kind of request, each fault with its probability."""

    rng: Random
    rates: Mapping[Kind, Sequence[tuple[float, Fault]]]
    until: int | None = None
    """Requests with faults: after this many there are none, so that the run ends."""
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
