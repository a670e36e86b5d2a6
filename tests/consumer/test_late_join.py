"""A request to join that the broker handles after a later one of the same member."""

from __future__ import annotations

from collections.abc import Callable

from coopstreams.consumer.consumer_session import Ranges
from tests.consumer.members import Member, members
from tests.simulation.kafka.plan import Call, Slow


class SlowJoin:
    """A plan under which the requests of one member to join are slow, from some time
    on.
    """

    whose = ""

    def fault(self, call: Call) -> Slow | None:
        return Slow(2.0) if (call.kind, call.by) == ("join", self.whose) else None


def test_what_others_were_granted_by_an_old_claim_is_lost_and_not_committed() -> None:
    told: list[tuple[str, str]] = []

    def program(name: str) -> Callable[[Member], None]:
        def say(what: str) -> Callable[[Ranges], None]:
            return lambda ranges: told.extend((name, what) for _ in ranges)

        def body(member: Member) -> None:
            member.consumer.subscribe(
                ["in"],
                on_assign=say("opens"),
                on_revoke=say("gives up"),
                on_lost=say("loses"),
            )
            while True:
                member.consumer.consume(10, 0.1)

        return body

    plan = SlowJoin()
    with members([], plan) as readers:
        readers.start("leader", program("leader"))
        readers.run(5.0)
        readers.start("a", program("a"))
        readers.run(0.1)
        member, known = list(readers.group.members.items())[1]
        said = known.subscription  # before it had any task
        readers.run(10.0)
        assert told[-1] == ("a", "opens")
        told.clear()
        plan.whose = "a"
        readers.group.join(member, said, known.session_s)
        readers.start("c", program("c"))
        readers.run(1.5)
        assert ("c", "opens") in told
        readers.run(10.0)
        assert [what for name, what in told if name == "a"] == ["loses", "opens"]
