"""What a release is built from fits together; building and trying it is `make release`."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci/release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def native(pyproject: str) -> list[Requirement]:
    """Return the requirements of coopstreams-native among the dependencies."""
    named: list[str] = tomllib.loads(pyproject)["project"]["dependencies"]
    found = map(Requirement, named)
    return [each for each in found if each.name == "coopstreams-native"]


def test_all_files_name_one_version_and_the_changelog_has_a_part_on_it(
    release: ModuleType,
) -> None:
    version = release.agreed_version()
    assert release.notes(version).startswith(f"# coopstreams {version}\n")
    locked = tomllib.loads((ROOT / "native" / "Cargo.lock").read_text())["package"]
    assert [
        each["version"] for each in locked if each["name"] == "coopstreams-native"
    ] == [version]


def test_a_version_without_a_part_in_the_changelog_is_refused(
    release: ModuleType,
) -> None:
    with pytest.raises(SystemExit, match=r"no part \[77\.0\]"):
        release.notes("77.0")


def test_a_release_depends_on_the_extension_and_a_checkout_does_not(
    release: ModuleType,
) -> None:
    assert native(PROJECT) == []
    [needed] = native(release.released(PROJECT))
    assert str(needed.specifier) == f"=={release.agreed_version()}"


@pytest.mark.parametrize(
    ("platform", "machine", "implementation", "wanted"),
    [
        ("linux", "x86_64", "cpython", True),
        ("linux", "aarch64", "cpython", True),
        ("darwin", "arm64", "cpython", True),
        ("darwin", "x86_64", "cpython", True),
        ("linux", "riscv64", "cpython", False),
        ("win32", "AMD64", "cpython", False),
        ("linux", "x86_64", "pypy", False),
    ],
)
def test_the_extension_is_asked_for_where_a_wheel_of_it_is_built(
    platform: str,
    machine: str,
    implementation: str,
    wanted: bool,
    release: ModuleType,
) -> None:
    [needed] = native(release.released(PROJECT))
    assert needed.marker is not None
    here = {
        "sys_platform": platform,
        "platform_machine": machine,
        "implementation_name": implementation,
    }
    assert needed.marker.evaluate(here) == wanted
    assert wanted == any(
        platform == {"macos": "darwin"}.get(system, system)
        and machine in built["archs"]
        for system, built in wheels().items()
        if implementation == "cpython"
    )


def wheels() -> dict[str, Any]:
    """Return what cibuildwheel builds, by its names of systems."""
    text = (ROOT / "native" / "pyproject.toml").read_text(encoding="utf-8")
    built = tomllib.loads(text)["tool"]["cibuildwheel"]
    return {system: built[system] for system in ("linux", "macos")}


def test_the_changelog_keeps_its_form() -> None:
    text = (ROOT / "docs" / "changelog.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert all(
        re.fullmatch(r"\[\d+\.\d+\.\d+\] - (\d{4}-\d\d-\d\d|unreleased)", heading)
        for heading in headings
    )
    versions = [
        tuple(map(int, heading[1:].partition("]")[0].split(".")))
        for heading in headings
    ]
    assert versions == sorted(versions, reverse=True)
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= kinds


def test_the_workflow_tries_every_python_that_the_release_tries(
    release: ModuleType,
) -> None:
    workflow = yaml.safe_load((ROOT / ".ci" / "wheels.yaml").read_text())
    tried = workflow["jobs"]["tried"]["strategy"]["matrix"]["python"]
    classifiers = tomllib.loads(PROJECT)["project"]["classifiers"]
    named = [
        each.rpartition(" :: ")[2]
        for each in classifiers
        if re.search(r":: 3\.\d+$", each)
    ]
    assert list(release.PYTHONS) == tried == named
