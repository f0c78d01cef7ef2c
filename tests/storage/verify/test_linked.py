"""Verifying what copies refer to: payloads in the own log, in links and in blobs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.forwarding import RECORDS, forward, write_payload
from tests.support.linked import ShardLog
from tests.support.log import Client, append_streamed
from topics.storage.disk import keep_aside
from topics.storage.verify.directory import verify_directory
from topics.storage.verify.finding import Finding


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory whose log names payloads of its own, of another shard, and a blob."""
    path = tmp_path / "data"
    client, source = Client(path), ShardLog(path, 2)
    client.append("src", "x" * 100)
    append_streamed(client, "src", *["y" * 300] * 4)
    client.put("dest")
    own, blob = client.engine.topic("src").index.locators()
    forward(client, "dest", [{"data": "x" * 100}], (0, own))
    forward(client, "dest", [{"data": "y" * 300}] * 4, (0, blob))
    forward(client, "dest", RECORDS, (2, write_payload(source, RECORDS)))
    source.stop()
    client.kill()
    return path


def findings(data: Path) -> list[Finding]:
    return [found for found in verify_directory(data, 1) if isinstance(found, Finding)]


def links(data: Path) -> list[Path]:
    return sorted((data / "linked" / "00").iterdir())


def test_what_copies_refer_to_is_looked_at(data: Path) -> None:
    assert findings(data) == []
    assert [path.suffix for path in links(data)] == [".blob", ".wal"]
    assert {*links(data)} <= {*verify_directory(data, 1)}


@pytest.mark.parametrize("index", [0, 1], ids=["blob", "log"])
def test_a_missing_link_is_a_finding(data: Path, index: int) -> None:
    link = links(data)[index]
    link.unlink()
    if index:
        (found,) = findings(data)
        assert (found.path, found.offset) == (link, 0)
        return
    assert findings(data) == [], "the blob itself is still there"
    next(data.glob("blob/00/*.blob")).unlink()
    assert len(findings(data)) == 2, "the topic wants it, and so does the copy"


def test_hurt_payloads_and_cut_links_are_findings(data: Path) -> None:
    link = links(data)[1]
    with link.open("r+b") as file:
        file.seek(4096 + 64 + 50)
        file.write(b"\x7f")
    assert [(found.path, found.offset) for found in findings(data)] == [(link, 4096)]
    os.truncate(link, link.stat().st_size - 1)
    assert [found.path for found in findings(data)] == [link]


def test_a_link_that_nothing_names_is_none(data: Path) -> None:
    spare = links(data)[1].with_name(f"02-{0x100000:016x}.blob")
    spare.write_bytes(b"")
    assert findings(data) == []
    os.link(links(data)[1], spare.with_suffix(".wal"))
    assert findings(data) == [], "its file is used again, for what stands elsewhere in the log"
    keep_aside(links(data)[0])
    assert findings(data) == [], "readers are told of what was in it"


def test_payloads_in_a_log_file_that_lost_its_name_are_found(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.put("dest")
    for _ in range(3):
        client.append("src", "x" * 30_000)
    *_, last = client.engine.topic("src").index.locators()
    forward(client, "dest", [{"data": "x" * 30_000}], (0, last))
    client.kill()
    _, second = sorted(tmp_path.glob("wal/00/*.wal"))
    second.rename(second.with_name("0000000000000000.fresh.0.spare"))
    assert findings(tmp_path) == []
