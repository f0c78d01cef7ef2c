"""The progress of a job on a terminal and in a file."""

from __future__ import annotations

import io
import threading

import pytest

from topics.spark.progress import Progress, bar_of, line_of


def test_progress_reads_well() -> None:
    assert line_of(141_000, 336_776, 2.0) == "141,000 of 336,776 records, 41 %, 70,500 records/s"
    assert bar_of(5, 10, 1.0).startswith("[###############...............] 5 of 10")
    assert line_of(0, 0, 0.0) == "0 of 0 records, 100 %, 0 records/s"
    assert (
        line_of(141_000, None, 2.0)
        == bar_of(141_000, None, 2.0)
        == "141,000 records, 70,500 records/s"
    )


class Terminal(io.StringIO):
    def __init__(self, asked: threading.Event) -> None:
        super().__init__()
        self.asked = asked

    def isatty(self) -> bool:
        return True


@pytest.mark.slow
def test_a_terminal_gets_one_line_that_is_redrawn_and_never_goes_back() -> None:
    asked, figures = threading.Event(), iter([50, 20])

    def done() -> int | None:
        try:
            return next(figures)
        except StopIteration:
            asked.set()
            return None

    out = Terminal(asked)
    with Progress(out, 100, done) as shown_by:
        assert asked.wait(30)
        shown_by.finish(100)
    shown = out.getvalue()
    assert shown.count("\n") == 1
    assert "20 of 100" not in shown
    assert shown.count("50 of 100") >= 2
    assert shown.rstrip().split("\r\x1b[K")[-1].startswith("[" + "#" * 30 + "] 100 of 100")


def test_the_last_line_says_what_was_done_whatever_was_expected() -> None:
    for total, line in [
        (None, "70 records, "),
        (100, "70 of 100 records, 70 %, "),
        (50, "70 of 50 records, 100 %, "),
    ]:
        out = io.StringIO()
        with Progress(out, total, lambda: 90) as progress:
            progress.finish(70)
        assert out.getvalue().startswith(line)


def test_a_job_that_fails_does_not_show_a_full_bar() -> None:
    out = io.StringIO()
    with pytest.raises(RuntimeError), Progress(out, 100, lambda: None):
        raise RuntimeError
    assert out.getvalue().startswith("0 of 100 records, 0 %")
