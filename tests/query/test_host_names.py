"""Who needs no token must call the server by a name of its own: a web page's name may
point here (DNS rebinding).
"""

from __future__ import annotations

import socket

import httpx
import pytest

from coopstreams.common.config import Config
from coopstreams.query.access import Access
from coopstreams.query.host_names import Hosts, named
from coopstreams.query.serving.server import QueryServer
from coopstreams.topology.errors import ConfigError
from tests.query.cluster import LIMITS, Cluster, Data, Node

DATA: Data = {"counts": {f"w{i}": (i, i) for i in range(50)}}
POD = ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local"]
OWN = [
    "localhost:8080",
    "127.0.0.1:8080",
    "10.0.0.7",
    "[::1]:8080",
    "orders",
    "orders:8080",
    "ORDERS:80",
    "a.localhost",
    "localhost.",
    "host.docker.internal:8080",
]
"""Names of any server."""
FOREIGN = [
    "evil.example:8080",
    "evil.example",
    "127.0.0.1.evil.example:8080",
    "[evil.example]:8080",
    "localhost.evil.example",
    "evil.shop.example",
    "evil.internal.example",
]
"""Names that a web page may have."""


@pytest.mark.parametrize("host", OWN)
def test_what_no_page_can_be_called_is_a_name_of_any_server(host: str) -> None:
    assert Hosts().accepts(host)


@pytest.mark.parametrize("host", FOREIGN)
def test_what_a_page_may_be_called_is_no_name_of_a_server(host: str) -> None:
    hosts = named("orders.shop", [], "node-1", POD)
    assert hosts is not None
    assert not hosts.accepts(host)


@pytest.mark.parametrize(
    "host",
    [
        "orders.shop:8080",
        "orders-0.orders.shop.svc",
        "orders.shop.svc.cluster.local",
        "Node-1.example.org",
        "node-1.shop.svc.cluster.local",
        "queries.example.com:443",
        "a.below.example.net",
    ],
)
def test_the_names_of_machine_announcement_pod_and_setting_are_its_names(
    host: str,
) -> None:
    allowed = ["queries.example.com", "*.below.example.net"]
    for machine in ("node-1", "node-1.example.org"):
        hosts = named("db-7", allowed, machine, [*POD, "example.org"])
        assert hosts is not None
        assert hosts.accepts(host)
    assert named("db-7", [*allowed, "*"], "node-1", []) is None, "any name will do"


def test_a_server_knows_the_name_that_it_announces_and_that_of_its_machine() -> None:
    server = QueryServer("127.0.0.1:0", "https://queries.example.com/orders")
    server.stop()
    assert server._access.hosts is not None
    assert server._access.hosts.accepts("queries.example.com")
    assert server._access.hosts.accepts(socket.gethostname())
    assert not server._access.hosts.accepts("www.example.com")


def answers(node: Node, host: str) -> dict[str, tuple[int, str]]:
    paths = ["stores/counts/keys/w1", "stores/counts/range", "stores", "status"]
    found = {}
    with httpx.Client(trust_env=False, timeout=60, headers={"host": host}) as client:
        for path in paths:
            answer = client.get(f"{node.url}/v1/{path}")
            found[path] = (answer.status_code, answer.json().get("error", ""))
        for probe in ("live", "ready"):
            assert client.get(f"{node.url}/health/{probe}").status_code == 200
    return found


@pytest.mark.parametrize("native", ["1", "0"])
def test_a_page_whose_name_points_here_reads_no_rows(
    native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native == "0":
        monkeypatch.setenv("COOPSTREAMS_NATIVE", "0")
    with Cluster(1, LIMITS) as cluster:
        cluster.deal(2, DATA)
        node = cluster["a"]
        for host in FOREIGN:
            assert set(answers(node, host).values()) == {(403, "UNKNOWN_HOST")}
        for host in [*OWN, socket.gethostname()]:
            assert set(answers(node, host).values()) == {(200, "")}
        told = httpx.get(f"{node.url}/v1/stores", headers={"host": "evil.example"})
        assert '"evil.example" is no name' in told.json()["message"]
        assert "http.allowed.hosts" in told.json()["message"]


def test_with_tokens_any_name_will_do() -> None:
    tokens = Access({"read": ["secret"], "operate": ["secret"]})
    with Cluster(1, LIMITS, access=[tokens]) as cluster:
        cluster.deal(2, DATA)
        answer = httpx.get(
            f"{cluster['a'].url}/v1/stores/counts/keys/w1",
            headers={"host": "any.example", "authorization": "Bearer secret"},
            trust_env=False,
        )
        assert answer.json()["value"] == 1


@pytest.mark.parametrize("native", ["1", "0"])
@pytest.mark.parametrize(
    ("allowed", "status"), [("*", 200), ("*.example", 200), ("other.example", 403)]
)
def test_names_may_be_configured(
    allowed: str, status: int, native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native == "0":
        monkeypatch.setenv("COOPSTREAMS_NATIVE", "0")
    settings = {"bootstrap.servers": "nowhere:9092", "http.allowed.hosts": allowed}
    access = Access.of(Config.of(settings).values)
    with Cluster(1, LIMITS, access=[access]) as cluster:
        cluster.deal(2, DATA)
        found = answers(cluster["a"], "orders.example:80").values()
        assert {code for code, _ in found} == {status}


@pytest.mark.parametrize("names", ["", "a:8080", "http://a", "a,,b", "*a", "a.*"])
def test_what_is_no_name_is_refused(names: str) -> None:
    with pytest.raises(ConfigError, match="names of hosts without ports"):
        Config.of({"bootstrap.servers": "a:9092", "http.allowed.hosts": names})
