"""HTTPS: between instances, with and without certificates of clients, and while
certificates are renewed.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from coopstreams.dev.broker_certificates import Issued, authority, issue
from coopstreams.query.access import Access
from coopstreams.query.certificates import Certificates, Files
from coopstreams.query.client import QueryClient
from coopstreams.topology.errors import ConfigError, QueryError
from tests.query.cluster import LIMITS, Cluster
from tests.query.office import HOSTS, Office

DATA = {"counts": {f"w{i}": (i, i) for i in range(50)}}


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path)


def trusting(office: Office, own: Files | None = None) -> ssl.SSLContext:
    """Return the context of a client that trusts the office, and shows its own
    certificate.
    """
    return (own or Files(None, None, None, str(office.authorities))).client()


@pytest.fixture(params=[False, True], ids=["server", "mutual"])
def cluster(request: pytest.FixtureRequest, office: Office) -> Iterator[Cluster]:
    access = [
        Access({}, Certificates(office.files(name), clients_show=request.param))
        for name in "ab"
    ]
    with Cluster(2, access=access) as cluster:
        cluster.deal(2, DATA)
        yield cluster


def test_instances_answer_for_each_other_over_https(
    cluster: Cluster, office: Office
) -> None:
    assert cluster["a"].url.startswith("https://127.0.0.1:")
    with QueryClient(
        cluster["a"].url, tls=trusting(office, office.files("client"))
    ) as client:
        assert [
            found and found.value
            for found in client.get_many("counts", list(DATA["counts"]))
        ] == list(range(50))
        assert len(list(client.range("counts"))) == len(DATA["counts"])
        assert [instance["live"] for instance in client.status()["instances"]] == [
            True,
            True,
        ]


def test_an_authority_that_is_not_known_is_an_error_at_once(cluster: Cluster) -> None:
    with (
        QueryClient(cluster["a"].url) as client,
        pytest.raises(QueryError, match=r"http\.ssl\.ca\.location") as error,
    ):
        client.stores()
    assert (error.value.code, error.value.retryable) == ("UNTRUSTED", False)


def test_without_authorities_of_its_own_a_client_trusts_those_of_the_system(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "SSL_CERT_FILE", str(office.authorities)
    )  # where OpenSSL takes the system's from
    with Cluster(
        1, access=[Access({}, Certificates(office.files(), clients_show=False))]
    ) as cluster:
        cluster.deal(1, DATA)
        with QueryClient(cluster["a"].url, deadline_s=0) as client:
            assert client.stores()


def test_an_instance_whose_certificate_another_one_refuses_says_so(
    office: Office, tmp_path: Path
) -> None:
    (tmp_path / "stranger").mkdir()
    strange = Office(tmp_path / "stranger")
    other = replace(strange.files(), authorities=str(office.authorities))
    access = [
        Access({}, Certificates(files, clients_show=True))
        for files in (office.files("a"), other)
    ]
    with Cluster(2, LIMITS, access=access) as cluster:
        cluster.deal(2, DATA)
        tls = trusting(
            strange,
            replace(office.files("client"), authorities=str(strange.authorities)),
        )
        with QueryClient(cluster["b"].url, deadline_s=0, tls=tls) as client:
            with pytest.raises(
                QueryError,
                match=r"http\.ssl\.client\.auth=required .*\.certificate\.location",
            ) as error:
                client.get_many("counts", list(DATA["counts"]))
            assert error.value.code == "TASK_MOVING"


def test_without_a_certificate_a_client_gets_nothing(office: Office) -> None:
    with Cluster(
        1, access=[Access({}, Certificates(office.files(), clients_show=True))]
    ) as cluster:
        strange = Office(
            office.folder / ".."
        )  # another authority, which this server does not trust
        strange.root = authority()
        other = strange.files("stranger")
        for tls in (
            trusting(office),
            trusting(
                office,
                Files(other.certificate, other.key, None, str(office.authorities)),
            ),
        ):
            with (
                httpx.Client(verify=tls, trust_env=False) as client,
                pytest.raises(httpx.TransportError),
            ):
                client.get(cluster["a"].url + "/v1/stores")
            with (
                QueryClient(cluster["a"].url, deadline_s=0, tls=tls) as queries,
                pytest.raises(QueryError, match=r"http\.ssl\.client\.auth=required"),
            ):
                queries.stores()


def test_plain_http_at_an_https_port_is_no_answer(cluster: Cluster) -> None:
    plain = cluster["a"].url.replace("https", "http")
    with (
        QueryClient(plain, deadline_s=0) as client,
        pytest.raises(QueryError, match="does not answer"),
    ):
        client.stores()


def test_a_renewed_certificate_is_shown_to_new_connections(office: Office) -> None:
    files = office.files()
    certificates = Certificates(files, clients_show=False)
    with Cluster(1, access=[Access({}, certificates)]) as cluster:
        before = shown(cluster["a"].url, office)
        assert not certificates.renew()
        assert shown(cluster["a"].url, office) == before
        office.write(files, issue(office.root, "node", HOSTS))
        assert certificates.renew()
        assert shown(cluster["a"].url, office) != before


def test_an_authority_that_is_taken_out_of_its_file_is_not_trusted_any_more(
    office: Office,
) -> None:
    certificates = Certificates(office.files(), clients_show=True)
    tls = trusting(office, office.files("client"))
    with Cluster(1, access=[Access({}, certificates)]) as cluster:

        def status() -> int:
            with httpx.Client(verify=tls, trust_env=False, timeout=60) as client:
                return client.get(cluster["a"].url + "/v1/stores").status_code

        assert status() == httpx.codes.OK
        office.authorities.write_bytes(authority().certificate)
        assert certificates.renew()
        with pytest.raises(httpx.TransportError):
            status()


def test_a_half_written_renewal_leaves_the_old_certificate_and_is_read_when_it_is_whole(
    office: Office,
) -> None:
    files = office.files()
    certificates = Certificates(files, clients_show=False)
    assert files.certificate
    assert files.key
    with Cluster(1, access=[Access({}, certificates)]) as cluster:
        before, old_key, new = (
            shown(cluster["a"].url, office),
            Path(files.key).read_bytes(),
            issue(office.root, "n", HOSTS),
        )
        office.write(files, Issued(new.certificate, old_key))
        with pytest.raises(ConfigError, match="these cannot be used"):
            certificates.renew()
        assert shown(cluster["a"].url, office) == before
        office.write(files, new)
        assert certificates.renew()
        assert shown(cluster["a"].url, office) != before


def test_a_renewal_that_cannot_be_read_for_a_moment_is_read_later(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = office.files()
    certificates = Certificates(files, clients_show=False)
    office.write(files, issue(office.root, "node", HOSTS))

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(ssl.SSLContext, "load_cert_chain", denied)
        with pytest.raises(ConfigError, match="Permission denied"):
            certificates.renew()
    assert certificates.renew()
    assert not certificates.renew()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"nothing",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ],
)
def test_files_that_are_no_certificates_are_refused_with_the_cure(
    office: Office, content: bytes
) -> None:
    files = office.files()
    assert files.certificate
    Path(files.certificate).write_bytes(content)
    with pytest.raises(ConfigError, match="PEM files are needed"):
        Certificates(files, clients_show=False)


def shown(url: str, office: Office) -> bytes:
    """Return the certificate that a server shows."""
    host, port = url.removeprefix("https://").split(":")
    return ssl.get_server_certificate(
        (host, int(port)), ca_certs=str(office.authorities)
    ).encode()


def test_connections_without_a_handshake_are_closed_and_are_no_more_than_the_limit_allows(
    office: Office,
) -> None:
    access = [Access({}, Certificates(office.files(), clients_show=False))]

    def connected(cluster: Cluster) -> socket.socket:
        opened = socket.create_connection(("127.0.0.1", cluster["a"].server.port))
        opened.settimeout(30)  # asyncio closes it after a minute
        return opened

    with Cluster(
        1, replace(LIMITS, connections=2, ask_s=600.0), access=access
    ) as cluster:
        held = [connected(cluster) for _ in range(4)]
        with connected(cluster) as one_more:
            assert ends(one_more)
        for one in held:
            one.close()
        with QueryClient(cluster["a"].url, tls=trusting(office)) as client:
            assert client.stores()
    with (
        Cluster(1, replace(LIMITS, ask_s=0.5), access=access) as cluster,
        connected(cluster) as silent,
    ):
        assert ends(silent)


def test_a_server_stops_although_clients_keep_connections_for_later(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    access = [Access({}, Certificates(office.files(), clients_show=False))]
    with (
        Cluster(1, access=access) as cluster,
        QueryClient(cluster["a"].url, tls=trusting(office)) as client,
    ):
        assert client.stores()
        cluster["a"].server.stop()
    assert caplog.messages == []  # a graceful time-out that was exceeded, by no request


def ends(connection: socket.socket) -> bool:
    """Return that the other side has ended a connection; wait for it."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
