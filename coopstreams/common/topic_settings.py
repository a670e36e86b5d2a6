"""The command that sets a setting of a topic, for the messages that advise it."""

from __future__ import annotations


def setting_command(topic: str, setting: str, value: str) -> str:
    """Return the command that gives a setting of a topic this value. Square brackets
    let it have a comma.
    """
    bracketed = f"[{value}]" if "," in value else value
    return (
        "`kafka-configs.sh --bootstrap-server HOST:PORT --alter --entity-type topics "
        f"--entity-name {topic} --add-config {setting}={bracketed}`"
    )
