"""The golden bytes of each format and version, in `golden.json`.

python -m tests.formats.golden adds the versions that are missing, and new kinds of
bytes of a version. It never changes what is there: those bytes are on disks and in
topics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from coopstreams.status.format_table import FORMATS
from tests.formats.samples import SAMPLES, Parts

FILE = Path(__file__).with_name("golden.json")


def golden() -> dict[str, dict[int, dict[str, bytes]]]:
    """Return the golden bytes: by format, version and part."""
    return {
        name: {
            int(version): {part: _bytes(part, text) for part, text in parts.items()}
            for version, parts in versions.items()
        }
        for name, versions in json.loads(FILE.read_text()).items()
    }


def has_grown(part: str, written: bytes, kept: bytes) -> bool:
    """Return whether bytes are the golden ones, or JSON with these fields and others.

    The digest of a snapshot manifest is that of its fields.
    """
    if not part.endswith("json"):
        return written == kept
    new, old = orjson.loads(written), orjson.loads(kept)
    return _contains(new | {"sha256": old.get("sha256")}, old)


def _contains(new: Any, old: Any) -> bool:
    if isinstance(old, dict) and isinstance(new, dict):
        return all(
            name in new and _contains(new[name], value) for name, value in old.items()
        )
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_contains, new, old))
    return bool(new == old)


def _bytes(part: str, text: str) -> bytes:
    return text.encode() if part.endswith("json") else bytes.fromhex(text)


def _text(part: str, data: bytes) -> str:
    return data.decode() if part.endswith("json") else data.hex()


def _with_missing(kept: Mapping[str, Mapping[int, Parts]]) -> dict[str, Any]:
    """Return the golden bytes as JSON values, with what this release writes for each
    version and part that is missing.
    """
    return {
        each.name: {
            str(version): {part: _text(part, data) for part, data in parts.items()}
            for version in each.versions
            for parts in [
                {
                    **SAMPLES[each.name].write(version),
                    **kept.get(each.name, {}).get(version, {}),
                }
            ]
        }
        for each in FORMATS
    }


if __name__ == "__main__":
    there = golden() if FILE.exists() else {}
    FILE.write_text(json.dumps(_with_missing(there), indent=1) + "\n")
