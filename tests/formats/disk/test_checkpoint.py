"""The bytes of a checkpoint: a header, and chained chunks with checksums."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tables import table
from topics.engine.replay import Replay
from topics.engine.shard import ShardEngine
from topics.engine.snapshot import snapshot_topic
from topics.engine.topic import Topic
from topics.formats.api.topic_config import TopicConfig
from topics.formats.disk import checkpoint
from topics.formats.disk.checkpoint import (
    CHUNK_BYTES,
    CHUNK_HEADER_BYTES,
    HEADER_BYTES,
    USUAL,
    ChunkBuilder,
    Item,
    UnknownVersion,
    check_chunk,
    chunk_length,
    decode_header,
    is_sealed,
    items_of_chunk,
)
from topics.formats.disk.versions import CHECKPOINT

SHARD: Item = {"segments": [3], "boot": "b"}
DOC = checkpoint.__doc__ or ""


def topic(number: int, **config: Any) -> Item:
    return {
        **snapshot_topic(Topic(number, f"t-{number}", 9, TopicConfig(**config)), 77),
        "head": number,
    }


def encode(lsn: int, replay_from: int, items: Iterable[Item], *, clean: bool) -> bytes:
    """Return a complete small file."""
    builder = ChunkBuilder()
    chunks = [chunk for item in items if (chunk := builder.add(item)) is not None]
    chunks.append(builder.take() or b"")
    return b"".join((builder.header(lsn, replay_from, clean=clean), *chunks))


def chunks(data: bytes) -> Iterator[bytes]:
    """Yield the bodies of the chunks, which are checked as `checkpoints` does."""
    header = decode_header(data[:HEADER_BYTES])
    assert header is not None
    stream, crc = BytesIO(data[HEADER_BYTES:]), 0
    while head := stream.read(CHUNK_HEADER_BYTES):
        body = stream.read(chunk_length(head))
        found = check_chunk(head, body, crc)
        assert found is not None
        crc = found
        yield body
    assert is_sealed(header, data[:HEADER_BYTES], crc)


def items(data: bytes) -> list[Item]:
    return [item for chunk in chunks(data) for item in items_of_chunk(chunk)]


def test_the_documented_tables_match_the_structs() -> None:
    rows = table(DOC, "Integers little-endian.")
    sizes = [int(row["size"]) for row in rows[:-1]]
    assert [int(row["offset"]) for row in rows] == [sum(sizes[:at]) for at in range(len(rows))]
    assert int(rows[-1]["offset"]) == HEADER_BYTES
    data = encode(8, 4, [SHARD], clean=True)
    fields = {row["field"]: data[int(row["offset"]) :] for row in rows}
    assert fields["magic"].startswith(CHECKPOINT)
    assert (fields["version"][0], fields["lsn"][0], fields["replay_from"][0]) == (4, 8, 4)
    assert fields["clean"][0] == 1
    assert fields["body_len"][0] == len(data) - HEADER_BYTES
    rows = table(DOC, "Layout of a chunk:")
    assert [(row["offset"], row["field"]) for row in rows] == [
        ("0", "body_len"),
        ("4", "crc32c"),
        (str(CHUNK_HEADER_BYTES), "body"),
    ]
    body = fields["chunks"][CHUNK_HEADER_BYTES:]
    assert chunk_length(fields["chunks"][:CHUNK_HEADER_BYTES]) == len(body)


def test_the_bytes_of_a_checkpoint_never_change() -> None:
    items: list[Item] = [{"boot": "b"}, {"id": 5, "head": 2, "start": 1, "config": {"ttl_ms": 7}}]
    assert encode(8, 4, items, clean=False).hex(" ", -8) == GOLDEN


def test_topics_are_restored_with_the_keys_that_were_omitted() -> None:
    given_items = [SHARD, topic(1), topic(2, ttl_ms=5), {"id": 2, "jobs": {"seq": b"x"}}, topic(3)]
    found = items(encode(8, 4, given_items, clean=True))
    plain = msgspec.to_builtins(given_items, builtin_types=(bytes,))
    assert msgspec.to_builtins(found, builtin_types=(bytes,)) == plain
    assert found[1]["config"] is found[4]["config"]
    assert Replay(ShardEngine().table).config(found[2]["config"]) == TopicConfig(ttl_ms=5)


def test_every_omitted_value_is_that_of_a_new_topic() -> None:
    new = snapshot_topic(Topic(1, "t", 1, TopicConfig()), 0)
    assert {key: new[key] for key in USUAL} == USUAL


def test_items_are_stored_as_they_were_when_they_were_added() -> None:
    builder, item = ChunkBuilder(), topic(1)
    builder.add(SHARD)
    builder.add(item)
    item["head"] = 99
    chunk = builder.take()
    assert chunk is not None
    assert [found.get("head") for found in items_of_chunk(chunk[CHUNK_HEADER_BYTES:])] == [None, 1]
    assert builder.take() is None


def test_a_chunk_ends_when_it_has_its_minimum_size() -> None:
    data = encode(8, 4, (topic(number, ttl_ms=number % 7) for number in range(9_000)), clean=True)
    found = [*chunks(data)]
    assert len(found) > 3
    assert all(CHUNK_BYTES <= len(chunk) < 2 * CHUNK_BYTES for chunk in found[:-1])
    assert [item["head"] for item in items(data)] == [*range(9_000)]
    assert [item["config"]["ttl_ms"] for item in items(data)] == [n % 7 for n in range(9_000)]


def test_a_chunk_of_another_checkpoint_is_rejected() -> None:
    one, other = ChunkBuilder(), ChunkBuilder()
    one.add(SHARD)
    other.add(topic(1))
    one.take()
    other.take()
    one.add(topic(2))
    other.add(topic(2))
    own_chunk, other_chunk = one.take(), other.take()
    assert own_chunk is not None
    assert other_chunk is not None
    assert own_chunk[CHUNK_HEADER_BYTES:] == other_chunk[CHUNK_HEADER_BYTES:]
    before = ChunkBuilder()
    before.add(SHARD)
    before.take()
    for chunk, is_valid in ((own_chunk, True), (other_chunk, False)):
        head, body = chunk[:CHUNK_HEADER_BYTES], chunk[CHUNK_HEADER_BYTES:]
        assert (check_chunk(head, body, before.crc) is not None) is is_valid


def test_every_flipped_bit_of_the_header_is_detected() -> None:
    builder = ChunkBuilder()
    builder.add(SHARD)
    builder.take()
    head = builder.header(8, 4, clean=True)
    for bit in range(8 * HEADER_BYTES):
        damaged = bytearray(head)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            header = decode_header(bytes(damaged))
        except UnknownVersion:
            continue
        assert header is None or not is_sealed(header, bytes(damaged), builder.crc), bit


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_rejected(data: bytes) -> None:
    try:
        header = decode_header(data[:HEADER_BYTES])
    except UnknownVersion:
        return
    assert header is None or header.lsn >= 0
    if len(data) >= CHUNK_HEADER_BYTES:
        head, body = data[:CHUNK_HEADER_BYTES], data[CHUNK_HEADER_BYTES:]
        assert check_chunk(head, body, 0) is None


GOLDEN = (
    "5450434b50543031 0400000063970134 0800000000000000 0400000000000000 "
    "0000000000000000 2f00000000000000 270000001822db81 929181a674746c5f "
    "6d73079281a4626f 6f74a16283a26964 05a46865616402a6 636f6e66696700"
)
