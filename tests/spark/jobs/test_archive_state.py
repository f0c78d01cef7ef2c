"""The state of an archive: a crash at any step is repaired by the next run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from topics.spark.errors import JobError
from topics.spark.jobs.archive_state import (
    CHECKPOINT,
    STAGING,
    STATE,
    Figure,
    Identity,
    Manifest,
    Merge,
    State,
    add_figures,
    staging,
)
from topics.spark.jobs.files import LocalFiles

IDENTITY = Identity(["a", "b"], "orders", False, "parquet")


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes crash here, not the machine."""
    monkeypatch.setattr("topics.spark.jobs.files._sync", lambda path: None)


class Crash(BaseException):
    """The process is gone."""


class Crashing(LocalFiles):
    """Crashes before its step ``at``, or half way through it if that has halves."""

    def __init__(self, root: Path, at: int, *, exchange: bool = True) -> None:
        super().__init__(root)
        self.left = at
        self.exchange = exchange

    def _step(self) -> None:
        if self.left == 0:
            raise Crash
        self.left -= 1

    def write(self, path: str, text: str) -> None:
        self._step()
        (self._root / path).parent.mkdir(parents=True, exist_ok=True)
        (self._root / f"{path}.pending").write_text(text[: len(text) // 2])
        self._step()
        super().write(path, text)

    def move(self, source: str, dest: str) -> None:
        self._step()
        super().move(source, dest)

    def swap(self, staged: str, folder: str, aside: str) -> None:
        self._step()
        if self.exchange:
            super().swap(staged, folder, aside)
            return
        if self.exists(folder):
            self.move(folder, aside)
        self.move(staged, folder)

    def settle(self, paths: Sequence[str]) -> None:
        self._step()
        super().settle(paths)

    def remove(self, path: str) -> None:
        self._step()
        if (self._root / path).is_dir():
            for name in self.names(path)[:1]:
                super().remove(f"{path}/{name}")
            self._step()
        super().remove(path)


def land(files: LocalFiles, batch: int) -> None:
    """What a run does with a batch of three files on two dates, each of them its batch's text."""
    state = State(files)
    state.recover()
    last = state.last()
    if last is not None and last.batch >= batch:
        return
    files.remove(STAGING)
    moves = []
    for number, date in enumerate(("date=1", "date=1", "date=2")):
        path = f"{staging(batch)}/{date}/part-{number}.parquet"
        files.write(path, f"batch {batch} file {number}")
        moves.append((path, f"{date}/batch-{batch:010d}-{number:05d}.parquet"))
    figure = Figure(0, "t", 3, 3 * batch + 1, 3 * batch + 3)
    totals = add_figures([*(last.totals if last else []), figure])
    state.commit(Manifest(batch, "q", moves, [figure], totals))


def merge(files: LocalFiles) -> None:
    """What a run does to merge date=1."""
    state = State(files)
    state.recover()
    names = files.names("date=1")
    if names == ["merged-0.parquet"]:
        return
    files.write(f"{STAGING}/date=1/merged-0.parquet", texts(files, "date=1"))
    state.commit_merge(Merge("date=1", f"{STAGING}/date=1", "merged-0.parquet"))


def texts(files: LocalFiles, *folders: str) -> str:
    """Everything that a reader finds."""
    found = [files.read(f"{folder}/{n}") for folder in folders for n in files.names(folder)]
    return "\n".join(sorted("\n".join(found).split("\n")))


def crash_everywhere(
    root: Path,
    run: Callable[[LocalFiles], None],
    check: Callable[[int, LocalFiles], None],
    **how: bool,
) -> int:
    """Run in a fresh folder with a crash at each step, then again without; check both times."""
    for at in range(1000):
        where = root / str(at)
        try:
            run(Crashing(where, at, **how))
        except Crash:
            check(at, LocalFiles(where))
            run(LocalFiles(where))
            check(-1, LocalFiles(where))
            continue
        check(-1, LocalFiles(where))
        return at
    raise AssertionError("it never ends")


def test_batches_are_there_once_after_a_crash_at_any_step(tmp_path: Path) -> None:
    whole = sorted(f"batch {batch} file {number}" for batch in (0, 1, 2) for number in (0, 1, 2))

    def run(files: LocalFiles) -> None:
        for batch in (0, 1, 2):
            land(files, batch)

    def check(at: int, files: LocalFiles) -> None:
        found = [line for line in texts(files, "date=1", "date=2").split("\n") if line]
        if at >= 0:  # some of them, whole and once, while the next run is awaited
            assert set(found) <= set(whole)
            assert len(found) == len(set(found))
            return
        assert found == whole
        assert files.names(STAGING) == []
        last = State(files).last()
        assert last is not None
        assert last.totals == [Figure(0, "t", 9, 1, 9)]
        assert files.names(STATE) == ["batch-0000000001.json", "batch-0000000002.json"]

    assert crash_everywhere(tmp_path, run, check) > 30


@pytest.mark.parametrize("exchange", [True, False])
def test_a_merge_is_done_or_undone_after_a_crash_at_any_step(
    tmp_path: Path, exchange: bool
) -> None:
    whole = sorted(f"batch 0 file {number}" for number in (0, 1))

    def run(files: LocalFiles) -> None:
        land(files, 0)
        merge(files)

    def check(at: int, files: LocalFiles) -> None:
        found = [line for line in texts(files, "date=1").split("\n") if line]
        assert len(found) == len(set(found))
        if at < 0:
            assert found == whole
            assert files.names("date=1") == ["merged-0.parquet"]
            assert files.names(STAGING) == []

    assert crash_everywhere(tmp_path, run, check, exchange=exchange) > 20


def test_a_repeated_batch_stays_away_when_its_files_were_merged(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    land(files, 0)
    merge(files)
    land(files, 0)
    assert files.names("date=1") == ["merged-0.parquet"]


def test_a_staged_file_that_is_gone_is_told(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    land(files, 0)
    files.write(f"{staging(0)}/date=1/part-0.parquet", "")
    files.remove("date=2/batch-0000000000-00002.parquet")
    files.remove("date=1/batch-0000000000-00000.parquet")
    with pytest.raises(JobError, match=r"00002\.parquet: the file is gone"):
        State(files).recover()


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("")
    with pytest.raises(JobError, match=r"not empty \(letters.txt\) and holds no archive"):
        State(LocalFiles(tmp_path)).check_folder(IDENTITY)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (Identity(["a", "b"], "bills", False, "parquet"), 'topic "bills" of a, b'),
        (Identity(["a", "b"], "orders", True, "parquet"), 'pattern "orders"'),
        (Identity(["a"], "orders", False, "parquet"), 'topic "orders" of a '),
        (Identity(["a", "b"], "orders", False, "delta"), "delta"),
    ],
)
def test_the_archive_of_something_else_is_refused(
    tmp_path: Path, other: Identity, told: str
) -> None:
    state = State(LocalFiles(tmp_path))
    state.check_folder(IDENTITY)
    state.claim(IDENTITY)
    state.claim(other)  # claimed already
    state.check_folder(IDENTITY)
    with pytest.raises(
        JobError, match=r'is the archive of topic "orders" of a, b .*not of'
    ) as refusal:
        state.check_folder(other)
    assert told in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_checkpoint_that_is_lost_or_of_another_query_is_refused(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    state = State(files)
    state.check_checkpoint()
    files.write(f"{CHECKPOINT}/metadata", '{"id":"q"}')
    state.check_checkpoint()
    files.write(f"{CHECKPOINT}/commits/0", "")
    with pytest.raises(JobError, match="the checkpoint is not of the files"):
        state.check_checkpoint()
    land(files, 0)
    state.check_checkpoint()
    files.remove(f"{CHECKPOINT}/metadata")
    with pytest.raises(JobError, match="the checkpoint is gone"):
        state.check_checkpoint()
    files.write(f"{CHECKPOINT}/metadata", '{"id":"r"}')
    with pytest.raises(JobError, match="the checkpoint is not of the files"):
        state.check_checkpoint()


def test_figures_add_up_by_server_and_topic() -> None:
    assert add_figures(
        [Figure(1, "a", 2, 5, 9), Figure(0, "b", 1, 1, 1), Figure(1, "a", 3, 1, 4)]
    ) == [Figure(0, "b", 1, 1, 1), Figure(1, "a", 5, 1, 9)]
