"""A connection to the brokers with an I/O thread: it asks, retries, follows the
responsible broker, and says why it gave up.

Invariant: every wait has a time limit, and its error names the request, the time and
the last answer.
Relies on: `group_requests` (which errors pass, and after which the coordinator is
looked up again), `kafka_network` (the I/O thread).
Turned down: kafka-python's admin client for the same requests (a second connection and
thread, and it does not follow a coordinator that moved).
"""
# pyright: reportAttributeAccessIssue=false, reportUnusedExcept=false
# pyright brings stubs of kafka-python 2.

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from kafka import errors

from coopstreams.common.acl_errors import Login
from coopstreams.common.tokens import Tokens
from coopstreams.group import group_requests
from coopstreams.group.group_requests import Exchange
from coopstreams.group.kafka_network import Network
from coopstreams.log.log import UNKNOWN_FOR_S
from coopstreams.topology.errors import GroupError, LogError

log = logging.getLogger(__name__)

Node = Callable[[], Awaitable[Any]]
"""A function that finds the broker that is responsible for a request."""

_T = TypeVar("_T")

_PAUSE_S = 0.02
_SLICE_MS = 3000
_MARGIN_MS = 50
"""How much earlier a request's own time-out ends than its caller's, because its error
says more.
"""
REQUEST_MS = 4000
"""The time limit of a heartbeat, and of the search for the coordinator; a join has a
limit of its own.
"""


class Connection:
    """The connections to all brokers, and their I/O thread. Other threads call `run`,
    `soon` and `close`; `async` methods run on the I/O thread.
    """

    def __init__(self, settings: Mapping[str, Any], request_ms: int) -> None:
        plain = dict(settings)
        self.login: Login = plain.pop("login", Login())
        """The user and the mechanism with which this process logs in."""
        source = plain.pop("token_source", None)
        self._tokens = None if source is None else Tokens(source)
        self.network = Network(
            _client_settings(plain),
            self._tokens,
            forgives_logins=self.login.by_token,
        )
        self._request_ms = request_ms
        self._listings: dict[Any, Any] = {}
        """kafka-python's future of the last `ListTransactions`, by broker."""
        self.closed = False

    @property
    def servers(self) -> str:
        """The configured addresses of the brokers, for people."""
        return self.network.servers

    def start(self, main: Callable[[], Awaitable[None]]) -> None:
        """Start the I/O thread, and run `main` on it."""
        self.network.start(main)

    def run(self, work: Callable[..., Awaitable[_T]], *arguments: Any) -> _T:
        """Run a function on the I/O thread; return its result.

        Raises:
            GroupError: the connection is closed.
        """
        try:
            return self.network.run(work, *arguments)
        except RuntimeError as error:  # the loop has ended
            raise GroupError("the connection to the group is closed") from error
        except errors.KafkaError as error:
            raise group_requests.translated("group", error) from error

    def soon(self, work: Callable[[], None]) -> None:
        """Run a function on the I/O thread, and do not wait for it."""
        if not self.closed:
            self.network.soon(work)

    def wake(self) -> None:
        """End the current wait in `idle`, or the next one."""
        if not self.closed:
            self.network.wake()

    def close(self) -> None:
        """End the I/O thread and all connections."""
        self.closed = True
        self.network.close()
        if self._tokens is not None:
            self._tokens.close()

    async def idle(self, seconds: float) -> None:
        """Wait for `wake`, for at most `seconds`. Only one caller at a time."""
        await self.network.idle(seconds)

    async def sleep(self, seconds: float) -> None:
        """Wait while the I/O thread does other work."""
        await self.network.sleep(seconds)

    async def find_brokers(self, give_up: float) -> errors.KafkaError | None:
        """Look for the brokers until `give_up`, 3 s at most; return None if they were
        found, else the reason.
        """
        try:
            await self.network.bootstrap(
                max(1, min(_SLICE_MS, 1000 * (give_up - time.monotonic())))
            )
        except errors.KafkaTimeoutError:
            return await self._why()
        except errors.KafkaError as error:
            return error
        return None

    async def _why(self) -> errors.KafkaError:
        """Return why no broker was found. A failed bootstrap does not give its reason,
        so this makes one connection by hand.
        """
        try:
            await self.network.connect_once(_SLICE_MS)
        except errors.KafkaError as error:
            reason: errors.KafkaError = error
            return reason
        return errors.KafkaTimeoutError(
            "they accept connections, and do not say which brokers there are"
        )

    async def once(
        self,
        exchange: Exchange[_T],
        node: Any,
        timeout_ms: float = _SLICE_MS,
    ) -> _T:
        """Send a request to a node (None: to any); return its decoded answer, or raise
        kafka-python's error.
        """
        # Both limits: while a connection is being made, the request's own time-out
        # does not run.
        try:
            answer = self.network.send(exchange.request, node, timeout_ms)
            return exchange.read(
                await self.network.answer(answer, timeout_ms + _MARGIN_MS)
            )
        except errors.SaslAuthenticationFailedError as error:
            if not self.login.by_token:
                raise
            raise errors.KafkaConnectionError(
                str(error)
            ) from error  # as without a token: the next may be accepted

    async def ask(
        self,
        exchange: Exchange[_T],
        node: Node,
        timeout_ms: int | None = None,
        moved: Callable[[], None] | None = None,
    ) -> _T:
        """Return the answer of the responsible broker; retry while that may help.

        `moved` is called when another broker may have become responsible. Each attempt
        has only a part of the time: a broker that hangs is asked again until another
        one is responsible.

        Raises:
            MembershipLostError: the sender is no member of the group in this
                generation.
            UnknownTopicError: the broker has not known the topic for `UNKNOWN_FOR_S`.
            LogError: the request was refused, or not answered in time.
        """
        timeout_s = (timeout_ms or self._request_ms) / 1000
        give_up = time.monotonic() + timeout_s
        answer: errors.KafkaError | None = None
        unknown_until = 0.0
        while True:
            try:
                return await self.once(
                    exchange,
                    await node(),
                    min(_SLICE_MS, max(100.0, 1000 * (give_up - time.monotonic()))),
                )
            except errors.KafkaError as error:
                if isinstance(error, errors.UnknownTopicOrPartitionError):
                    # The coordinator may not know yet a topic that the controller has
                    # created.
                    unknown_until = unknown_until or time.monotonic() + UNKNOWN_FOR_S
                    passes = time.monotonic() <= unknown_until
                else:
                    passes = group_requests.passes(error)
                if not passes:
                    attempt = replace(exchange.attempt, login=self.login)
                    raise group_requests.translated(
                        exchange.what,
                        error,
                        attempt,
                    ) from error
                # A time-out is less specific than the answer before it.
                if answer is None or not isinstance(error, errors.KafkaTimeoutError):
                    answer = error
                if time.monotonic() > give_up:
                    raise LogError(
                        f"{exchange.what}: no success in {timeout_s:.1f} s; last: {answer}",
                        retryable=True,
                    ) from error
                if group_requests.coordinator_moved(error):
                    self.look_again()
                    if moved is not None:
                        moved()
            await self.network.sleep(_PAUSE_S)

    async def ask_each(
        self,
        asked: Mapping[int, Exchange[_T]],
        timeout_ms: float,
        enough: Callable[[Mapping[int, _T]], bool] | None = None,
    ) -> tuple[dict[int, _T], dict[int, errors.KafkaError]]:
        """Send each node its request, all at once; return the answers and the errors by
        node. A node that is late has neither.

        The wait ends when all nodes have answered or failed, when `enough` accepts the
        answers, or at the time limit. The request to a broker that hangs is not
        cancelled, as in `open_transactions`.
        """
        answers: dict[int, _T] = {}
        failed: dict[int, errors.KafkaError] = {}
        done = self.network.future()

        def heard() -> None:
            if not done.is_done and (
                len(answers) + len(failed) == len(asked)
                or (enough is not None and enough(answers))
            ):
                done.success(None)

        def answered(node: int, response: Any) -> None:
            try:
                answers[node] = asked[node].read(response)
            except errors.KafkaError as error:
                failed[node] = error
            heard()

        def refused(node: int, error: errors.KafkaError) -> None:
            failed[node] = error
            heard()

        for node, exchange in asked.items():
            try:
                answer = self.network.send(exchange.request, node)
            except errors.KafkaError as error:
                refused(node, error)
            else:
                answer.add_callback(partial(answered, node)).add_errback(
                    partial(refused, node)
                )
        if asked:
            with suppress(errors.KafkaTimeoutError):
                await self.network.answer(done, timeout_ms)
        return dict(answers), dict(failed)

    def look_again(self) -> None:
        """Request a metadata update, to learn which brokers there are now."""
        self.network.look_again()

    async def end_transaction(
        self,
        transactional_id: str,
        transaction_ms: int,
        timeout_ms: int | None,
    ) -> None:
        """Abort the open transaction of a transactional id."""
        found: list[int] = []

        async def node() -> int:
            if not found:
                found.append(
                    await self.once(
                        group_requests.transaction_coordinator(transactional_id),
                        None,
                    )
                )
            return found[0]

        await self.ask(
            group_requests.new_producer(transactional_id, transaction_ms),
            node,
            timeout_ms,
            found.clear,
        )

    async def open_transactions(self, timeout_ms: int) -> frozenset[str]:
        """Return the transactional ids with an open transaction, from the brokers that
        answer in time. All brokers are asked at once.

        A request to a broker that hangs is kept and not repeated. Repeated requests
        would leave no room for others, and a cancelled one would close the connection,
        and fail the commits on it.
        """
        asked: dict[Any, tuple[Exchange[frozenset[str]], Any]] = {}
        for node in self.brokers():
            if (old := self._listings.get(node)) is None or old.is_done:
                exchange = group_requests.list_open_transactions()
                self._listings[node] = self.network.send(exchange.request, node)
                asked[node] = exchange, self._listings[node]
        found: set[str] = set()
        give_up = time.monotonic() + timeout_ms / 1000
        for node, (exchange, answer) in asked.items():
            try:
                found |= exchange.read(
                    await self.network.answer(
                        answer,
                        max(1.0, 1000 * (give_up - time.monotonic())),
                    )
                )
            except errors.KafkaError as error:
                log.info(
                    "broker %s does not say which transactions are open on it: %s",
                    node,
                    error,
                )
        return frozenset(found)

    def plain_node(self, coordinator: Any) -> Any:
        """Return the broker behind the coordinator's connection, as the node of a
        second connection that joins do not block.
        """
        plain = self.plain_id(coordinator)
        return plain if self.network.knows(plain) else coordinator

    def plain_id(self, coordinator: Any) -> int:
        """Return the id of the broker behind the coordinator's connection."""
        return int(str(coordinator).rpartition("-")[2])

    def connected(self, node: Any) -> bool:
        """Return whether there is a connection to this node, without any request."""
        return self.network.connected(node)

    def brokers(self) -> list[Any]:
        """Return the ids of all known brokers."""
        return self.network.brokers()

    def another(self, broker: int) -> Any:
        """Return another known broker; None (which means any broker) if there is none."""
        others = [other for other in self.brokers() if other != broker]
        return random.choice(others) if others else None

    def drop(self, node: Any) -> None:
        """Close the connection to a node. Requests that wait for its answer fail."""
        self.network.drop(node, "it does not answer, and is not responsible any more")


def _client_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of kafka-python's client: our defaults, overridden by the
    user's settings.
    """
    arguments: dict[str, Any] = {
        "client_id": "coopstreams",
        # kafka-python's 30 s would cost the membership when the coordinator hangs
        "request_timeout_ms": REQUEST_MS,
        # a broker that hangs still takes connections
        "socket_connection_setup_timeout_ms": REQUEST_MS,
        # kafka-python's 30 s would cost the membership after a short outage
        "reconnect_backoff_max_ms": 1000,
        "receive_message_max_bytes": 100_000_000,
        **settings,
    }
    arguments.setdefault(
        "socket_connection_setup_timeout_max_ms",
        arguments["socket_connection_setup_timeout_ms"],
    )
    return arguments
