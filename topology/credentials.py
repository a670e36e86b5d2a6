"""Shows addresses without the credentials that some people write into them."""

from __future__ import annotations

import re

# All up to the last "@": a password may have "/", ":" and "@" itself.
_CREDENTIALS = re.compile(r"(\w+://|^)\S*@")


def without_credentials(address: str) -> str:
    """Return an address as errors and logs show it: what stands before its `@` is
    hidden.
    """
    return _CREDENTIALS.sub(r"\1[hidden]@", address)
