"""Builds the share threads of an instance from its components."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from coopstreams.instance.components import Components, client_settings
from coopstreams.log.kafka.share_consumer import KafkaShare
from coopstreams.sharing.share_group import ShareMembers, share_group
from coopstreams.sharing.share_thread import ShareThread, ShareTimes
from coopstreams.sharing.shared_work import SharedWork, ShareServices
from coopstreams.tasks.events import Event
from coopstreams.topology.compile.program import Program


def share_members(
    components: Components,
    emit: Callable[[Event], None],
    holds: Callable[[], str],
) -> ShareMembers:
    """Return the share threads, not yet started. There are none if every source is read
    in order.

    `holds`: see `ShareThread`.
    """
    programs = [
        program
        for program in components.plan.programs.values()
        if program.subtopology.unordered
    ]
    count = components.plan.config["num.stream.threads"] if programs else 0
    threads = [
        _thread(components, number, programs, emit, holds) for number in range(count)
    ]
    group = share_group(components.plan.application)
    return ShareMembers(group, threads, components.host)


def _thread(
    made: Components,
    number: int,
    programs: Sequence[Program],
    emit: Callable[[Event], None],
    holds: Callable[[], str],
) -> ShareThread:
    plan = made.plan
    config = plan.config
    writer = made.log.writer(None, made.written)
    lock_ms = config["share.record.lock.duration.ms"]
    settings = {
        "share.auto.offset.reset": config["auto.offset.reset"],
        "share.isolation.level": "read_committed",
        "share.record.lock.duration.ms": str(lock_ms),
    }
    services = ShareServices(
        config,
        made.metrics,
        made.tallies,
        made.sayings,
        made.refusals,
        cache(made.partitions),
        made.globals.rows,
        plan.topology.dead_letter_topics,
        made.host,
    )
    times = ShareTimes(
        commit_s=config.commit_interval_s,
        lock_s=lock_ms / 1000,
        flush_s=config["transaction.timeout.ms"] / 1000,
        drain_s=config["max.revoke.delay.ms"] / 1000,
    )
    return ShareThread(
        number,
        lambda: KafkaShare(
            client_settings(config),
            share_group(plan.application),
            settings,
            plan.results,
        ),
        [SharedWork(number, program, writer, services) for program in programs],
        writer,
        services,
        times,
        lambda: holds() or _forbidden(made),
        emit,
    )


def _forbidden(made: Components) -> str:
    """Return which policy forbids processing in the broker's order, in words; empty:
    none does.
    """
    return made.restrictions.policy.forbids_ranges(made.plan.topology.unordered_topics)
