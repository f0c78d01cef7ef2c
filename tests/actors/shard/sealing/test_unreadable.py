"""Tests of unreadable pages in files that the shard has mapped: no read stops the process, and
readers receive a report of exactly the lost records.

Truncating a mapped file has the same effect as an unreadable sector (SIGBUS), but needs no mount.
Code that may receive this signal runs in a child process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.actors.shard.sealing.sealing_support import Sealer, delete, fill
from tests.campaigns.mounts import needs_root
from tests.support.damage import FILE_BYTES, Seen, busy, kinds, seen, stepped
from topics.formats.api.diff_body import TagMatch
from topics.storage.disk import Damaged
from topics.storage.inspect import describe
from topics.storage.mapped_file import CANNOT_READ, PAGE_BYTES
from topics.storage.verify import Finding, verify_directory

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with stepped():
        client = busy(tmp_path_factory.mktemp("unreadable") / "data")
        client.kill()
    return client.path


def in_a_process(task: Callable[[], None]) -> None:
    """Run a task in a child process and check that it exits normally."""
    child = os.fork()
    if not child:
        code = 1
        try:
            task()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "a negative number is the signal that killed it"


def use(client: Sealer) -> Seen:
    """Run all operations that read mapped files. Return the state that readers saw first."""
    found = seen(client)
    client.commits.store.discard_prefetched()
    for name in ("a", "b", "dest", "long"):
        client.page(name)
    for match in (TagMatch("Eq", "even"), TagMatch("Glob", "o")):
        delete(client, "b", match=match)
    with contextlib.suppress(Damaged, OSError):
        for _ in range(2):
            fill(client, "a", rounds=8, size=300)
            client.seal()
    for kind in kinds(client.path).values():
        for path in kind:
            if path.suffix not in (".reserve", ".spare") and path.stat().st_size:
                [*describe(path)]
    assert [*verify_directory(client.path, 1)]
    return found


def lost_silently(before: Seen, after: Seen) -> dict[str, set[int]]:
    return {
        name: lost
        for name, records in before.shown.items()
        if (
            lost := {
                seq
                for seq, record in records.items()
                if after.shown[name].get(seq) != record and seq not in after.reported[name]
            }
        )
    }


@pytest.mark.parametrize("kind", ["wal .wal", "segment .seg", "blob .blob"])
@pytest.mark.parametrize("is_read_before", [False, True])
def test_truncating_a_mapped_file_loses_only_its_records_and_reports_them(
    scene: Path, tmp_path: Path, kind: str, is_read_before: bool
) -> None:
    def cut_and_use() -> None:
        for number in range(len(kinds(scene)[kind])):
            path = Path(shutil.copytree(scene, tmp_path / f"{number}"))
            client = Sealer(path, file_bytes=FILE_BYTES)
            file, before = kinds(path)[kind][number], seen(client)
            if not is_read_before:
                client.shard.segments.maps.close()
            client.commits.store.discard_prefetched()
            size = file.stat().st_size
            os.truncate(file, size // 3 // PAGE_BYTES * PAGE_BYTES)
            after = use(client)
            assert not lost_silently(before, after), file
            if any(after.reported[name] - before.reported[name] for name in after.reported):
                assert any(path == file for path, _ in client.commits.store._reported), file

    in_a_process(cut_and_use)


@contextlib.contextmanager
def device(path: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Mount an ext4 file system on a loop device at ``path``. Yields the path and a function that
    truncates the device.
    """
    image = path.with_name("image")
    image.write_bytes(b"")
    os.truncate(image, 64 << 20)
    path.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", str(image)], check=True)
    mounted = subprocess.run(
        ["mount", "-o", "loop", str(image), str(path)], check=False, capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no loop device: {mounted.stderr.strip()}")

    def break_off() -> None:
        subprocess.run(["sync", "-f", str(path)], check=True)
        os.truncate(image, 8 << 20)
        Path("/proc/sys/vm/drop_caches").write_text("1")

    try:
        yield path, break_off
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@needs_root
def test_an_unreadable_sector_loses_only_its_records_and_reports_them(
    scene: Path, tmp_path: Path
) -> None:
    with device(tmp_path / "disk") as (disk, break_off):
        (disk / "filler").write_bytes(
            os.urandom(20 << 20)
        )  # the device is truncated inside of later files
        path = Path(shutil.copytree(scene, disk / "data"))

        def break_and_read() -> None:
            client = Sealer(path, file_bytes=FILE_BYTES)
            before = seen(client)
            client.shard.segments.maps.close()
            client.commits.store.discard_prefetched()
            break_off()
            after = seen(client)
            assert not lost_silently(before, after)
            assert any(after.reported[name] - before.reported[name] for name in after.reported)
            found = [each for each in verify_directory(path, 1) if isinstance(each, Finding)]
            assert any(each.reason == CANNOT_READ for each in found)

        in_a_process(break_and_read)
