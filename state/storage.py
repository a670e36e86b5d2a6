"""Where snapshots lie: a folder, or a bucket named by an fsspec URL. The only module that imports fsspec.

Names are relative to the storage and have `/` between their parts. Credentials come from where the fsspec driver looks
for them (environment, profile), never from a name here.

Invariant: a name shows all of its bytes or nothing: a local file is written under another name and renamed, an object
store does that itself.
Turned down: a path of our own for local folders (two ways to do everything, and one of them less tested).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from coopstreams.topology.errors import SnapshotError

_BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "az", "oci", "oss"})
"""Protocols without folders. What would be made there is the bucket, and that is not ours to make."""

_CHUNK = 1 << 20

Heard: TypeAlias = Callable[[int], None]
"""Told how many bytes have come, again and again. It raises `GivenUpError` when nobody wants the rest any more."""


class GivenUpError(SnapshotError):
    """Nobody waits any more for what was being downloaded."""


def nobody(_: int) -> None:
    """Hear of nothing, and want everything."""


class Storage:
    """A folder or bucket. Any thread; for another process, make it again from its `url`.

    Raises:
        SnapshotError: fsspec, or its driver for this kind of URL, is not installed; or the storage does not answer.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            from fsspec.core import url_to_fs  # optional: without snapshots nobody needs it
        except ImportError as error:
            raise SnapshotError(f'snapshots at "{url}" need fsspec: pip install "coopstreams[snapshots]"') from error
        try:
            # s3a is what Hadoop calls it.
            self._files, self._root = url_to_fs(
                "s3://" + url.removeprefix("s3a://") if url.startswith("s3a://") else url
            )
        except (ImportError, ValueError) as error:
            raise SnapshotError(f'"{url}" is no storage for snapshots: {error}') from error
        protocols = {self._files.protocol} if isinstance(self._files.protocol, str) else set(self._files.protocol)
        self._local = "file" in protocols
        self._folders = not protocols & _BUCKETS

    def read(self, name: str) -> bytes | None:
        """Return what is under a name; None if there is nothing."""
        try:
            data: bytes = self._files.cat_file(self._path(name))
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._error("read", name, error) from error
        return data

    def write(self, name: str, data: bytes) -> None:
        """Put these bytes under a name."""
        path = self._path(name)
        try:
            self._make_folder(path)
            if self._local:
                _write_whole(Path(path), data)
            else:
                self._files.pipe_file(path, data)
        except Exception as error:
            raise self._error("write", name, error) from error

    def upload(self, file: Path, name: str) -> None:
        """Put a local file under a name that nobody has used: a half of it may be seen while it is on the way."""
        path = self._path(name)
        try:
            self._make_folder(path)
            self._files.put_file(str(file), path)
        except Exception as error:
            raise self._error("write", name, error) from error

    def download(self, name: str, file: Path, heard: Heard = nobody) -> bool:
        """Copy what is under a name to a local file; False if there is nothing.

        Raises:
            GivenUpError: `heard` said so; half of the file may be there.
        """
        try:
            if self._local:  # fsspec says nothing while it copies a local file, and a mounted folder may be far away
                _copy(Path(self._path(name)), file, heard)
            else:
                self._files.get_file(self._path(name), str(file), callback=_callback(heard))
        except FileNotFoundError:
            return False
        except GivenUpError:
            raise
        except Exception as error:
            raise self._error("read", name, error) from error
        return True

    def names(self, under: str = "") -> list[str]:
        """Return the names that begin with this folder, ascending, as of now."""
        path = self._path(under) if under else self._root
        try:
            self._files.invalidate_cache()
            found = self._files.find(path)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise self._error("list", under, error) from error
        return sorted(name.removeprefix(self._root).lstrip("/") for name in found)

    def delete(self, name: str) -> None:
        """Remove a name; one that is not there is fine."""
        try:
            self._files.rm_file(self._path(name))
        except FileNotFoundError:
            return
        except Exception as error:
            raise self._error("delete", name, error) from error

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _make_folder(self, path: str) -> None:
        if self._folders:
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)

    def _error(self, verb: str, name: str, error: Exception) -> SnapshotError:
        return SnapshotError(f'cannot {verb} "{name}" at {self.url}: {type(error).__name__}: {error}')


def _callback(heard: Heard) -> Any:
    """Return what fsspec calls for each piece that has come."""
    from fsspec.callbacks import Callback

    class Pieces(Callback):  # type: ignore[misc]
        def relative_update(self, inc: int = 1) -> None:
            heard(inc)

    return Pieces()


def _copy(source: Path, target: Path, heard: Heard) -> None:
    with source.open("rb") as old, target.open("wb") as new:
        while data := old.read(_CHUNK):
            new.write(data)
            heard(len(data))


def _write_whole(path: Path, data: bytes) -> None:
    new = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
