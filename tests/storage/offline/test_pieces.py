"""Pieces are small, plain, in order, and hold what lives."""

from __future__ import annotations

import pickle
import zlib
from itertools import pairwise

import pytest

from tests.support.offline_scenes import Scene, row
from topics.storage.offline.directory import OfflineDirectory
from topics.storage.offline.pieces import Span
from topics.storage.offline.reader import PieceReader

pytestmark = pytest.mark.slow


def test_pieces_follow_on_one_another_and_hold_about_so_many_records(scene: Scene) -> None:
    with OfflineDirectory(scene.path, names=["plain"]) as directory:
        pieces = [*directory.topics["plain"].pieces(max_records=700)]
    assert all(piece.count <= 700 for piece in pieces)
    assert len(pieces) <= 12
    assert pieces[0].first_seq == 1
    assert pieces[-1].last_seq == 4000
    for before, after in pairwise(pieces):
        assert before.last_seq < after.first_seq


def test_a_piece_is_read_by_another_process(scene: Scene) -> None:
    with OfflineDirectory(scene.path, names=["erased"]) as directory:
        sent = pickle.dumps([*directory.topics["erased"].pieces(max_records=64)])
    assert len(sent) < 20_000
    found = [
        row(record)
        for piece in pickle.loads(sent)
        for page in PieceReader(piece).pages()
        for record in page
    ]
    assert found == scene.answers["erased"]


def test_an_emptied_topic_has_no_piece(scene: Scene) -> None:
    with OfflineDirectory(scene.path, names=["emptied"]) as directory:
        assert [*directory.topics["emptied"].pieces()] == []


def test_a_bound_outside_of_the_topic_takes_nothing_away(scene: Scene) -> None:
    with OfflineDirectory(scene.path, names=["capped"]) as directory:
        topic = directory.topics["capped"]
        assert sum(piece.count for piece in topic.pieces(0, 1 << 40)) == 700
        assert [*topic.pieces(1, topic.earliest_seq - 1)] == []
        assert [*topic.pieces(topic.head_seq + 1)] == []


def test_flags_begin_with_the_first_record_at_the_locator() -> None:
    span = Span(1, 10, 2, 5, 2, zlib.compress(b"\0\1\0"))
    assert span.dead_flags() == b"\0\0\0\1\0"
    assert Span(1, 10, 2, 5, 3, None).dead_flags() is None
