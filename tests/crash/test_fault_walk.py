"""A part of the walk over all faults of writes and syncs. `tests.campaigns.fault_walk` makes the
complete walk.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from tests.campaigns.fault_walk import Case, disable_logging, run_in_temporary_folder
from topics.storage.wal.log_file import WalFile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def without_logging() -> Iterator[None]:
    before = structlog.get_config()
    disable_logging()
    yield
    structlog.configure(**before)


@pytest.mark.parametrize(
    ("persists", "stop", "loop", "first"),
    [
        *((False, False, False, 1), (True, True, False, 7)),
        *((False, True, True, 13), (True, False, True, 19)),
    ],
)
def test_no_failed_write_or_sync_loses_acknowledged_data_or_shows_refused_data(
    persists: bool, stop: bool, loop: bool, first: int
) -> None:
    errors, calls = run_in_temporary_folder(Case(stop=stop, loop=loop))
    assert errors == []
    assert len(calls) > 250, "the workload makes too few calls"
    for index in range(first, len(calls) + 1, 100):
        errors += run_in_temporary_folder(Case(index, persists, stop, loop))[0]
    assert not errors, "\n".join(errors)


@pytest.mark.timeout(600)  # It ends at the first sync that shows the defect, mostly within seconds
@pytest.mark.parametrize("omitted", ["blank", "rewrite"])
def test_the_walk_detects_a_log_that_does_not_cut_or_rewrite_its_frames(
    omitted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loop makes the syncs. With the thread, the set of groups that a failing sync refuses
    # would depend on the machine.
    _, calls = run_in_temporary_folder(Case(loop=True))
    syncs = [
        index
        for index, call in enumerate(calls, 1)
        if call.startswith("fdatasync") and call.endswith(".wal")
    ]
    monkeypatch.setattr(WalFile, omitted, lambda *_: None)
    # About one sync in six shows the defect, depending on the machine. Try the later ones first,
    # then all.
    half = len(syncs) // 2
    order = [*syncs[half:], *syncs[:half], *syncs]
    assert any(run_in_temporary_folder(Case(index, loop=True))[0] for index in order)
