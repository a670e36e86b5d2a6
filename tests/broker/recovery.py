"""Measures the delay of outputs after the loss of a broker, a coordinator, a worker, or
a worker and a broker, of three each.

    python -m tests.broker.recovery [--guarantee exactly_once_v2] [--only NAME ...]
    [--brokers NAME=VALUE ...]

For each loss: the longest time from an order to its count around it, by the brokers'
clocks, and the reasons that the workers reported.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from coopstreams.commit.record import PARTITIONS, partition_of
from coopstreams.topology.naming import COMMIT_TOPIC
from tests.broker.application import Application
from tests.broker.chaos import Feeder
from tests.broker.chaos_cluster import EXACTLY_ONCE, Run, settings_of, topics_of
from tests.broker.cluster import ThreeBrokers
from tests.broker.reading import read_topic
from tests.broker.stalls import Reasons, Stall, waits

A_SECOND = 150
AWAY_S = 30.0
CALM_S = 8.0
SHOWN = 4


@dataclass(slots=True)
class Losses:
    """The losses. Each function causes one and returns its name."""

    run: Run

    def broker(self, how: str, find: Callable[[], int | None]) -> str:
        """Lose a broker, chosen at that moment."""
        node = find()
        assert node is not None
        getattr(self.run.cluster, how)(node)
        return f"{how} broker {node}"

    def worker(self, how: str) -> str:
        """Lose a worker; a killed one is restarted by its supervisor."""
        number = min(self.run.application.workers())
        (self.run.application.kill if how == "kill" else self.run.application.freeze)(
            number
        )
        return f"{how} worker {number}"

    def both(self, find: Callable[[], int | None]) -> str:
        """Lose a worker and a broker at once."""
        return f"{self.broker('kill', find)}, {self.worker('kill')}"

    def all(self) -> dict[str, Callable[[], str]]:
        """Return every loss by its name."""
        cluster, topics = self.run.cluster, self.run.topics
        where: dict[str, Callable[[], int | None]] = {
            "group": lambda: cluster.group_coordinator(topics.application),
            "transaction": lambda: cluster.transaction_coordinator(
                random.Random(1).choice(self.run.transactional_ids())
            ),
            "commits": lambda: cluster.leader_of(
                COMMIT_TOPIC, partition_of(topics.application, PARTITIONS)
            ),
            "source": lambda: cluster.leader_of(topics.orders, 0),
        }
        losses: dict[str, Callable[[], str]] = {
            f"{name}-{how}": lambda how=how, find=find: self.broker(how, find)  # type: ignore[misc]
            for name, find in where.items()
            for how in ("kill", "pause", "stop")
        }
        losses |= {
            f"worker-{how}": lambda how=how: self.worker(how)  # type: ignore[misc]
            for how in ("kill", "pause")
        }
        losses |= {
            f"both-{name}": lambda find=find: self.both(find)  # type: ignore[misc]
            for name, find in where.items()
        }
        return losses


def calm(run: Run) -> None:
    """Restore everything, and wait some seconds."""
    for pid in list(run.application.stopped):
        run.application.thaw(pid)
    run.cluster.mend()
    time.sleep(CALM_S)
    run.application.look()
    assert not run.application.ended, run.application.ended


def measure(run: Run, names: list[str], feeder: Feeder, reasons: Reasons) -> None:
    """Cause one loss after the other, and print the wait that each caused."""
    losses = Losses(run).all()
    for name in names or list(losses):
        calm(run)
        began = time.time()
        what = losses[name]()
        run.faults.note(f"{name}: {what}")
        time.sleep(AWAY_S)
        ended = time.time()
        calm(run)
        assert feeder.failure is None, feeder.failure
        report(run, name, what, (began, ended), reasons)


def report(
    run: Run, name: str, what: str, between: tuple[float, float], reasons: Reasons
) -> None:
    """Print the longest wait that began in this time, and the reasons that the workers
    reported.
    """
    (began, ended), bootstrap = between, run.cluster.bootstrap
    waited = waits(
        read_topic(bootstrap, run.topics.orders),
        read_topic(bootstrap, run.topics.counts),
    )
    inside = [wait for wait in waited if began - 1 <= wait.start <= ended]
    worst = max(
        inside,
        key=lambda wait: wait.longest_s,
        default=Stall(0, began, began, float("inf")),
    )
    where = f"{what}; partition {worst.partition} at +{worst.start - began:.1f} s"
    print(
        f"{name:20} waited {worst.longest_s:5.1f} s, {reasons.silent_s(worst):4.1f} s of it without a reason: {where}"
    )
    for reason, often in reasons.of(worst).most_common(SHOWN):
        print(f"{'':20} {often:3} x {reason[:220]}", flush=True)


def main() -> int:
    """Measure the losses from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--guarantee", choices=[EXACTLY_ONCE, "at_least_once"], default=EXACTLY_ONCE
    )
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument(
        "--brokers",
        nargs="*",
        default=[],
        metavar="NAME=VALUE",
        help="settings of the brokers",
    )
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="recovery-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"logs and data: {folder}", flush=True)
    with ExitStack() as running:
        cluster = running.enter_context(
            ThreeBrokers(
                folder,
                settings=dict(setting.split("=", 1) for setting in arguments.brokers),
            )
        )
        topics = topics_of(cluster)
        settings = settings_of(topics, arguments.guarantee, standbys=0)
        application = Application(
            Path(__file__).with_name("chaos_app.py"),
            cluster.bootstrap,
            folder,
            topics.environment,
            settings,
        )
        running.callback(application.clean_up)
        run = Run(cluster, topics, application, 1)
        feeder = Feeder(
            cluster.bootstrap, topics, 1, orders=10_000_000, a_second=A_SECOND
        )
        application.start("first", 3)
        with Reasons(application.urls) as reasons:
            time.sleep(2 * CALM_S)
            feeder.start()
            time.sleep(CALM_S)
            measure(run, arguments.only, feeder, reasons)
    return 0


if __name__ == "__main__":
    sys.exit(main())
