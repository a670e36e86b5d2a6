"""Tables of the documentation that are made from the code: settings, metrics, paths of
the HTTP interface, topics, commands, public names.

python -m tests.docs.reference writes them into docs/reference/, docs/api.md, docs/consumer.md and
docs/internals/formats.md
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer.main
from prometheus_client.metrics import MetricWrapperBase

import coopstreams
from coopstreams import consumer, spark, testing
from coopstreams.commit import cluster_policy, record
from coopstreams.common.config import SETTINGS
from coopstreams.common.metrics import Metrics
from coopstreams.consumer import CooperativeConsumer, CooperativeFetch
from coopstreams.consumer.consumer_settings import SETTINGS as CONSUMER_SETTINGS
from coopstreams.preflight.checks import CHECKS
from coopstreams.preflight.last_version import topic_spec as version_topic
from coopstreams.query.client import QueryClient
from coopstreams.query.openapi import description
from coopstreams.query.parameters import RequestLimits
from coopstreams.status.format_table import FORMATS
from coopstreams.status.reasons import KINDS, UNWELL
from coopstreams.topology import errors
from coopstreams.topology.graph.nodes import InternalTopic
from coopstreams.topology.graph.partitions import topic_config
from tests.command_line import app
from tests.docs.pages import ROOT

SETTING = ("setting", "default", "meaning")
POLICY = ("level", "setting", "default", "meaning")
METRIC = ("metric", "kind", "labels", "meaning")
PATH = ("`GET`", "answer")
PARAMETER = ("parameter", "of", "meaning")
CHECK = ("check", "protects from", "a finding")
TOPIC = ("topic", "partitions", "settings")
COMMAND = ("command", "what it does", "options")
REASON = ("reason", "means", "live")
FORMAT = (
    "format",
    "version",
    "where it stands",
    "written by",
    "read by",
    "a reader of an unknown version",
)


def settings() -> list[list[str]]:
    """Return a row for each setting."""
    return [
        [f"`{name}`", _default(default), meaning]
        for name, (_, default, meaning) in SETTINGS.items()
    ]


def consumer_settings() -> list[list[str]]:
    """Return a row for each setting of a cooperative consumer."""
    return [
        [f"`{name}`", _default(default), meaning]
        for name, (_, default, meaning) in CONSUMER_SETTINGS.items()
    ]


def policies() -> list[list[str]]:
    """Return a row for each setting of the policy topic."""
    levels = (("cluster", cluster_policy.CLUSTER), ("topic", cluster_policy.TOPICS))
    return [
        [level, f"`{name}`", _default(str(default).lower()), meaning]
        for level, known in levels
        for name, (default, meaning) in known.items()
    ]


def metrics() -> list[list[str]]:
    """Return a row for each metric, in the order of their names."""
    rows = []
    for collector in Metrics("application", "instance").registry._collector_to_names:
        assert isinstance(collector, MetricWrapperBase)
        (described,) = collector.describe()
        name = described.name + ("_total" if described.type == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in collector._labelnames)
        rows.append([f"`{name}`", described.type, labels, described.documentation])
    return sorted(rows)


def paths() -> list[list[str]]:
    """Return a row for each read-only path of the HTTP interface."""
    return [
        [f"`{path}`", operations["get"]["summary"]]
        for path, operations in description(RequestLimits())["paths"].items()
        if "get" in operations
    ]


def parameters() -> list[list[str]]:
    """Return a row for each parameter of the read-only paths; one that means the same
    on several is in one row.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for path, operations in description(RequestLimits())["paths"].items():
        for parameter in operations.get("get", {}).get("parameters", ()):
            if parameter["in"] == "query":
                place = path.removeprefix("/v1/stores/{store}/")
                found.setdefault((parameter["name"], _meaning(parameter)), []).append(
                    f"`{place}`"
                )
    return [
        [f"`{name}`", ", ".join(places), meaning]
        for (name, meaning), places in found.items()
    ]


def checks() -> list[list[str]]:
    """Return a row for each check of a start."""
    return [
        [
            f"`{check.code}`",
            check.protects_from,
            "is logged"
            if check.error is None
            else f"ends the start: `{check.error.__name__}`",
        ]
        for check in CHECKS
    ]


def topics() -> list[list[str]]:
    """Return a row for each kind of topic that coopstreams makes."""
    store = topic_config(InternalTopic("", "changelog", ()))
    window = topic_config(InternalTopic("", "changelog", (), retention_ms=0))
    repartition = topic_config(InternalTopic("", "repartition", ()))
    version = version_topic("app")
    shared = [record.topic_spec(), cluster_policy.topic_spec()]
    return [
        [
            "`<application>-<store>-changelog`",
            "those of the sub-topology",
            _config(store),
        ],
        ["the same, of a window store", "those of the sub-topology", _config(window)],
        [
            "`<application>-<name>-repartition`",
            "the most of the topics above it",
            _config(repartition),
        ],
        [
            f"`<application>{version.name.removeprefix('app')}`",
            str(version.partitions),
            _config(dict(version.config)),
        ],
        *(
            [f"`{spec.name}`", str(spec.partitions), _config(dict(spec.config))]
            for spec in shared
        ),
    ]


def commands() -> list[list[str]]:
    """Return a row for each command, those of groups behind their group's name; of the
    help, the first sentence.
    """
    return [
        [
            f"`{' '.join([name, *arguments])}`",
            _sentence(command.help or ""),
            ", ".join(f"`{option}`" for option in options),
        ]
        for name, command in _leaves("coopstreams", typer.main.get_command(app))
        for arguments, options in [_words(command)]
    ]


def reasons() -> list[list[str]]:
    """Return a row for each reason of health."""
    return [
        [f"`{code}`", meaning, "no" if effect is UNWELL else "yes"]
        for code, (effect, meaning) in KINDS.items()
    ]


def formats() -> list[list[str]]:
    """Return a row for each format that another release may meet."""
    return [
        [
            each.name,
            ", ".join(map(str, each.versions)),
            each.place,
            each.written_by,
            each.read_by,
            each.unknown,
        ]
        for each in FORMATS
    ]


def names(scope: object, public: Sequence[str]) -> list[list[str]]:
    """Return a row for each public name of a module or class: the first sentence of its
    docstring.
    """
    return [[f"`{name}`", _summary(getattr(scope, name))] for name in sorted(public)]


def methods(kind: type) -> list[str]:
    """Return the public methods of a class, inherited ones too."""
    return [
        name
        for name in dir(kind)
        if callable(getattr(kind, name)) and not name.startswith("_")
    ]


def markdown(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as it stands on a page."""
    return "\n".join(
        "| " + " | ".join(row).replace("  ", " ") + " |"
        for row in [heading, ["---"] * len(heading), *rows]
    )


def _default(value: object) -> str:
    return "" if value is None else f"`{value!r}`" if value == "" else f"`{value}`"


def _meaning(parameter: dict[str, Any]) -> str:
    schema = parameter["schema"]
    if "default" in schema:
        bounds = f"{schema['minimum']} to {schema['maximum']}, and {schema['default']} if none is given."
        return f"{parameter['description']} {bounds}"
    return " ".join(
        [
            parameter["description"],
            *([schema["description"]] if "description" in schema else []),
        ]
    )


def _config(config: dict[str, str]) -> str:
    return ", ".join(f"`{name}={value}`" for name, value in config.items())


def _summary(described: object) -> str:
    """Return the first sentence of a docstring as a cell."""
    paragraph = (inspect.getdoc(described) or "").partition("\n\n")[0]
    return _sentence(paragraph).replace("|", "\\|")


def _sentence(text: str) -> str:
    """Return the first sentence of a text, in one line."""
    return re.split(r"(?<=\.) ", " ".join(text.split()))[0]


def _leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield each command below one, with the words that call it."""
    inside = getattr(command, "commands", {})
    if not inside or command.invoke_without_command:
        yield name, command
    for word, below in inside.items():
        yield from _leaves(f"{name} {word}", below)


def _words(command: Any) -> tuple[list[str], list[str]]:
    """Return the arguments and the options of a command."""
    shown = [
        parameter
        for parameter in command.params
        if not getattr(parameter, "hidden", False) and parameter.name != "help"
    ]
    arguments = [
        (parameter.metavar or parameter.name).upper()
        for parameter in shown
        if parameter.param_type_name == "argument"
    ]
    options = [
        max(parameter.opts, key=len)
        for parameter in shown
        if parameter.param_type_name == "option"
    ]
    return arguments, options


_MODULES: dict[str, tuple[object, Sequence[str]]] = {
    "coopstreams": (coopstreams, coopstreams.__all__),
    "coopstreams.consumer": (consumer, consumer.__all__),
    "coopstreams.spark": (spark, spark.__all__),
    "coopstreams.testing": (testing, testing.__all__),
    "errors": (errors, [name for name in vars(errors) if name.endswith("Error")]),
}
_CLASSES = (QueryClient, CooperativeConsumer, CooperativeFetch)
SCOPES: dict[str, tuple[object, Sequence[str]]] = _MODULES | {
    kind.__name__: (kind, methods(kind)) for kind in _CLASSES
}
"""What has public names, and these."""

_API = ROOT / "docs" / "api.md"
_REFERENCE = ROOT / "docs" / "reference"
_CONSUMER = ROOT / "docs" / "consumer.md"
_INTERNALS = ROOT / "docs" / "internals"
TABLES: dict[str, tuple[Path, Sequence[str], Callable[[], list[list[str]]]]] = {
    "settings": (_REFERENCE / "settings.md", SETTING, settings),
    "metrics": (_REFERENCE / "metrics.md", METRIC, metrics),
    "paths": (_REFERENCE / "http.md", PATH, paths),
    "parameters": (_REFERENCE / "http.md", PARAMETER, parameters),
    "checks": (_REFERENCE / "checks.md", CHECK, checks),
    "topics": (_REFERENCE / "topics.md", TOPIC, topics),
    "reasons": (_REFERENCE / "health.md", REASON, reasons),
    "commands": (_REFERENCE / "commands.md", COMMAND, commands),
    "formats": (_INTERNALS / "formats.md", FORMAT, formats),
    "consumer settings": (_CONSUMER, SETTING, consumer_settings),
    "policies": (_CONSUMER, POLICY, policies),
    **{
        f"names of {scope}": (
            _API,
            (f"`{scope}`", "what it is"),
            partial(names, *found),
        )
        for scope, found in SCOPES.items()
    },
}
"""Each generated table: its page, its heading, and its rows."""


def write(page: Path, heading: Sequence[str], rows: list[list[str]]) -> None:
    """Put a table into its page in the place of the one with the same heading."""
    lines = page.read_text(encoding="utf-8").splitlines()
    start = lines.index(markdown(heading, []).splitlines()[0])
    end = next(
        (at for at in range(start, len(lines)) if not lines[at].startswith("|")),
        len(lines),
    )
    lines[start:end] = markdown(heading, rows).splitlines()
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for page, heading, rows in TABLES.values():
        write(page, heading, rows())
