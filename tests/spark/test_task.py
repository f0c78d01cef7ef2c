"""What an executor does with the rows of one partition, without a JVM."""

from __future__ import annotations

import pytest

from topics.spark.client.chunks import Chunk
from topics.spark.client.http import Receipt, Target
from topics.spark.task import FIGURES, Figures, SendTask, string_block


def receipt(first: int, last: int, *, deduped: bool = False) -> Receipt:
    return Receipt(
        first_seq=first, last_seq=last, head_seq=last, count=last - first + 1, deduped=deduped
    )


def test_figures_tell_new_seqs_from_those_of_an_earlier_run() -> None:
    figures = Figures(2, head_before=100)
    figures.note(Chunk(0, 10, b""), receipt(91, 100, deduped=True))  # an earlier run
    # An earlier attempt of this run.
    figures.note(Chunk(1, 10, b""), receipt(101, 110, deduped=True))
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


@pytest.mark.slow
def test_an_input_that_ends_early_between_two_batches_makes_the_chunks_of_a_whole_one() -> None:
    pa = pytest.importorskip("pyarrow")
    texts = [f'{{"data":{number}}},' for number in range(20)]
    batches = [pa.record_batch({"record": texts[first : first + 10]}) for first in (0, 10)]
    task = SendTask(
        target=Target(url="http://127.0.0.1:1"),
        topic="t",
        scope="s",
        head_before=0,
        batch_records=7,
        batch_bytes=10_000,
        node=None,
        settled=None,
    )
    whole, cut = list(task._chunks(iter(batches))), list(task._chunks(iter(batches[:1])))
    assert [chunk.count for chunk in whole] == [7, 3, 7, 3]
    assert cut == whole[:2]


@pytest.mark.slow
def test_an_arrow_string_column_is_read_in_place_also_when_it_is_a_slice() -> None:
    pa = pytest.importorskip("pyarrow")
    for kind in (pa.string(), pa.large_string()):
        offsets, data = string_block(pa.array(["aa", "", "é", "b"], kind).slice(1, 3))
        texts = [bytes(data[offsets[i] : offsets[i + 1]]).decode() for i in range(len(offsets) - 1)]
        assert texts == ["", "é", "b"]
        assert len(string_block(pa.array([], kind))[0]) == 1
