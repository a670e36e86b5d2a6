"""Reads settings of topics, and makes the command that changes one."""

from __future__ import annotations

from collections.abc import Mapping

IN_SYNC = "min.insync.replicas"


def policies(settings: Mapping[str, str]) -> set[str]:
    """Return the words of `cleanup.policy`; an empty set if it is not known."""
    words = settings.get("cleanup.policy", "").split(",")
    return {word.strip() for word in words} - {""}


def deletes(settings: Mapping[str, str]) -> bool:
    """Whether brokers delete records of a topic with these settings by age or size."""
    kept_for_ever = (
        settings.get("retention.ms") == settings.get("retention.bytes") == "-1"
    )
    return "delete" in policies(settings) and not kept_for_ever


def setting_command(
    topic: str,
    setting: str,
    value: str,
) -> str:
    """Return the shell command that sets a setting of a topic. A value with a comma is
    in square brackets.
    """
    bracketed = f"[{value}]" if "," in value else value
    return (
        "`kafka-configs.sh --bootstrap-server HOST:PORT --alter --entity-type topics "
        f"--entity-name {topic} --add-config {setting}={bracketed}`"
    )
