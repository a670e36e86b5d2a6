"""A new application: its files fit each other, its test passes, and it runs as its
README says.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import yaml  # type: ignore[import-untyped]
from packaging.requirements import Requirement
from packaging.version import Version
from typer.testing import CliRunner, Result

from coopstreams.commands.command_settings import cluster
from coopstreams.commands.init import project_of
from coopstreams.commands.processes.restarts import STOPPED, WRONG
from coopstreams.common.config import Config
from coopstreams.common.setting_sources import settings_of
from coopstreams.query.openapi import description
from coopstreams.query.parameters import RequestLimits
from coopstreams.topology.errors import ConfigError, UnknownTopicError
from tests.broker.reading import read_topic
from tests.broker.waiting import eventually
from tests.command_line import app
from tests.conftest import Kafka

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a-token-for-the-test-of-init"


def run(*arguments: str, input_: str | None = None, token: str | None = None) -> Result:
    return CliRunner().invoke(
        app, list(arguments), input=input_, env={"COOPSTREAMS_HTTP_TOKEN_READ": token}
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("new") / "orders"
    assert run("init", str(made)).exit_code == 0
    return made


def test_the_files_have_the_name_of_the_folder_or_the_one_given(
    folder: Path, tmp_path: Path
) -> None:
    assert {file.name for file in folder.iterdir()} == set(project_of("orders"))
    assert "orders.service" in project_of("orders")
    assert not any(
        "my-application" in file.read_text() or "template" in file.name
        for file in folder.iterdir()
    )
    assert (
        run("init", str(tmp_path / "Strange Folder"), "--name", "shipping").exit_code
        == 0
    )
    assert (
        'StreamsBuilder("shipping")'
        in (tmp_path / "Strange Folder" / "app.py").read_text()
    )


@pytest.mark.parametrize("name", ["Orders", "my orders", "-a", "a" * 51, "a_b"])
def test_a_name_that_is_not_one_everywhere_is_refused(
    name: str, tmp_path: Path
) -> None:
    assert isinstance(run("init", str(tmp_path / name)).exception, ConfigError)
    assert not (tmp_path / name).exists()


def test_nothing_is_overwritten(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("mine")
    refused = run("init", str(tmp_path), "--name", "mine")
    assert isinstance(refused.exception, ConfigError)
    assert "has app.py already" in str(refused.exception)
    assert [file.name for file in tmp_path.iterdir()] == ["app.py"]
    assert (tmp_path / "app.py").read_text() == "mine"


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "orders").write_text("mine")
    for command in (
        ["init", str(tmp_path / "orders")],
        ["pack", str(tmp_path / "orders" / "worker.tar.gz")],
    ):
        assert isinstance(run(*command).exception, ConfigError)
    assert (tmp_path / "orders").read_text() == "mine"


@pytest.mark.ci
def test_its_own_test_passes(folder: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            folder,
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.ci
def test_what_the_readme_types_are_commands(folder: Path) -> None:
    [block] = re.findall(
        r"```sh\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL
    )
    typed = [
        shlex.split(command.rpartition("|")[2], comments=True)
        for command in block.splitlines()
    ]
    for _, *arguments in (words for words in typed if words[0] == "coopstreams"):
        names = [word for word in arguments[:2] if word.isalpha()]
        known = [names[:n] for n in (1, 2) if run(*names[:n], "--help").exit_code == 0]
        assert known, arguments
        options = {word for word in arguments if word.startswith("--")}
        assert all(option in run(*known[-1], "--help").output for option in options), (
            arguments
        )


def manifests(folder: Path) -> dict[str, Any]:
    return {
        one["kind"]: one
        for one in yaml.safe_load_all((folder / "kubernetes.yaml").read_text())
    }


def test_the_manifests_fit_each_other_the_settings_and_the_paths(folder: Path) -> None:
    found = manifests(folder)
    service, stateful, scaler = (
        found["Service"],
        found["StatefulSet"],
        found["HorizontalPodAutoscaler"],
    )
    [container] = stateful["spec"]["template"]["spec"]["containers"]
    assert (
        service["spec"]["selector"]
        == stateful["spec"]["template"]["metadata"]["labels"]
    )
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"] == "orders"
    assert scaler["spec"]["scaleTargetRef"]["name"] == stateful["metadata"]["name"]
    budget = found["PodDisruptionBudget"]["spec"]
    assert budget["selector"] == stateful["spec"]["selector"]
    assert service["spec"]["publishNotReadyAddresses"], (
        "the others could not ask a pod that restores a task"
    )
    assert not stateful["spec"]["template"]["spec"]["enableServiceLinks"], (
        "unknown settings are refused"
    )
    paths = description(RequestLimits())["paths"]
    probes = ("livenessProbe", "readinessProbe", "startupProbe")
    assert all(container[probe]["httpGet"]["path"] in paths for probe in probes)
    given = {
        one["name"]: one.get("value", TOKEN).replace("$(POD_NAME)", "orders-0")
        for one in container["env"]
    }
    docker = (folder / "Dockerfile").read_text()
    given |= dict(
        pair.split("=")
        for line in re.findall(r"^ENV (.*)", docker, re.MULTILINE)
        for pair in line.split()
    )
    config = Config.of(settings_of(folder / "settings.toml", given, {}), "orders")
    assert config["http.listen"].endswith(f":{container['ports'][0]['containerPort']}")
    assert config["application.server"] == "orders-0.orders:8080"
    assert config["http.token.read"] == (TOKEN,)
    [mount], [claim] = (
        container["volumeMounts"],
        stateful["spec"]["volumeClaimTemplates"],
    )
    assert (mount["mountPath"], mount["name"]) == (
        config["state.dir"],
        claim["metadata"]["name"],
    )


def test_uv_and_pip_are_told_of_the_same_release_and_of_this_one(folder: Path) -> None:
    by_uv = tomllib.loads((folder / "pyproject.toml").read_text())
    [named] = by_uv["project"]["dependencies"]
    assert (folder / "requirements.txt").read_text().split() == [named]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = Version(project["version"])
    taken = Requirement(named).specifier
    assert version in taken
    assert f"{version.major}.{version.minor + 1}.0" not in taken
    assert by_uv["project"]["requires-python"] == project["requires-python"]


def test_the_pods_keep_the_restricted_standard(folder: Path) -> None:
    pod = manifests(folder)["StatefulSet"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    user = re.search(r"^USER (\d+)$", (folder / "Dockerfile").read_text(), re.MULTILINE)
    assert user is not None, (
        "a name would not do: the kubelet cannot tell that it is not root"
    )
    assert int(user[1]) == pod["securityContext"]["fsGroup"]


def test_the_unit_starts_what_the_container_starts(folder: Path) -> None:
    unit, docker = (
        (folder / "orders.service").read_text(),
        (folder / "Dockerfile").read_text(),
    )
    entry = orjson.loads(re.search(r"^ENTRYPOINT (.*)", docker, re.MULTILINE)[1])  # type: ignore[index]
    [start] = re.findall(r"^ExecStart=\S*/(.*)", unit, re.MULTILINE)
    assert shlex.split(start)[: len(entry)] == entry


def test_the_unit_leaves_to_the_supervisor_what_it_can_mend_and_starts_nothing_again_that_nobody_has_mended(
    folder: Path,
) -> None:
    told = dict(
        line.split("=", 1)
        for line in (folder / "orders.service").read_text().splitlines()
        if "=" in line
    )
    assert told["Restart"] == "on-failure"
    assert {*map(int, told["RestartPreventExitStatus"].split())} == {WRONG, STOPPED}
    assert int(told["RestartSec"]) > 10 / 5, (
        "systemd gives up after five starts within ten seconds"
    )
    assert told["OOMPolicy"] == "continue"


@pytest.mark.ci
def test_the_container_takes_the_wheel_that_was_copied_and_not_a_newer_one_of_an_index(
    folder: Path, tmp_path: Path
) -> None:
    extra = 'Provides-Extra: http\nRequires-Dist: server; extra == "http"\n'
    for place, name, version in (
        ("wheels", "coopstreams", "0.2.0"),
        ("index", "coopstreams", "0.2.9"),
        ("index", "server", "1.0.0"),
    ):
        (tmp_path / place).mkdir(exist_ok=True)
        with zipfile.ZipFile(
            tmp_path / place / f"{name}-{version}-py3-none-any.whl", "w"
        ) as wheel:
            within = f"{name}-{version}.dist-info"
            wheel.writestr(
                f"{within}/METADATA",
                f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{extra}",
            )
            wheel.writestr(
                f"{within}/WHEEL",
                "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            )
            wheel.writestr(f"{within}/RECORD", "")
    shutil.copy(folder / "requirements.txt", tmp_path)
    [install] = re.findall(
        r"^RUN pip (install .*?) \\$", (folder / "Dockerfile").read_text(), re.MULTILINE
    )
    told = subprocess.run(
        f"{sys.executable} -m pip {install} --dry-run --ignore-installed --no-index --find-links index",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "Would install coopstreams-0.2.0 server-1.0.0" in told


@pytest.mark.ci
@pytest.mark.broker
def test_it_runs_as_its_readme_says(folder: Path, kafka: Kafka) -> None:
    """The application runs with its own settings, and with environment variables, as in
    a container.
    """
    name = kafka.unique("orders")
    lines, counts, servers = (
        f"{name}-lines",
        f"{name}-counts",
        ("--bootstrap-servers", kafka.bootstrap),
    )
    program = (folder / "app.py").read_text()
    for before, after in (("orders", name), ("lines", lines), ("word-counts", counts)):
        program = program.replace(f'"{before}"', f'"{after}"')
    (folder / "on_kafka.py").write_text(program)
    assert isinstance(
        run("topics", "write", lines, *servers, input_="x").exception, UnknownTopicError
    )
    assert (
        f"{lines}: created, 2 partitions"
        in run("topics", "create", lines, "--partitions", "2", *servers).stdout
    )
    again = run(
        "topics", "create", lines, counts, "--set", "cleanup.policy=compact", *servers
    ).stdout.splitlines()
    assert again == [
        f"{lines}: is there, 2 partitions",
        f"{counts}: created, 1 partitions",
    ]
    with cluster(kafka.settings) as brokers:
        assert brokers.topic_config(counts)["cleanup.policy"] == "compact"
    assert (
        "2 records written"
        in run(
            "topics", "write", lines, *servers, input_="to be or\nnot to Be\n"
        ).stdout
    )
    environment = os.environ | {
        "COOPSTREAMS_BOOTSTRAP_SERVERS": kafka.bootstrap,
        "COOPSTREAMS_HTTP_LISTEN": "127.0.0.1:0",
        "COOPSTREAMS_HTTP_TOKEN_READ": TOKEN,
    }
    log = folder / "log"
    command = [
        sys.executable,
        "-m",
        "coopstreams",
        "run",
        "on_kafka.py",
        "--config",
        "settings.toml",
    ]
    with (
        log.open("w") as said,
        subprocess.Popen(command, cwd=folder, env=environment, stderr=said) as process,
    ):
        try:
            eventually(lambda: "answered at http" in log.read_text(), 60, log.read_text)
            [url] = re.findall(r"answered at (http\S+)", log.read_text())
            assert (
                httpx.get(f"{url}/v1/stores", trust_env=False, timeout=60).status_code
                == httpx.codes.UNAUTHORIZED
            )
            asked = ("query", url, "counts", "be")
            eventually(
                lambda: '"value":2' in run(*asked, token=TOKEN).stdout,
                60,
                log.read_text,
            )
            process.terminate()
            assert process.wait(60) == 0, log.read_text()
        finally:
            process.kill()


@pytest.mark.ci
@pytest.mark.broker
def test_a_line_is_written_when_it_is_typed_as_its_bytes(kafka: Kafka) -> None:
    topic = kafka.topic("typed")
    command = [
        sys.executable,
        "-m",
        "coopstreams",
        "topics",
        "write",
        topic,
        "--bootstrap-servers",
        kafka.bootstrap,
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as typing:
        assert typing.stdin is not None
        typing.stdin.write(b"to be \xff\n")
        typing.stdin.flush()
        eventually(
            lambda: (
                [r.value for r in read_topic(kafka.bootstrap, topic)] == [b"to be \xff"]
            ),
            60,
            lambda: "no record",
        )
        assert (
            typing.communicate(b"or not\n")[0].decode()
            == f"2 records written to {topic}\n"
        )
