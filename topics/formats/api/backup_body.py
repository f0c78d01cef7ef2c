"""Body of ``POST /v0/backup``: the files that the receiver of an incremental backup has (§8.5)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from topics.formats.api.decoding import decode
from topics.formats.buffers import Buffer


class KnownFile(msgspec.Struct, frozen=True):
    """A file of an earlier backup, or the first bytes of a log file."""

    path: str
    bytes: Annotated[int, msgspec.Meta(ge=0)]
    identity: str


class BackupRequest(msgspec.Struct):
    """Body of ``POST /v0/backup``. If ``files`` is absent, the backup is a full backup."""

    files: list[KnownFile] = []


_request = msgspec.json.Decoder(BackupRequest).decode


def decode_backup(body: Buffer) -> BackupRequest:
    """Decode the body. An empty body lists no files. Raises `InvalidRequest`."""
    return decode(_request, body or b"{}")
