"""An OpenID Connect provider on this machine: its token endpoint knows one client, and
records the requests.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

CLIENT, SECRET = "orders", "secret-of-the-client"


@dataclass
class IdentityProvider:
    """The provider's answers, and its requests."""

    token: Callable[[], str]
    url: str = ""
    down: bool = False
    forms: list[dict[str, list[str]]] = field(default_factory=list)

    def settings(self) -> dict[str, str]:
        """Return the settings of its client."""
        return {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": self.url,
            "sasl.oauthbearer.client.id": CLIENT,
            "sasl.oauthbearer.client.secret": SECRET,
        }

    def answer(
        self, authorization: str, form: dict[str, list[str]]
    ) -> tuple[int, dict[str, object]]:
        """Return status and body of the answer to a token request."""
        if self.down:
            return 503, {"error": "temporarily_unavailable"}
        if (
            authorization
            != f"Basic {base64.b64encode(f'{CLIENT}:{SECRET}'.encode()).decode()}"
        ):
            return 401, {"error": "invalid_client"}
        self.forms.append(form)
        return 200, {
            "access_token": self.token(),
            "token_type": "Bearer",
            "expires_in": 3600,
        }


@contextmanager
def identity_provider(token: Callable[[], str]) -> Iterator[IdentityProvider]:
    """Yield a provider of these tokens."""
    provider = IdentityProvider(token)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(
                self.rfile.read(int(self.headers["Content-Length"])).decode()
            )
            status, body = provider.answer(self.headers.get("Authorization", ""), form)
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the name is http.server's
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider.url = f"http://127.0.0.1:{server.server_port}/token"
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}
        )
        thread.start()
        yield provider
        server.shutdown()
        thread.join()
