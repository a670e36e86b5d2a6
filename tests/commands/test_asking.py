"""Commands that query an application with access control: token and certificates come
from the settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from coopstreams.query.access import Access
from coopstreams.query.certificates import Certificates, Files
from coopstreams.topology.errors import ConfigError, QueryError
from tests.command_line import app
from tests.query.cluster import Cluster
from tests.query.office import Office

READ, OPERATE = "read-" + 20 * "r", "operate-" + 20 * "o"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Office(tmp_path_factory.mktemp("office")).files()


@pytest.fixture(scope="module")
def url(own: Files) -> Iterator[str]:
    access = Access(
        {"read": [READ], "operate": [OPERATE]}, Certificates(own, clients_show=True)
    )
    with Cluster(1, access=[access]) as cluster:
        cluster.deal(1, {"counts": {"be": (2, 1)}})
        yield cluster["a"].url


def run(*arguments: str, **environment: str | None) -> Result:
    return CliRunner().invoke(
        app, list(arguments), env={"COLUMNS": "80", **environment}
    )


def settings(folder: Path, own: Files, **tokens: str) -> str:
    file = folder / "settings.toml"
    lines = [f'token.{role} = "{token}"' for role, token in tokens.items()]
    lines += [
        f'ssl.{name}.location = "{path}"'
        for name, path in (
            ("certificate", own.certificate),
            ("key", own.key),
            ("ca", own.authorities),
        )
    ]
    file.write_text("\n".join(["[http]", *lines]))
    return str(file)


def test_a_file_has_what_both_commands_need(
    url: str, own: Files, tmp_path: Path
) -> None:
    config = settings(tmp_path, own, read=READ, operate=OPERATE)
    assert '"value":2' in run("query", url, "counts", "be", "--config", config).stdout
    assert "running" in run("status", url, "--config", config).stdout
    assert (
        "running"
        in run("status", url.removeprefix("https://"), "--config", config).stdout
    )


def test_an_address_without_a_scheme_is_one_of_http() -> None:
    with Cluster(1) as cluster:
        cluster.deal(1, {"counts": {"be": (2, 1)}})
        address = cluster["a"].url.removeprefix("http://")
        assert "running" in run("status", address).stdout
        assert '"value":2' in run("query", address, "counts", "be").stdout


def test_a_key_that_is_not_there_is_said(url: str, own: Files, tmp_path: Path) -> None:
    config = settings(tmp_path, own, read=READ)
    for store, words, said in (
        ("counts", (), 'store counts has no key "nobody"\n'),
        ("hours", (), 'store hours has no windows of key "nobody"\n'),
        (
            "visits",
            ("--to", "5"),
            'store visits has no sessions of key "nobody" of these times\n',
        ),
        (
            "prices",
            ("--from", "1"),
            'store prices has no versions of key "nobody" of these times\n',
        ),
        ("prices", ("--as-of", "1"), 'store prices has no key "nobody" as of 1\n'),
    ):
        done = run("query", url, store, "nobody", *words, "--config", config)
        assert (done.exit_code, done.stdout, done.stderr) == (1, "", said)


def test_the_environment_may_have_the_token(
    url: str, own: Files, tmp_path: Path
) -> None:
    config = settings(tmp_path, own)
    assert (
        run(
            "query",
            url,
            "counts",
            "be",
            "--config",
            config,
            COOPSTREAMS_HTTP_TOKEN_READ=READ,
        ).exit_code
        == 0
    )


def test_while_a_token_replaces_another_an_instance_that_knows_only_the_new_one_answers(
    url: str, own: Files, tmp_path: Path
) -> None:
    config = settings(
        tmp_path, own, read=f"{'old-' * 6},{READ}", operate=f"{'old-' * 6},{OPERATE}"
    )
    assert '"value":2' in run("query", url, "counts", "be", "--config", config).stdout
    assert "running" in run("status", url, "--config", config).stdout


def test_what_is_missing_is_said_at_once(url: str, own: Files, tmp_path: Path) -> None:
    refused = run("query", url, "counts", "be", "--config", settings(tmp_path, own))
    assert isinstance(refused.exception, QueryError)
    assert (
        "http.token.read in --config FILE.toml, or COOPSTREAMS_HTTP_TOKEN_READ"
        in str(refused.exception)
    )
    untrusted = run("status", url)
    assert isinstance(untrusted.exception, QueryError)
    assert "http.ssl.ca.location" in str(untrusted.exception)
    short = run("status", url, COOPSTREAMS_HTTP_TOKEN_READ="short")
    assert isinstance(short.exception, ConfigError)


def test_a_pause_is_for_the_instance_that_is_named_or_for_all() -> None:
    with Cluster(
        2, access=[Access({"read": [READ], "operate": [OPERATE]})] * 2
    ) as cluster:
        cluster.deal(2, {"counts": {"be": (2, 1)}})
        nodes = [cluster["a"], cluster["b"]]

        def paused(*words: str) -> list[bool]:
            done = run(
                *words,
                COOPSTREAMS_HTTP_TOKEN_READ=READ,
                COOPSTREAMS_HTTP_TOKEN_OPERATE=OPERATE,
            )
            assert done.exit_code == 0, done.output
            return [node.paused for node in nodes]

        assert paused("pause", nodes[0].url) == [True, False]
        assert paused("pause", nodes[0].url, "--all") == [True, True]
        assert paused("resume", nodes[1].url) == [True, False]
        assert paused("resume", nodes[1].url, "--all") == [False, False]


def test_all_instances_are_paused_but_those_that_are_named() -> None:
    access = Access({"read": [READ], "operate": [OPERATE]})
    with Cluster(4, access=[access] * 4) as cluster:
        cluster.locate({}, without_url=["c"])
        cluster["b"].server.stop()
        done = run(
            "pause", cluster["a"].url, "--all", COOPSTREAMS_HTTP_TOKEN_OPERATE=OPERATE
        )
        assert done.exit_code == 1
        assert [node.paused for node in cluster.nodes] == [True, False, False, True]
        assert "b: not paused: instance b at" in done.stderr
        assert "c: not paused: it serves no queries" in done.stderr
        assert f"{cluster['d'].url}: paused" in done.stdout
