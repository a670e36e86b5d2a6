"""An authority that issues certificates to the instances of a test."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from coopstreams.dev.broker_certificates import Issued, authority, issue
from coopstreams.query.certificates import Files

HOSTS = ("127.0.0.1", "localhost", socket.gethostname())


class Office:
    """An authority, and a folder with the files that it issues."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = authority()
        self.authorities = folder / "ca.pem"
        self.authorities.write_bytes(self.root.certificate)

    def files(self, name: str = "node") -> Files:
        """Issue a certificate, and write it to the files of this name."""
        certificate, key = (
            str(self.folder / f"{name}.{end}") for end in ("pem", "key")
        )
        files = Files(certificate, key, None, str(self.authorities))
        self.write(files, issue(self.root, name, HOSTS))
        return files

    def write(self, files: Files, issued: Issued) -> None:
        assert files.certificate
        assert files.key
        for path, content in (
            (files.certificate, issued.certificate),
            (files.key, issued.key),
        ):
            before = Path(path).stat().st_mtime_ns if Path(path).exists() else 0
            Path(path).write_bytes(content)
            os.utime(
                path, ns=(before + 1, before + 1)
            )  # clocks of file systems are coarse
