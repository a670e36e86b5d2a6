"""Links, folders and the packaging table agree: the checkout has the files of a wheel."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
ROOMS = ("state", "topology")


def folder_of(package: str) -> Path:
    """Return the real folder of a package, by the longest entry of the package-dir
    table.
    """
    parts = package.split(".")
    for length in range(len(parts), 0, -1):
        if place := TABLE["package-dir"].get(".".join(parts[:length])):
            return ROOT.joinpath(place, *parts[length:])
    raise AssertionError(f"{package} has no place in [tool.setuptools.package-dir]")


def packages_on_disk() -> set[str]:
    """Return every package that the folders hold, under its import name."""
    tops = {"coopstreams": ROOT / "coopstreams"} | {
        f"coopstreams.{room}": ROOT / room for room in ROOMS
    }
    found = set()
    for name, top in tops.items():
        for module in top.rglob("*.py"):  # does not follow the links
            inner = module.parent.relative_to(top).parts
            found.add(".".join((name, *inner)))
    return found


def test_the_links_lead_to_the_rooms_at_the_top() -> None:
    for room in ROOMS:
        link = ROOT / "coopstreams" / room
        assert link.is_symlink()
        assert link.readlink() == Path("..") / room


def test_the_table_lists_every_package_and_no_other() -> None:
    assert packages_on_disk() == set(TABLE["packages"])


def test_every_package_has_an_init_module() -> None:
    assert [
        package
        for package in TABLE["packages"]
        if not (folder_of(package) / "__init__.py").is_file()
    ] == []


def test_the_table_is_sorted() -> None:
    assert TABLE["packages"] == sorted(TABLE["packages"])
