"""Builds a release into dist/, and tries it. `make release` does both.

    build   from the last commit: coopstreams (sdist, pure wheel), coopstreams-native (sdist, and an abi3 wheel for this
            platform), their bills of materials, the notes of the release, and SHA256SUMS of all
    try     with each Python that is found here: an empty environment, the wheels of dist/, the rest from the index;
            then the commands at the top of docs/start.md, until the first query is answered

A checkout installs without coopstreams-native, which an index has for releases only. A
release depends on it: `released` moves the extra `native` into the dependencies.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MANYLINUX = "manylinux_2_17"
"""The oldest glibc that Rust's standard library runs on; docs/internals/release.md."""
PATIENCE_S = 180.0


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        description="Build a release into dist/, and try it."
    )
    parser.add_argument("step", choices=("build", "try"))
    if parser.parse_args().step == "build":
        build()
    else:
        try_all()


def build() -> None:
    """Make dist/ anew from the last commit.

    Raises:
        SystemExit: the checkout has changes, versions differ, or a wheel would not run
            where its name says it does.
    """
    version = agreed_version()
    if run("git", "status", "--porcelain").strip():
        raise SystemExit("release: commit first: a release is built from a commit")
    shutil.rmtree(DIST, ignore_errors=True)
    # The bill of materials names the folder, so it is the same for each build.
    folder = Path(tempfile.gettempdir()) / f"coopstreams-release-{version}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    wheels_of(exported(folder / "tree"))
    audit(only("coopstreams_native-*.whl"))
    run(sys.executable, "-m", "twine", "check", "--strict", *packages())
    bills_of_materials(version, folder / "environment")
    shutil.rmtree(folder)
    (DIST / "RELEASE_NOTES.md").write_text(notes(version), encoding="utf-8")
    sums = "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(DIST.iterdir())
    )
    (DIST / "SHA256SUMS").write_text(sums)
    print(sums, end="")


def agreed_version() -> str:
    """Return the version that all files name.

    Raises:
        SystemExit: they name different ones, or the changelog has no part on it.
    """
    project = toml("pyproject.toml")["project"]
    version: str = project["version"]
    named = {
        "native/pyproject.toml": toml("native/pyproject.toml")["project"]["version"],
        "native/Cargo.toml": toml("native/Cargo.toml")["package"]["version"],
        "the extra `native`": project["optional-dependencies"]["native"][0]
        .partition("==")[2]
        .partition(";")[0]
        .strip(),
    }
    wrong = {place: other for place, other in named.items() if other != version}
    if wrong:
        raise SystemExit(f"release: pyproject.toml has {version}, but {wrong}")
    notes(version)
    return version


def notes(version: str) -> str:
    """Return the part of the changelog on a version.

    Raises:
        SystemExit: there is none.
    """
    text = (ROOT / "docs" / "changelog.md").read_text(encoding="utf-8")
    found = re.search(
        rf"^## \[{re.escape(version)}\].*?\n(.*?)(?=^## |\Z)",
        text,
        re.MULTILINE | re.DOTALL,
    )
    if found is None:
        raise SystemExit(f"release: docs/changelog.md has no part [{version}]")
    return f"# coopstreams {version}\n\n{found[1].strip()}\n"


def released(pyproject: str) -> str:
    """Return the text of pyproject.toml with the extra `native` among the dependencies."""
    extra = tomllib.loads(pyproject)["project"]["optional-dependencies"]["native"]
    lines = "".join(f"    {json.dumps(requirement)},\n" for requirement in extra)
    before, opening, after = pyproject.partition("\ndependencies = [\n")
    assert opening, "pyproject.toml has no list of dependencies"
    return before + opening + lines + after


def exported(tree: Path) -> Path:
    """Return a folder with the files of the last commit, and the dependencies of a
    release.
    """
    packed = tree.with_suffix(".tar")
    run("git", "archive", "--output", str(packed), "HEAD")
    with tarfile.open(packed) as archive:
        archive.extractall(tree, filter="tar")
    project = tree / "pyproject.toml"
    project.write_text(released(project.read_text(encoding="utf-8")), encoding="utf-8")
    return tree


def wheels_of(tree: Path) -> None:
    """Build the four packages of a tree into dist/."""
    committed = run("git", "log", "-1", "--format=%ct").strip()
    home = os.environ.get("CARGO_HOME", str(Path.home() / ".cargo"))
    environment = {
        # the same commit makes the same wheels
        "SOURCE_DATE_EPOCH": committed,
        # where maturin looks for zig
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        # messages of panics name files: not those of the machine that built them
        "RUSTFLAGS": f"--remap-path-prefix={home}=cargo --remap-path-prefix={tree}=coopstreams",
    }
    # The wheel is built from the sdist, so an sdist that lacks a file is noticed.
    run(sys.executable, "-m", "build", "--outdir", DIST, tree, **environment)
    maturin = (sys.executable, "-m", "maturin")
    native = tree / "native"
    shutil.copy(tree / "LICENSE", native)
    run(*maturin, "sdist", "--out", DIST, "-m", native / "Cargo.toml", **environment)
    # zig brings the symbols of an old glibc, so that no old system is needed to build.
    old = ("--zig", "--compatibility", MANYLINUX) if sys.platform == "linux" else ()
    run(
        *maturin,
        "build",
        "--release",
        "--locked",
        *old,
        "--out",
        DIST,
        "-m",
        native / "Cargo.toml",
        **environment,
    )


def audit(wheel: Path) -> None:
    """Check a wheel of Linux by auditwheel, apart from maturin's own check, and that it
    names no file of this machine.

    Raises:
        SystemExit: it needs a newer glibc than its name says, or names one.
    """
    if sys.platform == "linux":
        told = run(sys.executable, "-m", "auditwheel", "show", wheel)
        if f'"{MANYLINUX}_' not in " ".join(told.split()):
            raise SystemExit(f"release: {wheel.name} is no {MANYLINUX}:\n{told}")
    home = str(Path.home()).encode()
    with zipfile.ZipFile(wheel) as files:
        named = [name for name in files.namelist() if home + b"/" in files.read(name)]
    if named:
        raise SystemExit(f"release: {wheel.name} names files in {home!r}: {named}")


def bills_of_materials(version: str, environment: Path) -> None:
    """Write a CycloneDX document for each package: what an installation with `http`
    has, and the crates of the extension, which maturin has put into its wheel.
    """
    python = installed(Path(sys.executable), environment, f"[http]=={version}")
    run(
        sys.executable,
        "-m",
        "cyclonedx_py",
        "environment",
        "--output-reproducible",
        "--output-file",
        DIST / f"coopstreams-{version}.cdx.json",
        python,
    )
    with zipfile.ZipFile(only("coopstreams_native-*.whl")) as files:
        [crates] = [
            name for name in files.namelist() if name.endswith(".cyclonedx.json")
        ]
        (DIST / f"coopstreams_native-{version}.cdx.json").write_bytes(
            files.read(crates)
        )


def try_all() -> None:
    """Try the wheels of dist/ with each Python that is here.

    Raises:
        SystemExit: there is none, or one did not answer.
    """
    version = agreed_version()
    found = {name: path for name in PYTHONS if (path := interpreter(name)) is not None}
    if not found:
        raise SystemExit(f"release: no Python of {', '.join(PYTHONS)} is here")
    with tempfile.TemporaryDirectory(prefix="coopstreams-try-") as folder:
        home = Path(folder)
        pythons = {
            name: installed(path, home / name, f"[dev]=={version}")
            for name, path in found.items()
        }
        try:
            for name, python in pythons.items():
                print(f"Python {name}: {tried(python, home, native=True)}", flush=True)
            name, python = next(iter(pythons.items()))
            run(python, "-m", "pip", "uninstall", "--yes", "coopstreams-native")
            print(f"Python {name}: {tried(python, home, native=False)}", flush=True)
        finally:
            stop(python, home)
    for name in PYTHONS:
        if name not in found:
            print(f"Python {name}: not here, not tried")


def tried(python: Path, home: Path, *, native: bool) -> str:
    """Return what `--version` says, and how long the application of `coopstreams init`
    took to its first answer.

    Raises:
        SystemExit: another data plane runs, or there is no answer.
    """
    coopstreams = python.parent / "coopstreams"
    said = run(coopstreams, "--version", **at_home(home)).strip()
    if ("data plane: native" in said) != native:
        raise SystemExit(f"release: {said}")
    plane = "native" if native else "python"
    folder = home / f"words-{plane}-{python.parts[-3].replace('.', '-')}"
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    began = time.monotonic()
    log = folder.with_suffix(".log")
    with (
        log.open("w") as output,
        subprocess.Popen(
            [coopstreams, "init", folder, "--run"],
            env=os.environ | at_home(home) | {"COOPSTREAMS_HTTP_LISTEN": address},
            stdout=output,
            stderr=output,
        ) as running,
    ):
        try:
            answer = answered(coopstreams, address, running, home)
        finally:
            running.send_signal(signal.SIGTERM)
    if '"value":2' not in answer or running.returncode:
        raise SystemExit(f"release: {answer}\n{log.read_text()}")
    return f"{said}; {time.monotonic() - began:.1f} s to the first answer"


def answered(
    coopstreams: Path, address: str, running: subprocess.Popen[bytes], home: Path
) -> str:
    """Return the answer to the query of docs/start.md; what the command printed, if
    there was none in time.
    """
    give_up = time.monotonic() + PATIENCE_S
    while True:
        asked = subprocess.run(
            [coopstreams, "query", f"http://{address}", "counts", "be"],
            env=os.environ | at_home(home),
            capture_output=True,
            text=True,
            check=False,
        )
        ended = running.poll() is not None or time.monotonic() > give_up
        if asked.returncode == 0 or ended:
            return asked.stdout + asked.stderr
        time.sleep(0.2)


def stop(python: Path, home: Path) -> None:
    """Stop the Kafka that the trials have started."""
    run(python.parent / "coopstreams", "dev", "stop", **at_home(home))


def at_home(home: Path) -> dict[str, str]:
    """Return the variables by which a trial leaves nothing on this machine."""
    return {"COOPSTREAMS_CACHE": str(home / "cache")}


def interpreter(name: str) -> Path | None:
    """Return a CPython of this version: on the path, or one of pyenv's; None: none."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = sorted(versions.glob(f"{name}.*/bin/python{name}"))
    if (on_path := shutil.which(f"python{name}")) is not None:
        candidates.insert(0, Path(on_path))
    for candidate in candidates:
        works = subprocess.run(
            [candidate, "-c", "import ensurepip, venv"],
            capture_output=True,
            check=False,
        )
        if works.returncode == 0:
            return candidate
    return None


def installed(python: Path, environment: Path, what: str) -> Path:
    """Return the Python of a new environment with coopstreams from dist/ in it."""
    run(python, "-m", "venv", environment)
    inner = environment / "bin" / "python"
    run(inner, "-m", "pip", "install", "--find-links", DIST, f"coopstreams{what}")
    return inner


def packages() -> list[Path]:
    """Return the wheels and sdists in dist/."""
    return sorted([*DIST.glob("*.whl"), *DIST.glob("*.tar.gz")])


def only(pattern: str) -> Path:
    """Return the one file in dist/ with such a name."""
    [found] = DIST.glob(pattern)
    return found


def toml(name: str) -> dict[str, Any]:
    """Return what a file of the checkout has."""
    return tomllib.loads((ROOT / name).read_text(encoding="utf-8"))


def run(*command: str | Path, **environment: str) -> str:
    """Return what a command prints.

    Raises:
        SystemExit: it failed; with what it said.
    """
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        shown = " ".join(map(str, command))
        raise SystemExit(f"release: {shown} failed:\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    main()
