"""The precondition of a request that no broker fences: it is asked right before each
attempt.

    fenced by a broker   commits (member, generation), transactions (the epoch of the transactional id)
    fenced by none       deletion of records, creation and deletion of topics, the record of the topology's version

A broker takes a request of the second kind from any process, and by the name of its
topic. A process that was suspended makes it when it wakes. Meanwhile the group has
removed it, `coopstreams reset` has deleted the topics, and the next start has made them
anew: records that nobody has processed would be deleted. So `Log` takes a precondition
with each of these requests. It calls it before each attempt, because a client may be
suspended between two.

The topic's id is asked for first, and then whether the process may still act: of a
member that is known without a request (`GroupMember.sure`), so nothing is waited for
between it and the request.

Invariant: a request is not sent once its precondition does not hold. Turned down: topic
ids in the requests (Kafka's DeleteRecords and CreateTopics have no field for them). A
process that is suspended in the microseconds between its precondition and the request
is not noticed; where the effect can be undone, the caller asks once more behind it
(`preflight.last_version`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coopstreams.log.log import Log
from coopstreams.topology.errors import FencedError, UnknownTopicError


@dataclass(frozen=True, slots=True)
class Precondition:
    """A `log.Check`: topics are still those that the process knows, and it still may
    act.
    """

    log: Log
    ids: Mapping[str, str]
    """The ids of the topics as the process knows them; empty, or no id: not known."""
    may_act: Callable[[], bool]
    """Whether the process may still act for its application or group."""
    otherwise: str
    """Why it may not, in words."""

    def __call__(self, topic: str) -> None:
        """Check it for a request about a topic.

        Raises:
            FencedError: the topic was deleted and made anew, or the process may not act
            any more.
            LogError: the brokers do not answer.
        """
        known = self.ids.get(topic, "")
        if known and self._id_of(topic) not in ("", known):
            raise FencedError(
                f"{topic} was deleted and made anew: it is another topic than the one that this process knows"
            )
        if not self.may_act():
            raise FencedError(f"{topic}: {self.otherwise}")

    def _id_of(self, topic: str) -> str:
        """Return the topic's id now; empty: there is no such topic, as the request
        itself will report.
        """
        try:
            return self.log.topic_id(topic)
        except UnknownTopicError:
            return ""
