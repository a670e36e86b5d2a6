"""While records wait, queries get a share of the CPU time; health and status are
answered in any case.
"""

from __future__ import annotations

import dataclasses

import httpx
import pytest

from tests.query.cluster import LIMITS, Cluster

DATA = {"counts": {f"w{i}": (i, i) for i in range(5)}}


def test_queries_beyond_the_share_wait_and_health_does_not() -> None:
    limits = dataclasses.replace(LIMITS, cpu_share=1e-6, request_s=0.3)
    with (
        Cluster(1, limits) as cluster,
        httpx.Client(trust_env=False, timeout=60) as client,
    ):
        cluster.deal(1, DATA)
        node = cluster["a"]

        def ask(path: str) -> httpx.Response:
            return client.get(node.url + path)

        assert all(
            ask("/v1/stores/counts/keys/w1").status_code == 200 for _ in range(60)
        ), "no record waits"
        node.working = True
        answers = [ask("/v1/stores/counts/keys/w1")]
        while answers[-1].status_code == 200:
            answers.append(ask("/v1/stores/counts/keys/w1"))
        assert answers[-1].json()["error"] == "TIMED_OUT"
        assert (
            ask("/health/live").status_code
            == ask("/v1/status").status_code
            == ask("/metrics").status_code
            == 200
        )
        node.working = False
        assert ask("/v1/stores/counts/keys/w1").status_code == 200


@pytest.mark.ci
def test_an_export_waits_for_its_turn_before_each_page() -> None:
    limits = dataclasses.replace(LIMITS, cpu_share=1e-6, entries=1)
    lines = {"accept": "application/x-ndjson"}
    with (
        Cluster(1, limits) as cluster,
        httpx.Client(trust_env=False, timeout=60) as client,
    ):
        cluster.deal(1, {"counts": {f"{i:05}": (i, i) for i in range(1000)}})
        node = cluster["a"]
        url = node.url + "/v1/stores/counts/range"
        node.working = True
        with (
            client.stream("GET", url, headers=lines, timeout=2) as export,
            pytest.raises(httpx.ReadTimeout),
        ):
            export.read()
        node.working = False
        assert len(client.get(url, headers=lines).text.splitlines()) == 1001
