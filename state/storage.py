"""The storage of snapshots: a folder, or a bucket, named by an fsspec URL. Only this
module imports fsspec.

Names are relative to the storage and have `/` between their parts. Credentials come
from where the fsspec driver looks for them (environment, profile), never from a name.

Invariant: `Storage.write` shows all bytes of a name or none. A local file is written
under another name and renamed; an object store ensures it itself. Turned down: other
code for local folders (two ways to do everything, one of them less tested).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from coopstreams.topology.credentials import without_credentials
from coopstreams.topology.errors import SnapshotError

_BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "az", "oci", "oss"})
"""The protocols without folders. There, creating the first folder would create the
bucket, which is left to the operator.
"""

_CHUNK = 1 << 20

Heard: TypeAlias = Callable[[int], None]
"""A function that takes the number of bytes of each chunk that has come. It raises
`GivenUpError` if the rest is not wanted.
"""


class GivenUpError(SnapshotError):
    """The download was given up."""


def nobody(_: int) -> None:
    """Accept every chunk: the `Heard` of a download that is never cancelled."""


class Storage:
    """A folder or bucket that holds snapshots. Thread-safe: it never changes. Another
    process makes its own from the `url`.

    Raises:
        SnapshotError: fsspec, or its driver for this kind of URL, is not installed; or
        the storage does not answer.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._shown = without_credentials(url)
        try:
            from fsspec.core import url_to_fs  # optional: only snapshots need it
        except ImportError as error:
            raise SnapshotError(
                f'snapshots at "{self._shown}" need fsspec: pip install "coopstreams[snapshots]"'
            ) from error
        try:
            # s3a is Hadoop's name of the protocol.
            self._files, self._root = url_to_fs(
                "s3://" + url.removeprefix("s3a://")
                if url.startswith("s3a://")
                else url
            )
        except (ImportError, ValueError) as error:
            raise SnapshotError(
                f'"{self._shown}" is no storage for snapshots: {error}'
            ) from error
        protocols = (
            {self._files.protocol}
            if isinstance(self._files.protocol, str)
            else set(self._files.protocol)
        )
        self._local = "file" in protocols
        self._folders = not protocols & _BUCKETS

    @property
    def absent(self) -> bool:
        """Whether the storage is a folder of this host that does not exist yet. The
        first write makes it.
        """
        return self._local and not Path(self._root).is_dir()

    def read(self, name: str) -> bytes | None:
        """Return the bytes under a name; None if the name does not exist."""
        try:
            data: bytes = self._files.cat_file(self._path(name))
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._error("read", name, error) from error
        return data

    def write(self, name: str, data: bytes) -> None:
        """Write bytes under a name, and replace what was there. A reader sees all new
        bytes or the old ones.

        Raises:
            SnapshotError: the storage refused it.
        """
        path = self._path(name)
        try:
            self._make_folder(path)
            if self._local:
                _write_whole(Path(path), data)
            else:
                self._files.pipe_file(path, data)
        except Exception as error:
            raise self._error("write", name, error) from error

    def create(self, name: str, data: bytes) -> bool:
        """Write bytes under a name that does not exist; return False, and change
        nothing, if it exists. Of several writers of one name, one succeeds.

        Folders and stores that speak S3 (`If-None-Match`), GCS or Azure Blob decide it
        themselves. Other drivers of fsspec look first, and then write.

        Raises:
            SnapshotError: the storage refused it.
        """
        path = self._path(name)
        try:
            self._make_folder(path)
            if self._local:
                _create_whole(Path(path), data)
            else:
                self._files.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        except Exception as error:
            raise self._error("write", name, error) from error
        return True

    def upload(self, file: Path, name: str) -> None:
        """Copy a local file to an unused name. Readers may see part of it during the
        upload.
        """
        path = self._path(name)
        try:
            self._make_folder(path)
            self._files.put_file(str(file), path)
        except Exception as error:
            raise self._error("write", name, error) from error

    def download(
        self,
        name: str,
        file: Path,
        heard: Heard = nobody,
    ) -> bool:
        """Copy the bytes under a name to a local file; return False if the name does
        not exist.

        Raises:
            GivenUpError: `heard` raised it; part of the file may be there.
        """
        try:
            # fsspec does not report progress for local files, and a mounted folder may
            # be remote
            if self._local:
                _copy(Path(self._path(name)), file, heard)
            else:
                self._files.get_file(
                    self._path(name),
                    str(file),
                    callback=_callback(heard),
                )
        except FileNotFoundError:
            return False
        except GivenUpError:
            raise
        except Exception as error:
            raise self._error("read", name, error) from error
        return True

    def copy(self, name: str, to: str) -> None:
        """Copy the bytes under a name to an unused name, within the storage.

        Raises:
            SnapshotError: the name is missing, or the storage refused it.
        """
        target = self._path(to)
        try:
            self._make_folder(target)
            self._files.cp_file(self._path(name), target)
        except Exception as error:
            raise self._error("copy", name, error) from error

    def names(self, under: str = "") -> list[str]:
        """Return the names in this folder and below, ascending, as of now."""
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
        """Remove a name. A missing name is no error."""
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

    def _error(
        self,
        verb: str,
        name: str,
        error: Exception,
    ) -> SnapshotError:
        return SnapshotError(
            f'cannot {verb} "{name}" at {self._shown}: {type(error).__name__}: {error}'
        )


def _callback(heard: Heard) -> Any:
    """Return the fsspec callback that passes the size of each chunk to `heard`."""
    from fsspec.callbacks import Callback

    class Chunks(Callback):  # type: ignore[misc]
        def relative_update(self, inc: int = 1) -> None:
            heard(inc)

    return Chunks()


def _copy(
    source: Path,
    target: Path,
    heard: Heard,
) -> None:
    with source.open("rb") as old, target.open("wb") as new:
        while data := old.read(_CHUNK):
            new.write(data)
            heard(len(data))


def _write_whole(path: Path, data: bytes) -> None:
    _written_beside(path, data).replace(path)


def _create_whole(path: Path, data: bytes) -> None:
    """Write a file that does not exist.

    Raises:
        FileExistsError: it exists.
    """
    new = _written_beside(path, data)
    try:
        os.link(new, path)
    except FileExistsError:
        raise
    except OSError:  # a mounted bucket has no hard links
        with path.open("xb") as file:
            file.write(data)
    finally:
        new.unlink()


def _written_beside(path: Path, data: bytes) -> Path:
    """Write data to a new file in the folder of `path`, durably; return the file."""
    new = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return new
