"""While a schema registry hangs, everything that needs none is answered: health, other
stores, also of the same kind.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import httpx
import pytest

from coopstreams.query.backend import StoreInfo
from coopstreams.topology import serdes
from coopstreams.topology.schemas import SchemaSerde
from tests.query.cluster import LIMITS, Cluster, Data, Node
from tests.query.silent import SilentServer

PATIENCE_S = 30
KEY = serdes.avro({"type": "string", "of": "keys of a registry that hangs"})
VALUE = serdes.avro({"type": "long", "of": "values of a registry that hangs"})
OF_SCHEMA_7 = b"\0\0\0\0\x07"
DATA: Data = {
    "counts": {f"w{i}": (i, i) for i in range(50)},
    "blobs": {b"k": (OF_SCHEMA_7 + b"\x02", 1)},
}
ASKING = [
    "/v1/stores/parcels/keys/%22a%22",
    "/v1/stores/parcels/keys/base64:AAAAAAcCYQ",
    "/v1/stores/parcels/keys?key=base64:AAAAAAcCYQ",
    "/v1/stores/parcels/range?from=base64:AAAAAAcCYQ",
    "/v1/metadata/parcels/base64:AAAAAAcCYQ",
    "/v1/stores/blobs/keys/k",
    "/v1/stores/blobs/keys?key=k",
    "/v1/stores/blobs/range",
]
"""Requests for which the registry must be asked: about the key of the request, or about
the value of a row.
"""
ANSWERED = [
    "/health/live",
    "/health/ready",
    "/v1/stores/counts/keys/w1",
    "/v1/stores/counts/range?limit=1",
    "/v1/metadata/counts/w1",
    "/metrics",
]


class WithSchemas(Node):
    """A node with a store whose keys have a schema, and one whose values have one."""

    def stores(self) -> Mapping[str, StoreInfo]:
        stores = super().stores()
        return {
            **stores,
            "parcels": replace(stores["parcels"], key=KEY),
            "blobs": replace(stores["blobs"], value=VALUE),
        }


@contextmanager
def bound(registry: SilentServer) -> Iterator[None]:
    with ExitStack() as stack:
        for serde in (KEY, VALUE):
            assert isinstance(serde, SchemaSerde)
            stack.enter_context(serde.codec.bound(registry.registry(), ["subject"]))
        yield


@pytest.mark.parametrize("native", ["1", "0"])
@pytest.mark.parametrize("path", ASKING)
def test_others_are_answered_while_a_registry_is_asked(
    path: str, native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native == "0":
        monkeypatch.setenv("COOPSTREAMS_NATIVE", "0")
    told: list[httpx.Response] = []
    with (
        SilentServer() as registry,
        bound(registry),
        Cluster(1, LIMITS, kind=WithSchemas) as cluster,
        httpx.Client(trust_env=False, timeout=PATIENCE_S) as client,
    ):
        cluster.deal(1, DATA)
        url = cluster["a"].url

        def ask() -> None:
            told.append(httpx.get(url + path, trust_env=False, timeout=PATIENCE_S))

        asking = [threading.Thread(target=ask) for _ in range(3)]
        for thread in asking:
            thread.start()
            assert registry.asked.acquire(timeout=PATIENCE_S)
        for other in ANSWERED:
            assert client.get(url + other).status_code == httpx.codes.OK
        assert told == [], "the registry is still being asked"
        registry.close()
        for thread in asking:
            thread.join()
    for answer in told:
        assert (answer.status_code, answer.json()["error"]) == (503, "UNREADABLE")


def test_what_a_registry_has_said_once_is_known_to_the_thread_for_keys() -> None:
    """Once a schema is known, the batch reads its values, without a detour by the
    server behind the front.
    """
    known = serdes.avro({"type": "long", "of": "values of a schema that is known"})
    data = known.serialize(3)

    class Known(Node):
        """A node whose values have a schema that is known."""

        def stores(self) -> Mapping[str, StoreInfo]:
            stores = super().stores()
            return {**stores, "blobs": replace(stores["blobs"], value=known)}

    assert isinstance(known, SchemaSerde)
    with (
        SilentServer() as registry,
        Cluster(1, LIMITS, kind=Known) as cluster,
        httpx.Client(trust_env=False, timeout=PATIENCE_S) as client,
    ):
        cluster.deal(1, {"blobs": {b"k": (data, 1)}})
        assert known.deserialize(data) == 3
        known.codec._registry = registry.registry()
        url = f"{cluster['a'].url}/v1/stores/blobs/keys"
        assert client.get(f"{url}/k").json()["value"] == 3
        assert client.get(f"{url}?key=k").json()["entries"][0]["value"] == 3
