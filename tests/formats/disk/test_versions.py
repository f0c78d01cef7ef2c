"""Format versions: each kind of file has one, and any other version is rejected with both
numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec
import pytest

from tests.support.tables import byte_rows
from topics.formats.disk import backup_archive, blob, checkpoint, segment, versions, wal
from topics.formats.disk.backup_archive import BadManifest, Manifest
from topics.formats.disk.blob import BadBlob
from topics.formats.disk.checkpoint import UnknownVersion
from topics.formats.disk.segment import BadSegment
from topics.formats.disk.versions import BLOB, CHECKPOINT, LOG, META, SEGMENT, VERSIONS
from topics.formats.disk.wal import BadHeader
from topics.storage.data_dir import decode_meta, encode_meta

Reader = Callable[[bytes], object]
HEADS: dict[bytes, tuple[bytes, Reader]] = {
    LOG: (wal.encode_file_header(wal.FileHeader(0, 0, 0, 8192)), wal.decode_file_header),
    SEGMENT: (segment.encode_header(segment.SegmentHeader(0, 1, 0, 8)), segment.decode_header),
    CHECKPOINT: (
        checkpoint.ChunkBuilder().header(8, 4, clean=True),
        checkpoint.decode_header,
    ),
    BLOB: (blob.encode_header(1, 1, 0, 0), lambda head: blob.check_header(head, 64, 1, 1)),
    META: (encode_meta(1), decode_meta),
}
REFUSALS = (BadHeader, BadSegment, UnknownVersion, BadBlob, ValueError)


def with_version(head: bytes, version: int) -> bytes:
    return head[:8] + version.to_bytes(4, "little") + head[12:]


def test_the_documented_table_matches_the_struct() -> None:
    table = byte_rows(versions.__doc__ or "", "Every file")
    assert [(offset, size) for offset, size, _ in table] == [(0, 8), (versions.VERSION_AT, 4)]


@pytest.mark.parametrize("kind", VERSIONS)
@pytest.mark.parametrize("step", [-1, 1, 1 << 24])
def test_a_file_of_another_version_is_rejected_with_both_versions(kind: bytes, step: int) -> None:
    (head, read), known = HEADS[kind], VERSIONS[kind]
    assert head[:12] == versions.HEAD.pack(kind, known)
    assert read(head) is not None
    reason = f"has format version {known + step}; this program reads version {known}$"
    with pytest.raises(REFUSALS, match=reason):
        read(with_version(head, known + step))


def test_bytes_of_an_unknown_kind_have_no_version() -> None:
    assert versions.other_version(b"") == ""
    assert versions.other_version(b"TPWAL001\x09") == "", "too short for a version"
    assert versions.other_version(bytes(12)) == ""


@pytest.mark.parametrize("found", [0, 2])
def test_a_manifest_of_another_version_is_rejected_with_any_fields(found: int) -> None:
    data = msgspec.json.encode({"format": found, "unknown": []})
    manifest = msgspec.json.encode(
        {"manifest": msgspec.Raw(data), "sha256": hashlib.sha256(data).hexdigest()}
    )
    reason = f"the manifest has format version {found}; this program reads version 1$"
    with pytest.raises(BadManifest, match=reason):
        backup_archive.unsealed(manifest, Manifest)
    own = Manifest(backup_archive.FORMAT, "test", 1, 0, [0], [])
    assert backup_archive.unsealed(backup_archive.sealed(own), Manifest) == own
