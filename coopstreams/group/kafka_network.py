"""kafka-python's connections to the brokers, and its event loop on an I/O thread.

kafka-python has no public client for requests of one's own: its loop, its connection
manager and some of their names are private, and change between minor versions. They
are used here, in `kafka_member` and in `broker_lookup` alone.
`tests/group/test_kafka_python.py` lists them, and says which ones another version of
kafka-python lacks.

Invariant: no caller sees one of kafka-python's objects, except futures, which it gives
back to `answer`, and errors.
Source: kafka-python 3.0 `KafkaNetClient`, `KafkaConnectionManager`, `NetworkSelector`.
"""
# pyright: reportAttributeAccessIssue=false, reportMissingImports=false
# pyright brings stubs of kafka-python 2.

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from kafka import errors
from kafka.future import Future
from kafka.net.compat import KafkaNetClient
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.wakeup_notifier import WakeupNotifier

from coopstreams.common.tokens import Token, TokenError, Tokens
from coopstreams.group import broker_lookup

_T = TypeVar("_T")

_STOP_MS = 2000


class Network:
    """Connections by node, and the loop that `async` methods run on. `run`, `soon`,
    `wake` and `close` are for other threads.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        tokens: Tokens | None,
        *,
        forgives_logins: bool,
    ) -> None:
        """Connect to nothing yet. `settings` has the names of kafka-python;
        `forgives_logins`: a broker that refused a login is asked again.
        """
        arguments = {"proxy_url": f"{broker_lookup.SCHEME}://", **settings}
        if tokens is not None:
            arguments["sasl_oauth_token_provider"] = _TokenProvider(tokens)
        self.client = KafkaNetClient(**arguments)
        self._loop: Any = self.client._net
        self._manager: Any = self.client._manager
        if forgives_logins:
            self._manager._auth_failures = _Forgetful()
        self._wakeup = WakeupNotifier(self._loop)

    @property
    def servers(self) -> str:
        """The configured addresses of the brokers, for people."""
        servers = self._manager.cluster.config["bootstrap_servers"]
        return servers if isinstance(servers, str) else ",".join(servers)

    @property
    def broker_version(self) -> tuple[int, ...]:
        """The brokers' version; known once a broker has answered."""
        version: tuple[int, ...] = self._manager.broker_version
        return version

    def start(self, main: Callable[[], Awaitable[None]]) -> None:
        """Start the I/O thread, and run `main` on it."""
        self._loop.start()
        self.soon(main)

    def run(self, work: Callable[..., Awaitable[_T]], *arguments: Any) -> _T:
        """Run a function on the I/O thread; return its result.

        Raises:
            RuntimeError: the loop has ended.
        """
        result: _T = self._loop.run(work, *arguments)
        return result

    def soon(self, work: Callable[[], Any]) -> None:
        """Run a function on the I/O thread, and do not wait for it."""
        self._manager.call_soon(work)

    def wake(self) -> None:
        """End the current wait in `idle`, or the next one."""
        self._wakeup.notify()

    def close(self) -> None:
        """End the I/O thread and all connections."""
        self._loop.stop(_STOP_MS)
        self.client.close()

    async def idle(self, seconds: float) -> None:
        """Wait for `wake`, for at most `seconds`. Only one caller at a time."""
        await self._wakeup(seconds)

    async def sleep(self, seconds: float) -> None:
        """Wait while the I/O thread does other work."""
        await self._loop.sleep(seconds)

    async def bootstrap(self, timeout_ms: float) -> None:
        """Ask the configured servers which brokers there are.

        Raises:
            KafkaTimeoutError: none has answered; the reason is not in the error.
        """
        await self._manager.bootstrap_async(timeout_ms=timeout_ms)

    async def connect_once(self, timeout_ms: float) -> None:
        """Connect to a configured server, and raise the error of kafka-python that says
        why this fails. The connection is not kept.
        """
        node = self._manager.cluster.bootstrap_brokers()[0].node_id
        # until its back-off is over: before that, kafka-python makes no attempt
        await self.sleep(self._manager.connection_delay(node) + 0.01)
        try:
            await self._manager.get_connection(
                node,
                timeout_ms=timeout_ms,
                pop_on_close=False,
                refresh_metadata_on_err=False,
            )
        finally:
            self._manager._conns.pop(node, None)

    def send(
        self,
        request: Any,
        node: Any,
        timeout_ms: float | None = None,
    ) -> Any:
        """Return the future of the node's answer; None: of any node. The time-out does
        not run while the connection is being made.
        """
        return self._manager.send(
            request,
            node_id=node,
            request_timeout_ms=timeout_ms,
        )

    async def answer(self, future: Any, timeout_ms: float) -> Any:
        """Return the result of a future, which is not cancelled at the time-out.

        Raises:
            KafkaTimeoutError: it has none in this time.
        """
        return await self._manager.wait_for(future, timeout_ms)

    def future(self) -> Any:
        """Return a future that its caller ends with `success`."""
        return Future()

    def brokers(self) -> list[Any]:
        """Return the ids of all known brokers."""
        return [broker.node_id for broker in self._manager.cluster.brokers()]

    def knows(self, node: Any) -> bool:
        """Return whether there is an address for this node."""
        return self._manager.cluster.broker_metadata(node) is not None

    def connected(self, node: Any) -> bool:
        """Return whether there is a connection to this node, without any request."""
        return bool(self.client.connected(node))

    def drop(self, node: Any, why: str) -> None:
        """Close the connection to a node. Requests that wait for its answer fail."""
        connection = self._manager._conns.get(node)
        if connection is not None:
            connection.close(errors.KafkaConnectionError(why))

    def look_again(self) -> None:
        """Request a metadata update, to learn which brokers there are now."""
        self._manager.cluster.request_update()


class _Forgetful(dict[Any, Any]):
    """A dict that stays empty, in place of kafka-python's dict of brokers that refused
    a login: it would never connect to them again.

    The next login has another token.
    """

    def __setitem__(self, node: Any, error: Any) -> None:
        pass


class _TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """An adapter from `Tokens` to kafka-python's interface of a token provider."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self._tokens = tokens

    def token(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return str(self._current()[0])

    def extensions(self) -> dict[str, str]:
        token = self._current()
        return dict(token[3]) if len(token) > 3 else {}

    def _current(self) -> Token:
        try:
            return self._tokens.current()
        except (
            TokenError
        ) as error:  # as if the broker did not answer: a later attempt may get a token
            raise errors.KafkaConnectionError(str(error)) from error
