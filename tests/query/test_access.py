"""Access control: tokens of two roles, also between instances and in a rotation;
warnings about open servers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import httpx
import pytest

from coopstreams.common.config import Config
from coopstreams.query.access import Access, Role, role_of
from coopstreams.query.app import QueryApp
from coopstreams.query.client import QueryClient
from coopstreams.query.parameters import RequestLimits
from coopstreams.query.serving.server import OPEN, QueryServer
from coopstreams.status.reasons import Health, Reason
from coopstreams.topology.errors import ConfigError, QueryError
from tests.query.cluster import Cluster, Node

READ, OPERATE, NEW = "read-" + 20 * "r", "operate-" + 20 * "o", "new-" + 20 * "n"
TOKENS: Mapping[Role, list[str]] = {"read": [READ], "operate": [OPERATE]}
DATA = {"counts": {f"w{i}": (i, i) for i in range(50)}}
KEYS = [f"w{i}" for i in range(50)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2, access=[Access(TOKENS)] * 2) as cluster:
        cluster.deal(2, DATA)
        yield cluster


def ask(
    node: Node, path: str, token: str | None = None, scheme: str = "Bearer"
) -> httpx.Response:
    headers = {} if token is None else {"authorization": f"{scheme} {token}"}
    return httpx.get(node.url + path, headers=headers, trust_env=False, timeout=60)


@pytest.mark.parametrize(
    ("settings", "named"),
    [({}, "read"), ({"http_token_operate": OPERATE}, "operate")],
    ids=["one", "two"],
)
def test_who_shows_no_token_is_told_the_setting_that_has_it(
    settings: dict[str, str], named: str
) -> None:
    access = Access.of(config(http_token_read=READ, **settings).values)
    with pytest.raises(QueryError, match=f"needs the token http.token.{named} of"):
        access.check("operate", None, None)


def config(**settings: object) -> Config:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return Config.of({"bootstrap.servers": "nowhere:9092", **named})


def paths() -> list[str]:
    node = Node("x")
    node.server.stop()
    return [
        path.replace(":path", "")
        for path in QueryApp(node, node.metrics, RequestLimits(), OPEN).answers()
    ]


def test_every_path_is_closed_but_health_and_the_description() -> None:
    roles = {path: role_of(path) for path in paths()}
    assert {path for path, role in roles.items() if role is None} == {
        "/health/live",
        "/health/ready",
        "/openapi.json",
    }
    assert {path for path, role in roles.items() if role == "operate"} == {
        "/v1/status",
        "/v1/topology",
        "/metrics",
    }


@pytest.mark.parametrize("path", paths())
def test_a_path_is_answered_with_the_token_of_its_role_only(
    cluster: Cluster, path: str
) -> None:
    role, node = role_of(path), cluster["a"]
    real = path.replace("{store}", "counts").replace("{key}", "w1") + (
        "?key=w1" if path.endswith("/keys") else ""
    )
    answers = {
        token: ask(node, real, token).status_code
        for token in (None, NEW, READ, OPERATE)
    }
    if role is None:
        assert set(answers.values()) == {200}
        return
    own, other = (READ, OPERATE) if role == "read" else (OPERATE, READ)
    assert answers[own] in (200, 400)  # a path that does not fit the kind of this store
    assert (answers[None], answers[NEW], answers[other]) == (401, 401, 403)


@pytest.mark.parametrize("path", ["/health/live", "/health/ready"])
def test_health_says_why_in_words_with_the_token_to_operate_only(path: str) -> None:
    with Cluster(1, access=[Access(TOKENS)]) as cluster, Cluster(1) as without:
        for node in (cluster["a"], without["a"]):
            node.now = Health(
                live=False,
                ready=False,
                reasons=(Reason("resting", "KeyError: 'ann@example.org'"),),
            )
        asked = [
            (cluster["a"], None),
            (cluster["a"], READ),
            (cluster["a"], OPERATE),
            (without["a"], None),
        ]
        answers = [ask(node, path, token) for node, token in asked]
        assert [answer.status_code for answer in answers] == [503] * 4
        reasons = [answer.json()["reasons"] for answer in answers]
        assert {reason["code"] for (reason,) in reasons} == {"resting"}
        assert ["ann@" in reason["message"] for (reason,) in reasons] == [
            False,
            False,
            True,
            True,
        ]
        assert "http.token.operate" in reasons[0][0]["message"]


@pytest.mark.parametrize("path", ["/v1/pause", "/v1/resume"])
def test_what_changes_something_needs_the_token_to_operate(
    cluster: Cluster, path: str
) -> None:
    node = cluster["a"]

    def post(to: Node, token: str | None) -> int:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return httpx.post(
            to.url + path, headers=headers, trust_env=False, timeout=60
        ).status_code

    for paused in (False, True):
        node.paused = paused
        assert [post(node, token) for token in (None, NEW, READ)] == [401, 401, 403]
        assert node.paused is paused
        assert post(node, OPERATE) == 200
        assert node.paused is (path == "/v1/pause")
    assert ask(node, path, OPERATE).status_code == 405
    with Cluster(1) as without:
        assert post(without["a"], None) == post(without["a"], OPERATE) == 403, (
            "nobody may"
        )
        assert not without["a"].paused


def test_a_client_pauses_the_instance_that_it_asks(cluster: Cluster) -> None:
    with QueryClient(cluster["a"].url, token=OPERATE) as client:
        client.pause()
        assert (cluster["a"].paused, cluster["b"].paused) == (True, False)
        client.resume()
    assert not cluster["a"].paused


@pytest.mark.parametrize(
    ("token", "scheme"),
    [(READ, "Basic"), (READ[:-1], "Bearer"), (READ + "x", "Bearer"), ("é", "Bearer")],
)
def test_what_is_not_the_token_is_none(
    cluster: Cluster, token: str, scheme: str
) -> None:
    response = httpx.get(
        cluster["a"].url + "/v1/stores",
        headers={b"authorization": f"{scheme} {token}".encode("latin-1")},
    )
    assert response.status_code == httpx.codes.UNAUTHORIZED
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"] == "UNAUTHORIZED"
    assert READ not in response.text


def test_a_request_shows_a_few_tokens_at_most(cluster: Cluster) -> None:
    """Each is compared with each: a header with 30,000 took a part of a second, without
    a valid one among them.
    """
    right = ",".join([*(7 * ["guess"]), READ])
    assert ask(cluster["a"], "/v1/stores", right).status_code == httpx.codes.OK
    refused = ask(cluster["a"], "/v1/stores", f"guess,{right}")
    assert refused.status_code == httpx.codes.UNAUTHORIZED
    assert "a request may show 8 tokens" in refused.json()["message"]


def test_a_refusal_does_not_say_whether_a_store_exists(cluster: Cluster) -> None:
    assert (
        ask(cluster["a"], "/v1/stores/nope/keys/w1").status_code
        == httpx.codes.UNAUTHORIZED
    )


def test_instances_send_the_tokens_to_each_other(cluster: Cluster) -> None:
    with QueryClient(cluster["a"].url, token=READ) as client:
        assert [
            found and found.value for found in client.get_many("counts", KEYS)
        ] == list(range(50))
        assert {client.get("counts", key).owner for key in KEYS} == {"a", "b"}  # type: ignore[union-attr]
        assert len(list(client.range("counts"))) == len(KEYS)
    with QueryClient(cluster["a"].url, token=OPERATE) as client:
        assert [instance["live"] for instance in client.status()["instances"]] == [
            True,
            True,
        ]


def test_a_forwarded_request_needs_the_token_too(cluster: Cluster) -> None:
    headers = {
        "x-coopstreams-forwarded": "1",
        "x-coopstreams-application": "words",
        "x-coopstreams-target": "a",
    }
    response = httpx.get(
        cluster["a"].url + "/v1/stores/counts/keys/w1",
        headers={**headers, "x-coopstreams-generation": "1"},
        trust_env=False,
    )
    assert response.status_code == httpx.codes.UNAUTHORIZED


def test_a_client_without_the_token_is_told_at_once(cluster: Cluster) -> None:
    with (
        QueryClient(cluster["a"].url) as client,
        pytest.raises(QueryError, match=r"http\.token\.read") as refused,
    ):
        client.get("counts", "w1")
    assert (refused.value.code, refused.value.retryable) == ("UNAUTHORIZED", False)


@pytest.mark.parametrize("tokens", [([READ], [READ, NEW]), ([READ, NEW], [NEW])])
def test_while_a_token_is_replaced_all_instances_answer_for_all(
    tokens: tuple[list[str], list[str]],
) -> None:
    with Cluster(
        2, access=[Access({"read": own, "operate": own}) for own in tokens]
    ) as cluster:
        cluster.deal(2, DATA)
        [known] = set(tokens[0]) & set(tokens[1])
        for node in cluster.nodes:
            with QueryClient(node.url, token=known) as client:
                assert [
                    found and found.value for found in client.get_many("counts", KEYS)
                ] == list(range(50))


def test_instances_with_different_tokens_say_so_and_ask_again() -> None:
    with Cluster(
        2,
        access=[
            Access({"read": [READ], "operate": [READ]}),
            Access({"read": [NEW], "operate": [NEW]}),
        ],
    ) as c:
        c.deal(2, DATA)
        key = next(key for key in KEYS if c.owner("counts", key).name == "b")
        answer = ask(c["a"], f"/v1/stores/counts/keys/{key}", READ)
        assert (answer.status_code, answer.json()["error"]) == (503, "TASK_MOVING")
        assert (
            "instance b does not know the token of this one: give all instances the same"
            in answer.json()["message"]
        )
        [gone] = [
            i
            for i in ask(c["a"], "/v1/status", READ).json()["instances"]
            if i["id"] == "b"
        ]
        assert not gone["live"]


def test_one_token_is_enough_for_both_roles() -> None:
    access = Access.of(config(http_token_read=f"{READ},{NEW}").values)
    assert access.tokens == {"read": (READ, NEW), "operate": (READ, NEW)}
    assert Access.of(config().values) == OPEN


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"http_token_read": "short"}, "at least 16 letters"),
        ({"http_token_read": f"{READ},"}, "at least 16 letters"),
        ({"http_token_read": ",".join(9 * [READ])}, "at most 8 tokens"),
        ({"http_token_read": "a token with spaces in it"}, "openssl rand -hex 32"),
        ({"http_token_operate": OPERATE}, "anybody could read the state"),
        ({"http_ssl_client_auth": "required"}, r"Set http\.ssl\.ca\.location"),
        (
            {"http_ssl_ca_location": "ca.pem"},
            r"without http\.ssl\.certificate\.location",
        ),
        ({"http_ssl_certificate_location": "nowhere.pem"}, "nowhere.pem.*No such file"),
    ],
)
def test_settings_that_leave_something_open_are_refused(
    settings: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        Access.of(config(**settings).values)
    assert OPERATE not in str(refused.value)


def test_tokens_are_secrets_from_files_and_never_shown(tmp_path: object) -> None:
    checked = config(http_token_read=READ, http_token_operate=OPERATE)
    assert READ not in repr(checked)
    assert OPERATE not in repr(checked)
    assert "[hidden]" in repr(checked)
    with pytest.raises(ConfigError) as refused:
        config(http_token_read="swordfish")
    assert "swordfish" not in str(refused.value)


@pytest.mark.parametrize(
    ("listen", "access", "words"),
    [
        ("127.0.0.1:0", OPEN, ""),
        ("[::1]:0", OPEN, ""),
        ("0.0.0.0:0", OPEN, "anybody who reaches it can read the state"),
        ("0.0.0.0:0", Access(TOKENS), "tokens travel over it"),
    ],
)
def test_a_server_that_others_reach_says_what_is_open(
    listen: str, access: Access, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        QueryServer(listen, access=access).stop()
    assert [words in record.getMessage() for record in caplog.records] == (
        [True] if words else []
    )
