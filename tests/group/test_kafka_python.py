"""The contract with kafka-python: what coopstreams uses of it beyond messages and
errors is there, takes the arguments that are given, and is called.

None of it is documented, so a new minor version may change any of it without a word.
These tests name what is missing, and who needs it; they import nothing of coopstreams,
so that they can speak where it cannot be imported.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

GROUP = Path(__file__).resolve().parents[2] / "coopstreams" / "group"
SEAM = [
    GROUP / f"{name}.py"
    for name in ("heartbeats", "kafka_member", "kafka_network", "broker_lookup")
]


class Call(NamedTuple):
    """How a function of kafka-python is called, without `self`."""

    name: str
    arguments: int = 0
    keywords: tuple[str, ...] = ()
    is_async: bool | None = False
    """None: a call of it may as well return a future."""


class Override(NamedTuple):
    """A method that is overridden: what kafka-python calls it with."""

    name: str
    parameters: tuple[str, ...] = ()
    is_async: bool = False


CALLS = (
    Call("kafka.future:Future"),
    Call("kafka.future:Future.success", 1),
    Call("kafka.future:Future.add_callback", 1),
    Call("kafka.future:Future.add_errback", 1),
    Call("kafka.net.wakeup_notifier:WakeupNotifier", 1),
    Call("kafka.net.wakeup_notifier:WakeupNotifier.__call__", 1, is_async=True),
    Call("kafka.net.wakeup_notifier:WakeupNotifier.notify"),
    Call("kafka.net.compat:KafkaNetClient", 0, ("bootstrap_servers", "proxy_url")),
    Call("kafka.net.compat:KafkaNetClient.connected", 1),
    Call("kafka.net.compat:KafkaNetClient.close"),
    Call("kafka.net.selector:NetworkSelector.start"),
    Call("kafka.net.selector:NetworkSelector.stop", 1),
    Call("kafka.net.selector:NetworkSelector.run", 3),
    Call("kafka.net.selector:NetworkSelector.sleep", 1, is_async=None),
    Call("kafka.net.manager:KafkaConnectionManager.call_soon", 1),
    Call(
        "kafka.net.manager:KafkaConnectionManager.bootstrap_async",
        0,
        ("timeout_ms",),
        is_async=None,
    ),
    Call("kafka.net.manager:KafkaConnectionManager.connection_delay", 1),
    Call(
        "kafka.net.manager:KafkaConnectionManager.get_connection",
        1,
        ("timeout_ms", "pop_on_close", "refresh_metadata_on_err"),
        is_async=None,
    ),
    Call(
        "kafka.net.manager:KafkaConnectionManager.send",
        1,
        ("node_id", "request_timeout_ms"),
    ),
    Call("kafka.net.manager:KafkaConnectionManager.wait_for", 2, is_async=True),
    Call("kafka.net.connection:KafkaConnection.close", 1),
    Call("kafka.net.inet:KafkaNetSocket.register_class", 1),
    Call("kafka.cluster:ClusterMetadata.brokers"),
    Call("kafka.cluster:ClusterMetadata.bootstrap_brokers"),
    Call("kafka.cluster:ClusterMetadata.broker_metadata", 1),
    Call("kafka.cluster:ClusterMetadata.request_update"),
    Call(
        "kafka.coordinator.base:BaseCoordinator",
        1,
        (
            "api_version",
            "group_id",
            "group_instance_id",
            "session_timeout_ms",
            "heartbeat_interval_ms",
            "max_poll_interval_ms",
        ),
    ),
    Call("kafka.coordinator.base:BaseCoordinator.group_metadata"),
    Call(
        "kafka.coordinator.heartbeat:Heartbeat",
        0,
        ("group_id", "session_timeout_ms", "heartbeat_interval_ms"),
    ),
    Call("kafka.coordinator.heartbeat:Heartbeat.time_to_next_heartbeat"),
    Call("kafka.coordinator.base:BaseCoordinator.need_rejoin"),
    Call("kafka.coordinator.base:BaseCoordinator.poll_heartbeat"),
    Call(
        "kafka.coordinator.base:BaseCoordinator.ensure_active_group_async",
        0,
        ("timeout_ms",),
        is_async=True,
    ),
    Call(
        "kafka.coordinator.base:BaseCoordinator.ensure_coordinator_ready_async",
        0,
        ("timeout_ms",),
        is_async=True,
    ),
    Call("kafka.coordinator.base:BaseCoordinator.coordinator_dead", 1),
    Call("kafka.coordinator.base:BaseCoordinator._close_heartbeat"),
)
OVERRIDES = {
    "kafka.coordinator.base:BaseCoordinator": (
        Override("protocol_type"),
        Override("group_protocols"),
        Override("_perform_assignment", ("leader_id", "protocol", "members")),
        Override(
            "_on_join_prepare_async",
            ("generation", "member_id", "timeout_ms"),
            is_async=True,
        ),
        Override(
            "_on_join_complete_async",
            ("generation", "member_id", "protocol", "member_assignment_bytes"),
            is_async=True,
        ),
        Override("reset_generation", ("member_id",)),
        Override("request_rejoin"),
        Override("_send_heartbeat_request", is_async=True),
        Override("_handle_heartbeat_response", ("response", "send_time")),
        Override("_process_join_group_response", ("response", "send_time")),
        Override("_process_sync_group_response", ("response", "send_time")),
    ),
    "kafka.coordinator.heartbeat:Heartbeat": (Override("time_to_next_heartbeat"),),
    "kafka.net.inet:KafkaNetSocket": (
        Override("dns_lookup", ("host", "port", "raise_error")),
    ),
    "kafka.net.sasl.oauth:AbstractTokenProvider": (
        Override("token"),
        Override("extensions"),
    ),
}
CALLED_FROM_OUTSIDE = {"request_rejoin", "dns_lookup", "token", "extensions"}
"""The overrides that other classes call, or we."""
CLIENT_ATTRIBUTES = (
    "_net",
    "_manager.cluster.config",
    "_manager.broker_version",
    "_manager._auth_failures",
    "_manager._conns",
)
MEMBER_ATTRIBUTES = (
    "state",
    "config",
    "coordinator_id",
    "heartbeat.config",
    "heartbeat.heartbeat_failed",
    "heartbeat.last_receive",
    "heartbeat.last_reset",
    "heartbeat.last_send",
    "_generation.generation_id",
    "_heartbeat_wakeup",
    "_heartbeat_loop_future",
)
REPLACED = {"heartbeat"}
"""The attributes of a member that ours are to replace."""
CONSTANTS = (
    "kafka.structs:MemberState.UNJOINED",
    "kafka.structs:MemberState.STABLE",
)


def found(name: str) -> Any:
    """Return what has this name, `module:attribute…`; a string: why there is none."""
    module, _, path = name.partition(":")
    try:
        place: Any = import_module(module)
    except ImportError as error:
        return f"{name} is gone: {error}"
    for part in path.split("."):
        if (place := getattr(place, part, None)) is None:
            return f"{name} is gone: no {part}"
    return place


def broken_calls() -> Iterator[str]:
    """Yield what is wrong with the calls."""
    for call in CALLS:
        function = found(call.name)
        if isinstance(function, str):
            yield function
            continue
        bound = 0 if inspect.isclass(function) or inspect.ismethod(function) else 1
        try:
            inspect.signature(function).bind(
                *[None] * (bound + call.arguments),
                **dict.fromkeys(call.keywords),
            )
        except TypeError as error:
            yield f"{call.name}{inspect.signature(function)}: {error}"
        if call.is_async not in (None, inspect.iscoroutinefunction(function)):
            yield f"{call.name} became {'sync' if call.is_async else 'async'}"


def broken_overrides() -> Iterator[str]:
    """Yield what is wrong with the methods that ours override."""
    for name, overrides in OVERRIDES.items():
        base = found(name)
        if isinstance(base, str):
            yield base
            continue
        text = inspect.getsource(base)
        for override in overrides:
            method = getattr(base, override.name, None)
            if method is None:
                yield f"{name}.{override.name} is gone"
                continue
            _, *parameters = inspect.signature(method).parameters
            if tuple(parameters) != override.parameters:
                yield f"{name}.{override.name} takes {parameters}"
            if inspect.iscoroutinefunction(method) != override.is_async:
                yield f"{name}.{override.name} became {'sync' if override.is_async else 'async'}"
            if (
                override.name not in CALLED_FROM_OUTSIDE
                and f"self.{override.name}(" not in text
            ):
                yield f"{name}.{override.name} is there, and called no more"


def missing(place: Any, paths: tuple[str, ...], what: str) -> Iterator[str]:
    """Yield the attributes that an object lacks."""
    for path in paths:
        here = place
        for part in path.split("."):
            if not hasattr(here, part):
                yield f"{what}.{path} is gone: no {part}"
                break
            here = getattr(here, part)


def broken_attributes() -> Iterator[str]:
    """Yield the attributes that a client and a member have no more. Nothing connects."""
    client_type = found("kafka.net.compat:KafkaNetClient")
    base = found("kafka.coordinator.base:BaseCoordinator")
    if isinstance(client_type, str) or isinstance(base, str):
        return  # said already
    member_type = type("Member", (base,), {})
    member_type.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    with closing(client_type(bootstrap_servers="127.0.0.1:1")) as client:
        member = member_type(client)
        yield from missing(client, CLIENT_ATTRIBUTES, "KafkaNetClient")
        yield from missing(member, MEMBER_ATTRIBUTES, "BaseCoordinator")
        known = {override.name for override in OVERRIDES[MEMBER]} | REPLACED
        for name in sorted((own_names() - known) & {*vars(member), *dir(base)}):
            yield f"BaseCoordinator has a {name} of its own now, which ours would replace"


MEMBER = "kafka.coordinator.base:BaseCoordinator"


@cache
def own_names() -> frozenset[str]:
    """Return the names that our `Member` gives itself: methods and attributes."""
    module = ast.parse((GROUP / "kafka_member.py").read_text())
    [ours] = [node for node in module.body if isinstance(node, ast.ClassDef)]
    methods = {
        node.name
        for node in ours.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    [made] = [
        node
        for node in ours.body
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    ]
    attributes = {
        node.attr
        for node in ast.walk(made)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    return frozenset(methods | attributes) - {"__init__"}


def differences() -> list[str]:
    """Return what this version of kafka-python lacks of what coopstreams uses."""
    constants = [
        lack
        for lack in map(found, CONSTANTS)
        if isinstance(lack, str) and "is gone" in lack
    ]
    return [*broken_calls(), *broken_overrides(), *broken_attributes(), *constants]


def test_kafka_python_has_all_that_coopstreams_uses_of_it() -> None:
    lacks = differences()
    version = found("kafka.version:__version__")
    said = f"kafka-python {version} lacks what coopstreams/group uses:"
    assert not lacks, "\n".join((said, *lacks))


@pytest.mark.parametrize(
    ("owner", "name", "said"),
    [
        (
            "kafka.net.manager:KafkaConnectionManager",
            "wait_for",
            "kafka.net.manager:KafkaConnectionManager.wait_for is gone: no wait_for",
        ),
        (
            MEMBER,
            "_process_sync_group_response",
            f"{MEMBER}._process_sync_group_response is gone",
        ),
        (
            "kafka.net.inet",
            "KafkaNetSocket",
            "kafka.net.inet:KafkaNetSocket is gone: no KafkaNetSocket",
        ),
    ],
)
def test_what_is_gone_is_named(
    owner: str, name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = found(owner) if ":" in owner else import_module(owner)
    monkeypatch.delattr(place, name)
    assert said in differences()


def test_a_call_that_is_no_longer_taken_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager = found("kafka.net.manager:KafkaConnectionManager")
    monkeypatch.setattr(manager, "send", lambda self, request: None)
    monkeypatch.setattr(manager, "wait_for", lambda self, future, timeout_ms: None)
    assert [lack.partition(":")[2] for lack in differences() if "Manager" in lack] == [
        "KafkaConnectionManager.send(self, request): got an unexpected keyword argument 'node_id'",
        "KafkaConnectionManager.wait_for became sync",
    ]


def test_a_name_that_the_base_takes_for_itself_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(found(MEMBER), "heard_at", 0.0, raising=False)
    assert any("has a heard_at of its own" in lack for lack in differences())


def test_every_private_name_that_is_used_is_in_the_contract() -> None:
    """A new use of one goes into the lists above, or comes from elsewhere."""
    named = {
        part
        for name in (
            *(call.name for call in CALLS),
            *(o.name for overrides in OVERRIDES.values() for o in overrides),
            *CLIENT_ATTRIBUTES,
            *MEMBER_ATTRIBUTES,
            *CONSTANTS,
            *OVERRIDES,
        )
        for part in name.replace(":", ".").split(".")
    }
    used = set[str]()
    for path in SEAM:
        tree = ast.parse(path.read_text())
        ours = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and node.attr.startswith("_")
        } | {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        private = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and node.attr.startswith("_")
            and not node.attr.endswith("__")
        }
        used |= private - ours
        used |= {
            name.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith(("kafka.net", "kafka.coordinator"))
            for name in node.names
        }
    assert used - named == set()
