"""The producer's parts that need no JVM."""

from __future__ import annotations

import io
import threading

import pytest

from topics.client.chunks import Chunk
from topics.client.http import Receipt
from topics.spark.errors import last_line
from topics.spark.main import parser
from topics.spark.producer import MIB
from topics.spark.progress import Progress, bar_of, line_of
from topics.spark.reading import format_of
from topics.spark.summary import Summary, summarize
from topics.spark.task import FIGURES, Figures, string_block


def receipt(first: int, last: int, *, deduped: bool = False) -> Receipt:
    return Receipt(
        first_seq=first, last_seq=last, head_seq=last, count=last - first + 1, deduped=deduped
    )


def test_figures_tell_new_seqs_from_those_of_an_earlier_run() -> None:
    figures = Figures(2, head_before=100)
    figures.note(Chunk(0, 10, b""), receipt(91, 100, deduped=True))  # an earlier run
    figures.note(
        Chunk(1, 10, b""), receipt(101, 110, deduped=True)
    )  # an earlier attempt of this run
    figures.note(Chunk(2, 5, b""), receipt(111, 115))
    row = {name: value for name, [value] in figures.row().items()}
    assert tuple(row) == FIGURES
    assert (row["partition"], row["records"], row["appended"], row["deduped"], row["repeated"]) == (
        2,
        25,
        15,
        10,
        2,
    )
    assert (row["first_seq"], row["last_seq"]) == (91, 115)


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
    return summarize("t", "j", [figures], before, after, 2.0)  # type: ignore[list-item]


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


def test_the_last_line_is_the_servers_refusal_where_there_is_one() -> None:
    refusal = 'topics.client.errors.RequestError: topic "t": 422 topic_full: full'
    spark_text = f"Job aborted\nTraceback:\n{refusal}\n\tat java.Thread"
    assert last_line(Exception(spark_text)) == 'topic "t": 422 topic_full: full'
    assert (
        last_line(Exception("[PATH_NOT_FOUND] no such path\nplan"))
        == "[PATH_NOT_FOUND] no such path"
    )
    assert last_line(ValueError()) == "ValueError"


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("a/b.csv.gz", "csv"),
        ("b.tsv", "csv"),
        ("x.ndjson", "json"),
        ("s3://b/x.JSONL", "json"),
        ("dir", "parquet"),
        ("v1.2", "parquet"),
    ],
)
def test_the_format_follows_the_suffix(source: str, form: str) -> None:
    assert format_of(source) == form


def test_sizes_and_options_are_checked() -> None:
    options = parser().parse_args(
        ["s", "t", "--batch-bytes", "2MiB", "--option", "sep=;", "--option", "quote=="]
    )
    assert (options.batch_bytes, options.batch_records, options.option) == (
        2 * MIB,
        5000,
        [("sep", ";"), ("quote", "=")],
    )
    for wrong in (
        ["--batch-records", "0"],
        ["--batch-bytes", "5MB"],
        ["--batch-bytes", "xMiB"],
        ["--option", "sep"],
        ["--durability", "none"],
    ):
        with pytest.raises(SystemExit):
            parser().parse_args(["s", "t", *wrong])


@pytest.mark.slow
def test_an_arrow_string_column_is_read_in_place_also_when_it_is_a_slice() -> None:
    pa = pytest.importorskip("pyarrow")
    for kind in (pa.string(), pa.large_string()):
        offsets, data = string_block(pa.array(["aa", "", "é", "b"], kind).slice(1, 3))
        texts = [bytes(data[offsets[i] : offsets[i + 1]]).decode() for i in range(len(offsets) - 1)]
        assert texts == ["", "é", "b"]
        assert len(string_block(pa.array([], kind))[0]) == 1
