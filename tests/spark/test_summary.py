"""The figures of a job, and whether the server's count agrees with them."""

from __future__ import annotations

from topics.spark.summary import Summary, summarize
from topics.spark.task import FIGURES


def summary(**changes: int) -> Summary:
    figures = (
        dict.fromkeys(FIGURES, 0)
        | {"records": 10, "appended": 10, "requests": 1, "first_seq": 1, "last_seq": 10}
        | changes
    )
    before, after = (
        {"head_seq": 0, "epoch": 1},
        {"head_seq": changes.get("head", 10), "epoch": changes.get("epoch", 1)},
    )
    return summarize("t", "j", [figures], before, after, 2.0)


def test_a_summary_agrees_only_when_the_head_moved_by_what_was_appended() -> None:
    assert summary().agrees
    assert "The server agrees: head 0 before, 10 after." in summary().text()
    assert '10 records to topic "t" in 2.0 s, 5 records/s, seqs 1 to 10' in summary().text()
    for changes, words in [
        ({"head": 12}, "2 more than this job accounts for"),
        ({"head": 7}, "3 fewer than it acknowledged"),
        ({"epoch": 2}, "deleted and made again"),
    ]:
        assert not summary(**changes).agrees
        assert words in summary(**changes).text()
