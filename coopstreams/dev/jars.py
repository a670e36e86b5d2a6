"""Kafka's jars, downloaded once into the cache by the Ivy that ships inside PySpark: no Maven, no tarball.

The repository is Ivy's default, Maven Central, or `DEFAULT_ARTIFACT_REPOSITORY`, the variable that Spark reads for the same purpose.
`HTTPS_PROXY` and `HTTP_PROXY` are told to Java, which does not read them by itself.

Invariant: the folder that `kafka_jars` returns is complete. A download that breaks off leaves a `.partial` folder, and the next one goes on from it.
"""

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from coopstreams.dev.cache import cache_folder, locked
from coopstreams.dev.java import Java
from coopstreams.topology.errors import DevError

KAFKA = "4.2.1"
"""The newest Kafka without KAFKA-20734. In 4.3.0, 4.3.1 and 4.4.0 a transaction coordinator takes a partition that has no leader for a
moment (a broker stops, the partition has one replica) for deleted: it calls the transaction complete, and the partition never hears of
it. Exactly-once then loses records. `tests/broker/hanging_transactions.py` provokes it; do not go to a version that loses records there."""
SCALA = "2.13"


def kafka_jars(java: Java, console: Console, repository: str | None = None, version: str = KAFKA) -> Path:
    """Return the folder with the jars of a version of Kafka; download them if they are not there yet.

    Raises:
        DevError: PySpark is not installed, or the download failed; with the cause.
    """
    jars = cache_folder() / f"kafka-{version}"
    if jars.is_dir():
        return jars
    with locked(jars.with_name(jars.name + ".lock")):
        if not jars.is_dir():
            _download(java, version, jars, console, repository or os.environ.get("DEFAULT_ARTIFACT_REPOSITORY"))
    return jars


def _download(java: Java, version: str, jars: Path, console: Console, repository: str | None) -> None:
    partial = jars.with_name(jars.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(partial / "jars", ignore_errors=True)
    settings, wanted = partial / "ivysettings.xml", partial / "ivy.xml"
    settings.write_text(_settings(partial / "ivy", repository))
    wanted.write_text(_wanted(version))
    console.print(f"Downloading Apache Kafka {version} with Ivy: about 45 files, 43 MB, once, into {jars}", highlight=False, soft_wrap=True)
    command = java.command(
        *proxy_options(os.environ),
        *("-jar", str(_ivy()), "-settings", str(settings), "-ivy", str(wanted), "-types", "jar", "bundle"),
        *("-retrieve", f"{partial}/jars/[artifact]-[revision](-[classifier]).[ext]"),
    )
    code, said = _run(command, console)
    log = partial / "ivy.log"
    log.write_text("\n".join(said))
    if code != 0 or not (partial / "jars" / f"kafka_{SCALA}-{version}.jar").exists() or any("FAILED DOWNLOADS" in line for line in said):
        where = repository or "Maven Central"
        raise DevError(
            f"Apache Kafka {version} could not be downloaded from {where}: {_cause(said)}. Is there a network? Behind a proxy set HTTPS_PROXY; "
            f"for another repository set DEFAULT_ARTIFACT_REPOSITORY. Then run this again, it goes on where it stopped. Ivy's words: {log}"
        )
    (partial / "jars").rename(jars)
    shutil.rmtree(partial, ignore_errors=True)


def _ivy() -> Path:
    spec = importlib.util.find_spec("pyspark")
    folders = spec.submodule_search_locations if spec else None
    found = sorted(Path(folders[0]).glob("jars/ivy-*.jar")) if folders else []
    if not found:
        raise DevError("PySpark, whose Ivy downloads Kafka, is not installed (or has no jars/ivy-*.jar). Run: pip install 'coopstreams[dev]'")
    return found[-1]


def _wanted(version: str) -> str:
    """Return what to download, for Ivy. Kafka brings no writer for its log messages; slf4j-simple is the smallest."""
    wanted = [("org.apache.kafka", f"kafka_{SCALA}", version), ("org.slf4j", "slf4j-simple", "1.7.36")]
    lines = "\n".join(f'    <dependency org="{org}" name="{name}" rev="{version}" conf="default"/>' for org, name, version in wanted)
    return f"""<ivy-module version="2.0">
  <info organisation="coopstreams" module="kafka-{version}"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{lines}
  </dependencies>
</ivy-module>
"""


def _settings(cache: Path, repository: str | None) -> str:
    """Return Ivy's settings: one Maven repository, time-outs, and a cache that is thrown away in the end."""
    root = f" root={quoteattr(repository)}" if repository else ""
    return f"""<ivysettings>
  <settings defaultResolver="central"/>
  <timeout-constraints><timeout-constraint name="patience" connectionTimeout="15000" readTimeout="60000"/></timeout-constraints>
  <caches defaultCacheDir={quoteattr(str(cache))}/>
  <resolvers><ibiblio name="central" m2compatible="true" timeoutConstraint="patience"{root}/></resolvers>
</ivysettings>
"""


def proxy_options(environment: Mapping[str, str]) -> list[str]:
    """Return what tells Java about the proxy that the environment names for other programs."""
    options = []
    for scheme in ("https", "http"):
        proxy = urlsplit(environment.get(f"{scheme}_proxy") or environment.get(f"{scheme.upper()}_PROXY") or "")
        if proxy.hostname:
            options += [f"-D{scheme}.proxyHost={proxy.hostname}", f"-D{scheme}.proxyPort={proxy.port or 80}"]
    direct = environment.get("no_proxy") or environment.get("NO_PROXY")
    if options and direct:
        hosts = (host.strip() for host in direct.split(",") if host.strip())
        options.append("-Dhttp.nonProxyHosts=" + "|".join(f"*{host}" if host.startswith(".") else host for host in hosts))
    return options


def _run(command: list[str], console: Console) -> tuple[int, list[str]]:
    """Return Ivy's exit code and what it says, line by line; show how far it is."""
    said: list[str] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        Progress(*columns, console=console) as progress,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy,
    ):
        task = progress.add_task("finding modules", total=None)
        modules = files = 0
        assert ivy.stdout is not None
        try:
            for line in ivy.stdout:
                said.append(line.rstrip())
                if line.startswith("\tfound "):
                    modules += 1
                    progress.update(task, completed=modules)
                elif "[SUCCESSFUL ]" in line and "!" in line and "(pom)" not in line:
                    files += 1
                    progress.update(task, description="downloading", completed=files, total=modules)
        except BaseException:  # Ctrl-C: Ivy would go on by itself
            ivy.kill()
            raise
    return ivy.returncode, said


def _cause(said: list[str]) -> str:
    for mark in ("Server access error", "Host ", "FAILED", "module not found", "Exception", "Error"):
        for line in said:
            if mark in line:
                return line.strip()
    return said[-1].strip() if said else "Ivy said nothing"
