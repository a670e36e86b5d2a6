"""Hides the user name and password that an address may contain."""

from __future__ import annotations

import re

# All up to the last "@": a password may have "/", ":" and "@" itself.
_CREDENTIALS = re.compile(r"(\w+://|^)\S*@")


def without_credentials(address: str) -> str:
    """Return an address for errors and logs, with everything between the scheme and the
    last `@` hidden.
    """
    return _CREDENTIALS.sub(r"\1[hidden]@", address)
