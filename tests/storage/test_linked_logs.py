"""Links to payloads: made before they are named, read for as long as they are named, released when
no frame that stands names them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.linked import BLOB_BODY, Named, ShardLog, blob_of, letters
from topics.formats.disk.frames import FrameKind
from topics.storage import linked_logs
from topics.storage.disk import Damaged
from topics.storage.linked_logs import FOREIGN_FILES_MAX, NO_LINKS, Gone

Open = Callable[[int], ShardLog]


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Open]:
    """Opens the log of a shard; all are stopped at the end."""
    opened: list[ShardLog] = []

    def opener(number: int) -> ShardLog:
        opened.append(ShardLog(tmp_path, number))
        return opened[-1]

    yield opener
    for each in opened:
        each.stop()


def log_link(shard: int, base: int) -> str:
    return f"{shard:02d}-{base:016x}.wal"


def test_a_payload_of_the_own_log_is_read_without_a_link(shard: Open) -> None:
    dest = shard(1)
    lsn = dest.write(50, seq=3)
    assert dest.linked.is_linked(1, lsn)
    assert blob_of(dest.linked.payload(1, lsn)) == letters(50, 3)
    dest.linked.link([(1, lsn)])
    assert dest.links() == []


def test_only_append_and_payload_frames_are_payloads(shard: Open) -> None:
    dest = shard(1)
    payload, router = dest.write(kind=FrameKind.PAYLOAD), dest.write(kind=FrameKind.ROUTER)
    assert dest.linked.is_linked(1, payload)
    assert not dest.linked.is_linked(1, router)
    with pytest.raises(Damaged) as damage:
        dest.linked.payload(1, router)
    file = dest.wal.file(router)
    assert (damage.value.path, damage.value.offset) == (file.path, file.offset(router))


def test_a_payload_of_another_shard_is_read_once_it_is_linked(shard: Open) -> None:
    source, dest = shard(2), shard(1)
    first, second = source.write(30, seq=1), source.write(40, seq=2)
    assert not dest.linked.is_linked(2, first)
    dest.linked.link([(2, first)])
    assert dest.links() == [log_link(2, 0)]
    assert dest.linked.is_linked(2, second), "the file is there, and later frames of it, too"
    assert blob_of(dest.linked.payload(2, first)) == letters(30, 1)
    assert blob_of(dest.linked.payload(2, source.write(20, seq=3))) == letters(20, 3)


def test_a_link_is_durable_before_it_is_seen(shard: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    source, dest = shard(2), shard(1)
    lsn = source.write()
    synced: list[Path] = []

    def sync(folder: Path) -> None:
        assert dest.links() == [log_link(2, 0)]
        assert not dest.linked.is_linked(2, lsn)
        synced.append(folder)

    monkeypatch.setattr(linked_logs, "sync_directory", sync)
    dest.linked.link([(2, lsn)])
    assert synced == [dest.linked.folder]
    dest.linked.link([(2, lsn)])
    assert len(synced) == 1, "nothing was missing"


def test_the_newest_file_of_a_log_is_found_though_it_was_not_there_before(shard: Open) -> None:
    source, dest = shard(2), shard(1)
    dest.linked.link([(2, source.write())])
    base = source.next_file()
    assert not dest.linked.is_linked(2, base)
    dest.linked.link([(2, base)])
    assert dest.links() == [log_link(2, 0), log_link(2, base)]


def test_a_payload_outlives_the_log_that_wrote_it(shard: Open) -> None:
    source, dest = shard(2), shard(1)
    lsn = source.write(77, seq=5)
    dest.name((2, lsn))
    source.give_up(source.next_file())
    for _ in range(3):  # whatever becomes of its files
        source.give_up(source.next_file())
    assert source.links() == []
    assert blob_of(dest.linked.payload(2, lsn)) == letters(77, 5)
    for _ in dest.linked.checking(2, lsn):
        pass


def test_a_linked_file_is_not_used_again(shard: Open) -> None:
    source, dest = shard(2), shard(1)
    dest.name((2, source.write()))
    linked = (dest.linked.folder / log_link(2, 0)).stat().st_ino
    for _ in range(4):
        source.give_up(source.next_file())
    used = {path.stat().st_ino for path in source.wal.folder.iterdir()}
    assert linked not in used


def test_a_file_that_is_given_up_while_it_is_linked_is_not_named(
    shard: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, dest = shard(2), shard(1)
    lsn, link = source.write(), os.link
    end = source.next_file()

    def late(path: Path, name: Path) -> None:
        """The kernel has found the file, and waits for the folder of the link."""
        inode = path.stat().st_ino
        source.give_up(end)
        link(next(each for each in path.parent.iterdir() if each.stat().st_ino == inode), name)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(Gone):
        dest.linked.link([(2, lsn)])
    assert dest.links() == []


def test_a_payload_is_linked_from_the_folder_of_another_shard(shard: Open) -> None:
    source, middle, dest = shard(2), shard(1), shard(3)
    lsn = source.write(20, seq=4)
    middle.name((2, lsn))
    source.give_up(source.next_file())
    dest.name((2, lsn))
    assert dest.links() == [log_link(2, 0)]
    middle.give_up(middle.next_file())
    middle.give_up(middle.next_file())
    assert middle.links() == []
    assert blob_of(dest.linked.payload(2, lsn)) == letters(20, 4)


def test_what_is_nowhere_is_gone(shard: Open) -> None:
    source, dest = shard(2), shard(1)
    lsn = source.write()
    source.give_up(source.next_file())
    for wanted in ((2, lsn), (2, source.wal.next_lsn), (2, 8), (7, 0)):
        with pytest.raises(Gone):
            dest.linked.link([wanted])
        with pytest.raises(Gone):
            dest.linked.peek(*wanted)
    assert dest.links() == []


def test_what_is_linked_before_a_gone_payload_stays_linked(shard: Open) -> None:
    source, dest = shard(2), shard(1)
    lsn = source.write()
    with pytest.raises(Gone):
        dest.linked.link([(2, lsn), (7, 0)])
    assert dest.linked.is_linked(2, lsn)


def test_a_peek_gives_a_copy(shard: Open) -> None:
    source, dest = shard(2), shard(1)
    lsn = source.write(20, seq=4)
    view = dest.linked.peek(2, lsn)
    source.give_up(source.next_file())
    for _ in range(4):  # its file is used again
        source.next_file()
    assert blob_of(view) == letters(20, 4)
    assert dest.links() == []


@pytest.mark.parametrize("code", sorted(NO_LINKS))
def test_a_file_system_without_hard_links_is_told_as_it_says(
    shard: Open, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    source, dest = shard(2), shard(1)
    lsn = source.write()

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(OSError) as failure:
        dest.linked.link([(2, lsn)])
    assert failure.value.errno == code
    assert not dest.linked.is_linked(2, lsn)


# Released


def test_a_link_goes_with_the_last_log_file_that_names_it(shard: Open) -> None:
    source, dest = shard(2), shard(1)
    dest.name((2, source.write()))
    base = source.next_file()
    second = dest.next_file()
    dest.name((2, base))
    third = dest.next_file()
    assert dest.links() == [log_link(2, 0), log_link(2, base)]
    dest.give_up(second)
    assert dest.links() == [log_link(2, base)]
    dest.give_up(third)
    assert dest.links() == []
    assert not dest.linked.is_linked(2, 0)


def test_a_link_that_is_named_again_stays(shard: Open) -> None:
    source, dest = shard(2), shard(1)
    lsn = source.write()
    dest.name((2, lsn))
    second = dest.next_file()
    dest.name((2, lsn))
    dest.give_up(second)
    assert dest.links() == [log_link(2, 0)]


def test_a_link_that_nothing_names_goes_with_the_file_of_its_time(shard: Open) -> None:
    source, dest = shard(2), shard(1)
    dest.write()
    dest.linked.link([(2, source.write())])
    dest.release()
    assert dest.links() == [log_link(2, 0)], "it is about to be named"
    dest.next_file()
    dest.give_up(dest.next_file())
    assert dest.links() == []


def test_what_is_linked_again_while_it_is_released_stays(shard: Open) -> None:
    source, dest = shard(2), shard(1)
    lsn = source.write()
    dest.name((2, lsn))
    dest.next_file()
    assert dest.linked.release(dest.wal.next_lsn)
    assert not dest.linked.is_linked(2, lsn)
    dest.linked.link([(2, lsn)])
    dest.linked.unlink_released()
    assert dest.links() == [log_link(2, 0)]
    assert dest.linked.is_linked(2, lsn)


def test_a_link_that_cannot_be_removed_is_tried_again(
    shard: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, dest = shard(2), shard(1)
    dest.name((2, source.write()))
    limit = dest.next_file()

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", fail)
        dest.linked.release(limit)
        with pytest.raises(OSError, match="Input/output"):
            dest.linked.unlink_released()
    assert dest.linked.release(limit)
    dest.linked.unlink_released()
    assert dest.links() == []


# The own log


def test_an_own_file_is_linked_when_it_is_given_up_and_named_by_a_frame_that_stays(
    shard: Open,
) -> None:
    dest = shard(1)
    lsn, unnamed = dest.write(20, seq=4), dest.next_file()
    limit = dest.next_file()
    last = dest.name((1, lsn))
    assert dest.links() == []
    assert dest.linked.unkept(dest.wal.ending_at(limit), last + 8) == []
    dest.give_up(limit)
    assert dest.links() == [log_link(1, 0)]
    assert blob_of(dest.linked.payload(1, lsn)) == letters(20, 4)
    assert not dest.linked.is_linked(1, unnamed)
    dest.give_up(dest.next_file())
    assert dest.links() == []


def test_an_own_file_that_is_missing_is_told(shard: Open) -> None:
    dest = shard(1)
    lsn = dest.write()
    limit = dest.next_file()
    dest.name((1, lsn))
    file = dest.wal.file(lsn)
    file.path.unlink()
    with pytest.raises(Gone):
        dest.linked.keep(dest.linked.unkept(dest.wal.ending_at(limit), limit))


# A restart


def test_a_restart_keeps_what_it_does_not_know_until_the_log_of_that_time_is_gone(
    tmp_path: Path,
) -> None:
    source, dest = ShardLog(tmp_path, 2), ShardLog(tmp_path, 1)
    unknown, known = source.write(seq=1), source.next_file()
    dest.name((2, unknown), (2, known))
    dest.next_file()
    replayed = dest.name((2, known))
    middle = dest.next_file()
    dest.stop()
    again = ShardLog(tmp_path, 1, kept_from=middle)
    again.linked.note(replayed, [Named(2, known)])
    again.release()
    assert len(again.links()) == 2
    again.give_up(middle)
    assert again.links() == []
    for each in (source, again):
        each.stop()


def test_links_are_read_after_a_restart(tmp_path: Path) -> None:
    source, dest = ShardLog(tmp_path, 2), ShardLog(tmp_path, 1)
    lsn, blob = source.write(20, seq=4), source.write_blob(9, 1)
    dest.name((2, lsn), (2, blob))
    source.give_up(source.next_file())
    for each in (source, dest):
        each.stop()
    again = ShardLog(tmp_path, 1)
    assert blob_of(again.linked.payload(2, lsn)) == letters(20, 4)
    assert blob_of(again.linked.payload(2, blob)) == b"blob,"
    again.stop()


# Blobs


def test_a_blob_is_linked_with_its_frame_and_outlives_its_topic(shard: Open) -> None:
    source, dest = shard(2), shard(1)
    lsn = source.write_blob(10, 7)
    dest.linked.link([(2, source.write())])
    assert not dest.linked.is_linked(2, lsn), "the log is linked, and the blob is not"
    dest.name((2, lsn))
    assert dest.links() == [f"02-{lsn:016x}.blob", log_link(2, 0)]
    for path in source.wal.blobs.forget(10):
        path.unlink()
    assert blob_of(dest.linked.payload(2, lsn)) == b"blob,"
    dest.give_up(dest.next_file())
    assert dest.links() == []


def test_a_blob_of_the_own_log_is_linked_before_it_is_named(shard: Open) -> None:
    dest = shard(1)
    lsn = dest.write_blob(10, 7)
    assert not dest.linked.is_linked(1, lsn)
    assert blob_of(dest.linked.payload(1, lsn)) == b"blob,"
    dest.name((1, lsn))
    assert dest.links() == [f"01-{lsn:016x}.blob"]
    dest.wal.blobs.remove(10, 7)
    assert blob_of(dest.linked.payload(1, lsn)) == b"blob,"


def test_a_blob_that_is_gone_or_not_whole_is_not_linked(shard: Open) -> None:
    source, dest = shard(2), shard(1)
    cut, gone = source.write_blob(10, 7), source.write_blob(11, 7)
    path = source.wal.blobs.path(10, 7)
    path.write_bytes(path.read_bytes()[:-1])
    source.wal.blobs.remove(11, 7)
    for lsn in (cut, gone):
        with pytest.raises(Gone):
            dest.linked.link([(2, lsn)])
        with pytest.raises(Gone):
            dest.linked.peek(2, lsn)
        assert not dest.linked.is_linked(2, lsn)
    assert dest.links() == [log_link(2, 0)]


def test_a_blob_is_found_in_the_folder_of_another_shard(shard: Open) -> None:
    source, middle, dest = shard(2), shard(1), shard(3)
    lsn = source.write_blob(10, 7)
    middle.name((2, lsn))
    source.wal.blobs.remove(10, 7)
    assert blob_of(dest.linked.peek(2, lsn)) == b"blob,"
    dest.linked.link([(2, lsn)])
    assert dest.linked.is_linked(2, lsn)


# Damage


def test_damage_of_a_payload_is_found_with_the_path_of_its_link(shard: Open) -> None:
    source, dest = shard(2), shard(1)
    lsn, blob = source.write(200), source.write_blob(10, 7)
    dest.name((2, lsn), (2, blob))
    source.give_up(source.next_file())
    for payload, name, at in (
        (lsn, log_link(2, 0), 4096 + 64 + 100),
        (blob, f"02-{blob:016x}.blob", 64 + len(BLOB_BODY) - 1),
    ):
        path = dest.linked.folder / name
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"\x7f")
        with pytest.raises(Damaged) as damage:
            list(dest.linked.checking(2, payload))
        assert damage.value.path == path
        dest.linked.look_for(2, payload)  # after an orderly stop, which compares no body
    with pytest.raises(Damaged, match="damaged payload frame"):
        dest.linked.payload(2, lsn)


# How many


def test_a_log_that_names_many_files_goes_on_in_a_new_one(shard: Open) -> None:
    source, other, dest = shard(2), shard(3), shard(1)
    dest.name((2, source.write()), (3, other.write()))
    for _ in range(FOREIGN_FILES_MAX):
        assert dest.wal.file_begin(dest.name((2, source.next_file()))) == 0
    dest.name((3, other.next_file()))
    begin = dest.wal.next_lsn
    assert dest.wal.file_begin(dest.write()) == begin
    for _ in range(FOREIGN_FILES_MAX):
        assert dest.wal.file_begin(dest.name((2, source.next_file()))) == begin
