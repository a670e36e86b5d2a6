"""Reads the golden bytes with the release that is installed, and prints for each format
and version `read`, or the sentence with which it is refused.

    python golden_reader.py golden.json

It imports nothing of these tests: release 0.1 runs it.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from coopstreams.commit import record
from coopstreams.group import codec
from coopstreams.state.checkpoints import Checkpoints
from coopstreams.state.manifest import Manifest
from coopstreams.topology.errors import CoopStreamsError
from coopstreams.topology.graph.outline import read_outline
from coopstreams.topology.keys import KeyRange

Parts = Mapping[str, bytes]
HALF = KeyRange.of_groups(0, 127)


def _subscription(parts: Parts) -> object:
    wrapper = ConsumerProtocolSubscription.decode(parts["wrapper"])
    return [
        codec.decode_subscription(_message(wrapper, parts, text), "m-1")
        for text in ("json", "warm json")
        if text in parts
    ]


def _assignment(parts: Parts) -> object:
    wrapper = ConsumerProtocolAssignment.decode(parts["wrapper"])
    return [
        codec.decode_assignment(_message(wrapper, parts, "json", cluster), "m-1")
        for cluster in ("cluster json", "warm cluster json")
    ]


def _message(wrapper: Any, parts: Parts, *texts: str) -> bytes:
    """Return the message that has these texts of the parts."""
    wrapper.user_data = parts["head"] + b"".join(
        zlib.compress(parts[text]) for text in texts
    )
    return bytes(wrapper.encode())


READERS: Mapping[str, Callable[[Parts], object]] = {
    "group metadata": _subscription,
    "assignment": _assignment,
    "commit key": lambda parts: record.decode_key(parts["key"]),
    "commit value": lambda parts: [
        record.decode_value(data, HALF) for data in parts.values()
    ],
    "offset metadata": lambda parts: [
        record.Committed.parse(40, data.decode()) for data in parts.values()
    ],
    "checkpoints": lambda parts: Checkpoints.decode(parts["checkpoints"]),
    "snapshot manifest": lambda parts: Manifest.from_json(parts["json"]),
    "topology record": lambda parts: read_outline(parts["json"]),
}


def main() -> None:
    for name, versions in json.loads(Path(sys.argv[1]).read_text()).items():
        for version, texts in versions.items() if name in READERS else ():
            parts = {
                part: text.encode() if part.endswith("json") else bytes.fromhex(text)
                for part, text in texts.items()
            }
            try:
                READERS[name](parts)
                print(f"{name} {version}: read")
            except CoopStreamsError as error:
                print(f"{name} {version}: {error}")


if __name__ == "__main__":
    main()
