"""The simulated disk: after a power loss it contains only bytes that were written."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.disk import PROCEED, Died, Disk, Verdict
from tests.simulation.durable import NAMES, PAGE, SECTOR, Durable, File, Folder
from tests.support.log import Client
from topics.storage import disk as disk_module
from topics.storage import mapped_file
from topics.storage.disk import (
    AtomicFile,
    Damaged,
    allocate,
    check_space,
    punch_hole,
    rewrite,
    sync_directory,
    write_back,
    zero,
)
from topics.storage.mapped_file import MappedFile

SEEDS = st.integers(0, 1 << 32)


class Process:
    """A process that owns operations."""

    def __init__(self, name: str = "shard 0") -> None:
        self.name, self.is_dead = name, False


def disk_at(path: Path, seed: int = 1, names: str = "strict") -> Disk:
    path.mkdir()
    disk = Disk(path, random.Random(seed))
    disk.model.names_model = names
    return disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with disk_at(tmp_path / "data") as disk:
        yield disk


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def write(path: Path, data: bytes, at: int = 0) -> None:
    with opened(path) as fd:
        os.pwrite(fd, data, at)


def put(path: Path, data: bytes) -> None:
    """Write a file durably."""
    with opened(path) as fd:
        os.pwrite(fd, data, 0)
        os.fdatasync(fd)
    sync_directory(path.parent)


def lose_power_of(disk: Disk, policy: str) -> None:
    """Lose power until the given policy is drawn. Operations that were pending at the first power
    loss are settled by then.
    """
    while not disk.lose_power().startswith(policy):
        pass


def failing(code: int, operations: set[str]) -> Any:
    return lambda _, operation, *__: Verdict(code) if operation in operations else PROCEED


# The model compared with all earlier versions

_OFFSETS = st.integers(0, 5 * SECTOR)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), _OFFSETS, st.integers(1, 3 * SECTOR)),
        st.tuples(st.sampled_from(["cut", "extend"]), _OFFSETS, st.just(0)),
        st.tuples(st.sampled_from(["sync", "fail", "power"]), st.just(0), st.just(0)),
    ),
    max_size=12,
)


def shown(image: bytes, at: int, size: int) -> bytes:
    """Return the visible part of a sector's version for a file of this size. It has zeros beyond
    the end of the version.
    """
    return image[at : at + SECTOR].ljust(SECTOR, b"\0")[: size - at]


def is_made_of(found: bytes, images: list[bytes]) -> bool:
    return all(
        any(shown(image, at, len(found)) == found[at : at + SECTOR] for image in images)
        for at in range(0, len(found), SECTOR)
    )


@pytest.mark.slow
@given(SEEDS, _STEPS)
@settings(max_examples=100)
def test_each_sector_has_a_version_that_it_had_since_the_last_sync(
    seed: int, steps: list[tuple[str, int, int]]
) -> None:
    model, file = Durable(random.Random(seed)), File("a", 0)
    images = [b""]  # the durable content, and the content after each later operation
    for number, (step, at, length) in enumerate(steps, 1):
        now = images[-1]
        if step == "write":
            data = bytes([number]) * length
            model.write(file, at, data)
            images.append(now[:at].ljust(at, b"\0") + data + now[at + length :])
        elif step in {"cut", "extend"}:
            is_cut = step == "cut"
            model.write(file, at, None if is_cut else b"")
            images.append((now[:at] if is_cut else now).ljust(at, b"\0"))
        elif step == "sync":
            model.sync(file, model.count)
            assert file.durable == now
            images = [now]
        elif step == "fail":
            model.fail(file, model.count)
            model.sync(file, model.count)
            assert len(file.durable) == len(now)
            for i, byte in enumerate(file.durable):
                assert byte in {image[i] if i < len(image) else 0 for image in images}
            images = [bytes(file.durable)]
        else:
            policy = model.lose_power()
            left = bytes(file.durable)
            assert is_made_of(left, images), policy
            assert len(left) in {len(image) for image in images}, policy
            images = [left]


@pytest.mark.slow
@given(SEEDS, st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=20))
@settings(max_examples=100)
def test_names_are_lost_in_order(seed: int, steps: list[tuple[int, int]]) -> None:
    """On ext4 the names of the complete disk are lost in one order, otherwise those of each
    folder.
    """
    model = Durable(random.Random(seed))
    folders = [Folder(path, 0) for path in "ab"]
    for folder in folders:
        model.name(folder.path, folder)
    model.sync(model.tree, model.count)
    is_one_journal = model.names_model == "ext4"

    def names(which: str) -> list[dict[str, File | Folder]]:
        return [dict(getattr(folder, which)) for folder in folders]

    states = [names("names")]
    for step, which in steps:
        path, other = f"{'ab'[which % 2]}/{which}", f"{'ab'[which % 2]}/{which ^ 2}"
        found = model.find(path)
        if step == 0:
            model.name(path, File(path, 0))
        elif step == 1 and found:
            model.name(path, None)
        elif step == 2 and found:
            model.name(other, found, path)
        elif step == 3 and found:
            model.name(other, found)
        elif step == 4:
            folder = folders[which % 2]
            model.sync(folder, model.count)
            assert folder.durable == folder.names
            if is_one_journal:
                states = [names("names")]
            else:
                for state in states:
                    state[which % 2] = dict(folder.names)
        states.append(names("names"))
    policy = model.lose_power()
    left = names("durable")
    if is_one_journal:
        assert left in states, policy
    else:
        assert all(left[i] in [state[i] for state in states] for i in range(2)), policy


def test_every_possible_outcome_of_a_sector_occurs() -> None:
    """A write that was not synced is kept, lost, torn, or replaced by zeros after a new length."""
    seen = set()
    for seed in range(200):
        model, file = Durable(random.Random(seed)), File("a", 0, b"old" * SECTOR)
        model.write(file, 0, b"new" * 2 * SECTOR)
        model.lose_power()
        seen.add((len(file.durable) // SECTOR, *file.durable[1::SECTOR]))
    assert len(seen) > 10
    assert {size for size, *_ in seen} == {3, 6}


def test_a_write_during_a_sync_may_be_lost() -> None:
    model, file = Durable(random.Random(1)), File("a", 0)
    model.write(file, 0, b"before")
    mark = model.count
    model.write(file, 0, b"during")
    model.sync(file, mark)
    assert file.durable == b"before"


# The folder


@pytest.mark.slow
def test_the_folder_contains_the_durable_state_after_a_power_loss(tmp_path: Path) -> None:
    """After any operations and a power loss, the files are those of the model and remain usable."""
    left = []
    for seed in range(12):
        rng = random.Random(seed)
        with disk_at(tmp_path / str(seed), seed, NAMES[seed % 2]) as disk:
            for _ in range(3):
                for _ in range(20):
                    do_anything(disk, rng)
                disk.lose_power()
                files = {
                    path: bytes(node.durable)
                    for path, node in disk.model.tree.walk("durable")
                    if isinstance(node, File)
                }
                assert files == {
                    str(path.relative_to(disk.root)): path.read_bytes()
                    for path in disk.root.rglob("*")
                    if path.is_file()
                }
                assert disk.files() == {path: len(data) for path, data in files.items()}
                left.append(len(files))
    assert max(left) > 3


def do_anything(disk: Disk, rng: random.Random) -> None:
    folder = disk.root / rng.choice("xy")
    path, other = folder / rng.choice("abc"), folder / rng.choice("abc")
    with contextlib.suppress(FileNotFoundError, FileExistsError):
        match rng.randrange(8):
            case 0:
                folder.mkdir()
            case 1:
                path.replace(other)
            case 2:
                path.unlink()
            case 3:
                other.hardlink_to(path)
            case 4:
                sync_directory(rng.choice((folder, disk.root)))
            case 5:
                path.write_bytes(rng.randbytes(rng.randrange(2000)))
            case 6:
                write(path, rng.randbytes(rng.randrange(2000)), rng.randrange(2000))
            case _:
                with opened(path) as fd:
                    os.ftruncate(fd, rng.randrange(2000))
                    rng.choice((os.fsync, os.fdatasync))(fd)


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    digests = []
    for _ in range(2):
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        rng = random.Random(5)
        with disk_at(tmp_path / "data", 5) as disk:
            for _ in range(100):
                do_anything(disk, rng)
            digests.append([disk.digest(), disk.lose_power(), disk.digest()])
    assert digests[0] == digests[1]
    assert digests[0][0] != digests[0][2]


def test_names_are_durable_after_a_sync_of_their_folder_or_after_any_sync(tmp_path: Path) -> None:
    for names in NAMES:
        with disk_at(tmp_path / names, names=names) as disk:
            put(disk.root / "synced", b"1")
            write(disk.root / "new", b"2")
            with opened(disk.root / "synced") as fd:
                os.fdatasync(fd)
            lose_power_of(disk, "drop")
            assert ("new" in disk.files()) == (names == "ext4")
            assert (disk.root / "synced").read_bytes() == b"1"


def test_a_replaced_file_has_its_new_or_its_old_content(tmp_path: Path) -> None:
    seen = set()
    for seed in range(30):
        with disk_at(tmp_path / str(seed), seed, NAMES[seed % 2]) as disk:
            put(disk.root / "file", b"old")
            new_file = AtomicFile(disk.root / "file", ".new")
            os.pwrite(new_file.fd, b"new", 0)
            if seed % 3:
                new_file.publish()
            else:
                os.fdatasync(new_file.fd)
                (disk.root / "file.new").replace(disk.root / "file")
                os.close(new_file.fd)
            disk.lose_power()
            data = (disk.root / "file").read_bytes()
            assert data == b"new" or (data == b"old" and seed % 3 == 0)
            seen.add(data)
    assert seen == {b"old", b"new"}


def test_descriptors_from_before_a_power_loss_are_unusable(disk: Disk) -> None:
    put(disk.root / "file", b"old")
    with opened(disk.root / "file") as fd:
        mapped = MappedFile(disk.root / "file", fd, 3)
        disk.lose_power()
        for call in (
            lambda: os.pwrite(fd, b"new", 0),
            lambda: os.pread(fd, 3, 0),
            lambda: os.fdatasync(fd),
        ):
            with pytest.raises(OSError, match="Input/output error"):
                call()
        assert not mapped.can_read(0, 3)
    assert (disk.root / "file").read_bytes() == b"old"


# Processes


def test_a_dead_process_changes_nothing(disk: Disk) -> None:
    owner, path = Process(), disk.root / "file"
    disk.owner = lambda: owner
    put(path, b"old")
    (disk.root / "empty").mkdir()
    with opened(path) as fd:
        before, owner.is_dead = disk.digest(), True
        for call in (
            lambda: os.open(disk.root / "new", os.O_RDWR | os.O_CREAT),
            lambda: path.open("r+b"),
            lambda: os.pwrite(fd, b"new", 0),
            lambda: os.write(fd, b"new"),
            lambda: os.ftruncate(fd, 0),
            lambda: os.posix_fallocate(fd, 0, 100),
            lambda: os.fsync(fd),
            lambda: os.pread(fd, 1, 0),
            lambda: zero(fd, 0, 1),
            lambda: punch_hole(fd, 0, 1),
            lambda: write_back(fd, 0, 1),
            lambda: path.unlink(missing_ok=True),
            lambda: path.replace(disk.root / "other"),
            lambda: (disk.root / "other").hardlink_to(path),
            lambda: (disk.root / "other").mkdir(),
            lambda: (disk.root / "empty").rmdir(),
        ):
            with pytest.raises(Died):
                call()
        assert disk.digest() == before
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_process_may_die_while_the_disk_waits(disk: Disk) -> None:
    owner = Process()
    disk.owner = lambda: owner

    def kill(*_: object) -> Verdict:
        owner.is_dead = True
        return PROCEED

    with opened(disk.root / "file") as fd:
        disk.hook = kill
        with pytest.raises(Died):
            os.pwrite(fd, b"never", 0)
    assert (disk.files(), disk.model.count) == ({"file": 0}, 1)


def test_a_write_may_be_torn_by_a_kill(disk: Disk) -> None:
    owner = Process()
    disk.owner = lambda: owner

    def tear(_: object, operation: str, path: str, length: int) -> Verdict:
        if operation != "write":
            return PROCEED
        assert (path, length) == ("file", 5)
        owner.is_dead = True
        return Verdict(torn=2)

    with opened(disk.root / "file") as fd:
        disk.hook = tear
        with pytest.raises(Died):
            os.pwritev(fd, [b"12", b"345"], 0)
    owner.is_dead = False
    assert (disk.root / "file").read_bytes() == b"12"


def test_the_descriptors_of_a_dead_process_are_closed(disk: Disk) -> None:
    owners = Process("a"), Process("b")
    fds = []
    for owner in owners:
        disk.owner = lambda owner=owner: owner  # type: ignore[misc]
        fds.append(os.open(disk.root / owner.name, os.O_RDWR | os.O_CREAT))
    disk.close_all_of(owners[0])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fds[0])
    os.close(fds[1])


# Faults


@pytest.mark.parametrize("operation", ["fdatasync", "writeback"])
def test_no_later_sync_writes_the_data_that_a_failed_sync_has_lost(
    tmp_path: Path, operation: str
) -> None:
    for is_rewritten in (False, True):
        left = set()
        for seed in range(20):
            with disk_at(tmp_path / f"{is_rewritten}{seed}", seed) as disk:
                put(disk.root / "file", b"old")
                with opened(disk.root / "file") as fd:
                    os.pwrite(fd, b"new", 0)
                    disk.hook = failing(errno.EIO, {operation})
                    with pytest.raises(OSError, match="Input/output error"):
                        write_back(fd, 0, 3) if operation == "writeback" else os.fdatasync(fd)
                    disk.hook = lambda *_: PROCEED
                    assert os.pread(fd, 3, 0) == b"new"
                    if is_rewritten:
                        rewrite(fd, 0, 3)
                    os.fdatasync(fd)
                disk.lose_power()
                left.add((disk.root / "file").read_bytes())
        assert left == ({b"new"} if is_rewritten else {b"old", b"new"})


def test_free_space_is_counted_in_allocated_blocks(disk: Disk) -> None:
    root, disk.free_bytes = disk.root, 4 * PAGE
    with opened(root / "a") as fd:
        allocate_pages(fd, 2)
        os.pwrite(fd, b"1" * PAGE, PAGE)  # has its block
        with opened(root / "b") as other:
            assert os.pwrite(other, b"2" * 3 * PAGE, 0) == 2 * PAGE
            with pytest.raises(OSError, match="No space left"):
                os.pwrite(other, b"3", 2 * PAGE)
            with pytest.raises(OSError, match="No space left"):
                (root / "folder").mkdir()
            with pytest.raises(OSError, match="No space left"):
                check_space(root, 1)
            (root / "b").unlink()
            assert os.statvfs(root).f_bavail == 0  # still open
        assert os.statvfs(root / "a").f_bavail == 2
        with pytest.raises(OSError, match="No space left"):
            allocate_pages(fd, 5)
        allocate_pages(fd, 4)
        punch_hole(fd, PAGE, 2 * PAGE)
        assert disk.free_bytes == 2 * PAGE
        assert os.pread(fd, 2, PAGE - 1) == b"\0\0"
        os.ftruncate(fd, 0)
    assert disk.free_bytes == 4 * PAGE
    (root / "a").unlink()
    disk.free_bytes = None
    allocate_in(root / "c", 1 << 20)
    assert disk.files() == {"c": 1 << 20}


def allocate_pages(fd: int, pages: int) -> None:
    os.posix_fallocate(fd, 0, pages * PAGE)


def allocate_in(path: Path, size: int) -> None:
    with opened(path) as fd:
        allocate(fd, path.parent, size)


def test_a_power_loss_frees_unused_blocks(disk: Disk) -> None:
    put(disk.root / "kept", b"1")
    disk.free_bytes = 4 * PAGE
    write(disk.root / "lost", b"2" * 2 * PAGE)
    assert disk.free_bytes == 2 * PAGE
    lose_power_of(disk, "drop")
    assert disk.free_bytes == 4 * PAGE - PAGE * (len(disk.files()) - 1) * 2


def test_spoiled_pages_cannot_be_read(disk: Disk) -> None:
    path = disk.root / "file"
    put(path, b"1" * 3 * PAGE)
    mapped = MappedFile.of(path)
    assert mapped.can_read(0, 3 * PAGE)
    disk.make_unreadable(path, PAGE + 5, 1)
    with pytest.raises(Damaged, match=f"offset {PAGE}: the disk cannot read it"):
        mapped.check_readable(0, 3 * PAGE)
    assert mapped.can_read(0, PAGE)
    assert mapped.salvage()[1] == [PAGE]
    with opened(path) as fd:
        assert os.pread(fd, PAGE, 0) == b"1" * PAGE
        for read in (
            lambda: os.pread(fd, 2, PAGE - 1),
            path.read_bytes,
            lambda: read_buffered(path),
            lambda: read_into(path),
        ):
            with pytest.raises(OSError, match="Input/output error"):
                read()
        os.pwrite(fd, b"2" * PAGE, PAGE)
        assert os.pread(fd, 2, PAGE - 1) == b"12"
    assert mapped.can_read(0, 3 * PAGE)


def read_buffered(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(PAGE + 1)


def read_into(path: Path) -> int | None:
    with path.open("rb", buffering=0) as file:
        return file.readinto(bytearray(2 * PAGE))


def test_any_operation_may_fail(disk: Disk) -> None:
    put(disk.root / "file", b"1")
    seen = []

    def hook(_: object, operation: str, path: str, length: int) -> Verdict:
        seen.append((operation, path, length))
        return Verdict(errno.EDQUOT)

    with opened(disk.root / "file") as fd:
        mapped = MappedFile(disk.root / "file", fd, 1)
        disk.hook = hook
        for call in (
            lambda: os.open(disk.root / "new", os.O_RDWR | os.O_CREAT),
            lambda: os.posix_fallocate(fd, 0, 9),
            lambda: (disk.root / "file").replace(disk.root / "other"),
            lambda: zero(fd, 0, 1),
        ):
            with pytest.raises(OSError, match="quota"):
                call()
        mapped.can_read(0, 1)
    assert seen == [
        ("create", "new", 0),
        ("allocate", "file", 9),
        ("rename", "file", 0),
        ("zero", "file", 1),
        ("write", "file", 1),
        ("check", "file", 1),
    ]
    assert disk.files() == {"file": 1}


# Replaced functions


def test_all_replaced_functions_are_restored(tmp_path: Path) -> None:
    def functions() -> dict[str, Any]:
        return {
            f"{module}.{name}": value
            for module in (os, io, builtins, disk_module, mapped_file)
            for name, value in vars(module).items()
        }

    before = functions()
    with disk_at(tmp_path / "data"):
        assert functions() != before
    assert functions() == before


def test_operations_outside_the_folder_are_not_affected(disk: Disk, tmp_path: Path) -> None:
    calls = []
    disk.hook = lambda *call: calls.append(call) or PROCEED  # type: ignore[func-returns-value]
    elsewhere = tmp_path / "database"
    elsewhere.mkdir()
    write(elsewhere / "file", b"1")
    with (elsewhere / "file").open("r+b") as file:
        file.write(b"2")
        os.fsync(file.fileno())
    (elsewhere / "file").replace(elsewhere / "other")
    assert (elsewhere / "other").read_text() == "2"
    shutil.rmtree(elsewhere)
    assert not calls
    assert not disk.files()


def test_operations_on_files_from_open_are_recorded(disk: Disk) -> None:
    path = disk.root / "file"
    with path.open("w") as text:
        text.write("one\n")
    with path.open("r+b") as file:
        file.seek(2)
        file.write(b"E")
        file.truncate(3)
        os.fsync(file.fileno())
    sync_directory(disk.root)
    lose_power_of(disk, "drop")
    assert path.read_text() == "onE"
    shutil.rmtree(disk.root)
    assert not disk.files()


def test_the_initial_content_is_durable(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"1")
    with Disk(tmp_path, random.Random(1)) as disk:
        disk.lose_power()
        assert (tmp_path / "folder" / "file").read_bytes() == b"1"


# The engine


@pytest.mark.slow
@pytest.mark.parametrize("names", NAMES)
def test_a_shard_keeps_synced_records(tmp_path: Path, names: str) -> None:
    with disk_at(tmp_path / "data", names=names) as disk:
        client = Client(disk.root, boot="0")
        client.put("synced", durability="fsync")
        client.put("lazy", durability="disk")
        written = 0
        for boot in range(1, 16):
            for _ in range(5):
                client.append("synced", f"{written} " + "x" * 2000)
                client.append("lazy", "y" * 700)
                written += 1
            client.kill()
            policy = disk.lose_power()
            client = Client(disk.root, boot=str(boot))
            found = client.records("synced")
            assert all(b'"%d x' % n in found for n in range(written)), policy
            assert client.engine.topic("lazy").count <= written
        client.stop()
