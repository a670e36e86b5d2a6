"""Names the ACL that is missing when Kafka refuses a request, and the command that adds
it.

Kafka's refusal names neither the user nor the operation; an `Attempt` has both.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Acl:
    """An operation that a user may do on a resource.

    Shape: `kind` and `operation` are words of `kafka-acls`, with a space for the dash;
    `name` is empty for the cluster. `prefixed`: on all resources whose names begin with
    `name`.
    """

    kind: str
    name: str
    operation: str
    prefixed: bool = False


def adding(
    principal: str,
    acls: Sequence[Acl],
    servers: str = "<HOST:PORT>",
) -> str:
    """Return the `kafka-acls.sh` command that allows each of these operations on each
    of these resources.
    """
    operations = dict.fromkeys(acl.operation for acl in acls)
    words = [f"--operation {operation}" for operation in operations]
    words += dict.fromkeys(
        f"--{acl.kind.replace(' ', '-')}{f' {shlex.quote(acl.name)}' if acl.name else ''}"
        for acl in acls
    )
    if acls[0].prefixed:
        words.append("--resource-pattern-type prefixed")
    user = principal if principal == "User:<USER>" else shlex.quote(principal)
    return f"kafka-acls.sh --bootstrap-server {servers} --add --allow-principal {user} {' '.join(words)}"


@dataclass(frozen=True, slots=True)
class Login:
    """The login of a process. `principal`: its name in ACLs, empty if only the brokers
    know it. `by`: the mechanism.
    """

    principal: str = ""
    by: str = ""
    by_token: bool = False
    """Whether the client logs in with tokens: an expired token is replaced."""

    def __str__(self) -> str:
        return (
            f"{self.principal or 'the user of this process'} ({self.by})"
            if self.by
            else "this process"
        )


_OF_ONE_LIFE = re.compile(r"(consumer-|alone-)?[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}.*")
"""The part of a transactional id behind the name of its group, by which ids of the same
user differ.
"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A request with what it needs ACLs for: an operation on topics, a group, a
    transactional id.

    Shape: `operation` is a word of `kafka-acls`, and is for the topics. `topics` has
    names, separated by commas.
    """

    login: Login = Login()
    operation: str = ""
    topics: str = ""
    group: str = ""
    transactional_id: str = ""

    def missing(self, refusal: str) -> str:
        """Return a sentence on the missing ACL with the command that adds it; empty:
        the error is not about ACLs. `refusal`: Kafka's name of the error.
        """
        match refusal:
            case "TOPIC_AUTHORIZATION_FAILED":
                return self._said(self.operation or "Read", "topic", self.topics)
            case "GROUP_AUTHORIZATION_FAILED":
                return self._said(
                    "Delete" if self.operation == "Delete" else "Read",
                    "group",
                    self.group,
                )
            case "TRANSACTIONAL_ID_AUTHORIZATION_FAILED":
                return self._said("Write", "transactional-id", self.transactional_id)
            case "CLUSTER_AUTHORIZATION_FAILED":
                return self._said("IdempotentWrite", "cluster", "")
        return ""

    def _said(
        self,
        operation: str,
        kind: str,
        name: str,
    ) -> str:
        resource = f"{kind.replace('-', ' ')}{f' {name}' if name else ''}"
        where = f"one of the topics {name}" if ", " in name else f"the {resource}"
        lasting = _OF_ONE_LIFE.sub("", name) if kind == "transactional-id" else name
        lacking = [
            Acl(kind, each, operation, prefixed=lasting != name)
            for each in lasting.split(", ")
        ]
        included = (
            ", which Read and Write include,"
            if (operation, kind) == ("Describe", "topic")
            else ""
        )
        return (
            f"{self.login} has no ACL for {operation}{included} on {where}. Allow it: "
            f"{adding(self.login.principal or 'User:<USER>', lacking)}"
        )


NEEDS_NOTHING = Attempt()
"""A request that needs no ACL, or whose ACLs are unknown."""
