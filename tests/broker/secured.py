"""A broker with TLS, users and ACLs, and users of it with the ACLs that `coopstreams
acls` prints.
"""

# confluent-kafka exports these names without declaring it, and its classes need wider types.
# pyright: reportPrivateImportUsage=false, reportArgumentType=false

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from rich.console import Console
from typer.testing import CliRunner

from coopstreams import Topology
from coopstreams.common.acl_errors import Acl
from coopstreams.dev.broker import KafkaBroker
from coopstreams.dev.broker_security import Secured
from tests.command_line import app
from tests.conftest import Kafka
from tests.docs.pages import ROOT, code_words, table_headed

CONSUMER = ROOT / "docs" / "consumer.md"
ERRORS = ROOT / "docs" / "guide" / "errors.md"
ACLS = ("resource", "name", "operations", "without it")
"""The heading of the table of ACLs."""
_KINDS = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional id": ResourceType.TRANSACTIONAL_ID,
    "cluster": ResourceType.BROKER,
}


def binding(acl: Acl, user: str) -> AclBinding:
    """Return an ACL in the admin client's form."""
    operation = AclOperation[re.sub(r"(?<!^)(?=[A-Z])", "_", acl.operation).upper()]
    pattern = (
        ResourcePatternType.PREFIXED if acl.prefixed else ResourcePatternType.LITERAL
    )
    return AclBinding(
        _KINDS[acl.kind],
        acl.name,
        pattern,
        f"User:{user}",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )


def printed(topology: Topology, **settings: str) -> list[Acl]:
    """Return the ACLs that `coopstreams acls` prints for an application with these
    settings, dots as underscores.
    """
    module: Any = ModuleType("printed_application")
    module.topology = topology
    sys.modules[module.__name__] = module
    words = ["acls", module.__name__, "--principal", "User:anybody", "--format", "json"]
    words += [
        word
        for name, value in settings.items()
        for word in ("--set", f"{name.replace('_', '.')}={value}")
    ]
    try:
        result = CliRunner().invoke(app, words)
    finally:
        del sys.modules[module.__name__]
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["unknown"] == []
    return [
        Acl(
            row["resource"], row["name"], row["operation"], row["pattern"] == "prefixed"
        )
        for row in said["acls"]
    ]


def documented(page: Path, **names: str) -> list[Acl]:
    """Return the ACLs of the table on a page, with these names for its placeholders."""
    found = []
    for resource, name, operations, _ in table_headed(page, *ACLS):
        kind, _, how = resource.partition(", ")
        for each in code_words(name):
            text = re.sub(r"<(\w+)>", lambda match: names[match[1]], each)
            found += [
                Acl(kind, text, operation, how == "prefixed")
                for operation in operations.split(", ")
            ]
    assert found
    return found


@dataclass(slots=True)
class SecuredKafka(Kafka):
    """The secured broker that the tests of a module share; the test itself is its super
    user.
    """

    broker: KafkaBroker = field(kw_only=True)

    @property
    def secured(self) -> Secured:
        """The broker's keys, certificates and super user."""
        assert self.broker.secured is not None
        return self.broker.secured

    def user(
        self, name: str, acls: Iterable[Acl], mechanism: str = "SCRAM-SHA-512"
    ) -> dict[str, Any]:
        """Make a user with these ACLs; return how to connect as it."""
        password = f"secret-of-{name}"
        info = ScramCredentialInfo(ScramMechanism[mechanism.replace("-", "_")], 4096)
        made = self._admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion(name, info, password.encode())]
        )
        for answer in made.values():
            answer.result(60)
        self.allow(name, acls)
        return self.settings | {
            "sasl.mechanism": mechanism,
            "sasl.username": name,
            "sasl.password": password,
        }

    def without_password(self) -> dict[str, str]:
        """Return how to connect, without a login."""
        return {
            name: value
            for name, value in self.settings.items()
            if not name.startswith("sasl.")
        }

    def with_certificate(self, user: str) -> dict[str, Any]:
        """Return how to connect as this user by mutual TLS."""
        certificate, key = self.secured.certificate(user)
        running = self.broker.running
        assert running is not None
        return {
            "bootstrap.servers": f"127.0.0.1:{running.inner_port}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.secured.authority),
            "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(key),
        }

    def allow(self, user: str, acls: Iterable[Acl]) -> None:
        if bindings := list({binding(acl, user) for acl in acls}):
            for answer in self._admin.create_acls(bindings).values():
                answer.result(60)

    def take_away(self, user: str, acl: Acl) -> None:
        one = binding(acl, user)
        same = AclBindingFilter(
            one.restype,
            one.name,
            one.resource_pattern_type,
            one.principal,
            one.host,
            one.operation,
            one.permission_type,
        )
        for answer in self._admin.delete_acls([same]).values():
            assert len(answer.result(60)) == 1

    def refusals(self, user: str, *but: str) -> set[str]:
        """Return the refused operations of a user, with the resource.

        Requests about hanging transactions are left out: those on `__consumer_offsets`,
        and on these topics.
        """
        told = re.findall(
            rf"Principal = User:{re.escape(user)} is Denied operation = (\w+) .* resource = (\S+) ",
            self.broker.log_file.read_text(),
        )
        hanging = {
            "DESCRIBE Topic:LITERAL:__consumer_offsets",
            *(f"READ Topic:LITERAL:{topic}" for topic in but),
        }
        return {f"{operation} {resource}" for operation, resource in told} - hanging


@contextmanager
def secured_kafka(
    folder: Path, console: Console, settings: Mapping[str, str] | None = None
) -> Iterator[SecuredKafka]:
    """Yield a secured broker with these server properties besides."""
    changes = {"broker.session.timeout.ms": "60000", **(settings or {})}
    with KafkaBroker(folder, settings=changes, console=console, secure=True) as broker:
        assert broker.secured is not None
        login = broker.secured.admin()
        admin = AdminClient(
            {"bootstrap.servers": broker.bootstrap, **login, "log_level": 2}
        )
        yield SecuredKafka(broker.bootstrap, admin, login=login, broker=broker)
