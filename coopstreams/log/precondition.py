"""The precondition of a request that no broker fences: it is checked right before each
attempt.

    fenced by a broker   commits (member, generation), transactions (the epoch of the transactional id)
    fenced by none       deletion of records, creation and deletion of topics, the record of the topology's version

A broker takes a request of the second kind from any process, and by the name of its
topic. A suspended process sends such a request when it wakes. Meanwhile the group has
removed the process, `coopstreams reset` has deleted the topics, and the next start has
made them anew: records that nobody has processed would be deleted. So `Log` takes a
precondition with each of these requests. It calls it before each attempt, because a
client may be suspended between two.

The precondition first requests the topic's id. Then it checks whether the process may
still act. A member knows that without a request (`GroupMember.sure`), so nothing is
waited for between this check and the request.

Invariant: a request is not sent once its precondition does not hold. Turned down: topic
ids in the requests (Kafka's DeleteRecords and CreateTopics have no field for them). A
process that is suspended in the microseconds between its precondition and the request
is not noticed; where the effect can be undone, the caller checks again afterwards
(`preflight.last_version`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coopstreams.log.log import Log
from coopstreams.topology.errors import FencedError, UnknownTopicError


@dataclass(frozen=True, slots=True)
class Precondition:
    """A `log.Check`: the topic is still the one that the process knows, and the process
    may still act.
    """

    log: Log
    ids: Mapping[str, str]
    """The ids of the topics as the process knows them. A topic without an id, or with
    an empty one, is not checked.
    """
    may_act: Callable[[], bool]
    """Whether the process may still act for its application or group."""
    otherwise: str
    """The reason for the message of the error if the process may not act."""

    def __call__(self, topic: str) -> None:
        """Check whether a request about a topic may be sent.

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
        """Return the topic's current id; empty if the topic does not exist, as the
        request itself will report.
        """
        try:
            return self.log.topic_id(topic)
        except UnknownTopicError:
            return ""
