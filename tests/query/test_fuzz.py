"""All requests that the description allows, many that it forbids, and headers that only
instances send: no 500, and answers as described.

schemathesis makes the requests from the description with the stores' names.
"""

from __future__ import annotations

import copy
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.specs.openapi.checks import negative_data_rejection

from coopstreams.query.openapi import description
from coopstreams.query.range_pages import Query
from tests.query.cluster import HOUR, INFOS, LIMITS, Cluster, Data

DATA: Data = {
    "counts": {f"w{i}": (i, i) for i in range(50)},
    "numbers": {i: ({"n": i}, i) for i in range(10)},
    "points": {(i, "a"): ({"n": i}, i) for i in range(3)},
    "hours": {("k", 0): (1, 1), ("k", HOUR): (2, 2)},
    "visits": {("k", 1, 2): (1, 2)},
    "prices": {"k": ([(1, b"1"), (200, b"2")], 200)},
}
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
fuzzed = settings(
    max_examples=15,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def named_stores() -> dict[str, Any]:
    """Return the description with the names of the cluster's stores, and an unknown
    one.
    """
    document = copy.deepcopy(description(LIMITS))
    for path in document["paths"].values():
        for parameter in path.get("get", {}).get("parameters", ()):
            if parameter["name"] == "store":
                parameter["schema"] = {"type": "string", "enum": [*INFOS, "nope"]}
            if parameter["name"] == "key" and parameter["in"] == "path":
                # Any text in a path is a string: without this type, an array counts as
                # an invalid key.
                parameter["schema"] = {
                    "type": "string",
                    "anyOf": [{"enum": ["w1", "k", "3", '[1,"a"]', "base64:AA=="]}, {}],
                }
    return document


DOCUMENT = named_stores()


def requests() -> Iterator[tuple[str, str, GenerationMode]]:
    """Yield each path with valid requests, and with invalid ones if a parameter can be
    invalid.
    """
    for path, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            yield path, method, GenerationMode.POSITIVE
            if operation.get("parameters"):
                yield path, method, GenerationMode.NEGATIVE


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Cluster(2) as cluster:
        cluster.deal(2, DATA)
        yield cluster["a"].url


@pytest.mark.parametrize("most", [15, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("path", "method", "mode"), list(requests()))
def test_a_request_is_answered_as_described(
    url: str, path: str, method: str, mode: GenerationMode, most: int
) -> None:
    operation = schemathesis.openapi.from_dict(DOCUMENT)[path][method.upper()]

    @settings(fuzzed, max_examples=most)
    @given(operation.as_strategy(generation_mode=mode))
    def ask(case: Case[Any]) -> None:
        case.validate_response(case.call(base_url=url), checks=CHECKS)

    ask()


HEADERS = (
    "x-coopstreams-application",
    "x-coopstreams-target",
    "x-coopstreams-generation",
)
texts = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20)
queries = st.builds(
    Query,
    first=st.none() | st.binary(max_size=10),
    last=st.none() | st.binary(max_size=10),
    prefix=st.none() | st.binary(max_size=10),
    reverse=st.booleans(),
    limit=st.integers(-(2**63), 2**63 - 1),
    after=st.none() | st.tuples(st.binary(max_size=10), st.integers(-(2**31), 2**31)),
)


@pytest.mark.ci
@settings(fuzzed, max_examples=150)
@given(
    path=st.sampled_from(
        [
            f"/v1/stores/{store}/{what}"
            for store in [*INFOS, "nope"]
            for what in ("keys/w1", "range")
        ]
    ),
    generation=st.just("1") | st.integers(0, 9).map(str) | texts,
    others=st.just(("words", "a")) | st.just(("words", "a")) | st.tuples(texts, texts),
    query=queries.map(lambda query: msgspec.msgpack.encode(query).hex()) | texts,
)
def test_what_only_instances_send_breaks_nothing_either(
    url: str, path: str, generation: str, others: tuple[str, str], query: str
) -> None:
    headers = dict(zip(HEADERS, (*others, generation), strict=True)) | {
        "x-coopstreams-forwarded": "1"
    }
    parameters = {"query": query} if path.endswith("range") else {}
    response = httpx.get(
        url + path, headers=headers, params=parameters, trust_env=False, timeout=60
    )
    assert response.status_code in (200, 400, 404, 503), response.text


@fuzzed
@given(raw=st.binary(max_size=200))
def test_bytes_that_are_no_request_break_nothing(url: str, raw: bytes) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(
            b"GET /v1/stores/counts/keys/"
            + raw
            + b" HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
        )
        client.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert not answer.startswith(b"HTTP/1.1 5"), answer
