"""How fast segments are built, how long the steps are, and what reads of a large extent cost beside
those of a write.

    python -m tests.bench.segments [MIB]

Times are of the CPU. ``MIB`` is the size of the log file that is sealed (64).
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Raw

from topics.engine.locators import in_extent
from topics.formats.api.append_body import AppendBody, RecordIn
from topics.formats.buffers import Buffer
from topics.formats.disk.records import RecordsView, View, live_runs
from topics.formats.disk.rendering import encode
from topics.formats.disk.segment_build import EXTENT_RECORDS, Source, build
from topics.storage.segments.file import Segment
from topics.storage.segments.store import SegmentStore

RECORD_BYTES = 200  # rendered, without a tag
FRAME_BYTES = 64 + 8
PAGE = 1000
READ_RECORDS = 250_000  # of an extent that is read: four times what is built
NOBODY: frozenset[bytes] = frozenset()
KINDS = {"plain": 0, "1,000 tags": 1000, "tags of their own": sys.maxsize}


def frames(mib: int, batch: int, tags: int) -> list[tuple[int, int, int, memoryview]]:
    """What a log file of this size holds: the arguments of its views."""
    made, seq, room = [], 1, mib << 20
    data = Raw(b'"%b"' % (b"x" * (RECORD_BYTES - 48)))
    while room > 0:
        records = [
            RecordIn(data=data, tag=f"tag-{(seq + index) % tags}" if tags else None)
            for index in range(batch)
        ]
        encoded = encode(AppendBody(records=records), seq, 1_748_450_000_000, keep_key=False)
        body = memoryview(b"".join(encoded.parts))
        made.append((int(encoded.flags), batch, len(encoded.ext), body))
        seq, room = seq + batch, room - len(body) - FRAME_BYTES
    return made


def pieces(made: list[tuple[int, int, int, memoryview]]) -> Iterator[tuple[RecordsView, int, int]]:
    return ((RecordsView(*frame), 0, frame[1]) for frame in made)


def built(
    store: SegmentStore,
    number: int,
    made: list[tuple[int, int, int, memoryview]],
    extent_records: int,
) -> list[float]:
    """Seconds of each step."""
    writer = store.begin(number, 0, 1)
    steps = build(writer.header, [Source(1, 1, pieces(made))], extent_records=extent_records)
    times = []
    while True:
        begun = time.thread_time()
        part = next(steps, None)
        times.append(time.thread_time() - begun)
        if part is None:
            store.add(writer.finish())
            return times
        writer.write([part])


def cost(read: Callable[[], object], times: int = 200) -> float:
    """Microseconds of a call, the best of five rounds."""
    best = float("inf")
    for _ in range(5):
        begun = time.thread_time()
        for _ in range(times):
            read()
        best = min(best, (time.thread_time() - begun) / times)
    return best * 1e6


def flag(store: SegmentStore, locator: int, indexes: list[int]) -> None:
    """In memory, then in the file."""
    store.flag_deleted(locator, indexes, 0)
    store.write_due_flags(0)


def reads(view: View, start: int, flags: Buffer | None) -> list[float]:
    stop = start + PAGE
    return [
        cost(lambda: view.slice(start, stop)),
        cost(lambda: [view.slice(*run) for run in live_runs(flags, start, stop)]),
        cost(lambda: view.select(start, stop, NOBODY, False, True), 20),
        cost(lambda: view.select(start, stop, NOBODY, False, True, flags), 20),
    ]


def main(mib: int) -> None:
    dice = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        store = SegmentStore.open(Path(folder), 0, [])
        number = 0
        print(
            f"{'':34}{'records':>10}{'seconds':>10}{'records/s':>12}{'longest':>10}"
            f"{'over 2 ms':>10}"
        )
        for batch in (1, 1000):
            for kind, tags in KINDS.items():
                made = frames(mib, batch, tags)
                number += 1
                times = built(store, number, made, EXTENT_RECORDS)
                count, whole = batch * len(made), sum(times)
                late = sum(seconds > 0.002 for seconds in times)
                row = (
                    f"{count:>10,}{whole:>10.2f}{count / whole:>12,.0f}{max(times) * 1e3:>7.1f}"
                    f" ms{late:>10}"
                )
                print(f"{f'writes of {batch:,}, {kind}':34}{row}")
        print(
            f"\n{f'microseconds for {PAGE:,} records':34}{'slice':>10}{'1% dead':>10}"
            f"{'no tags':>10}{'and dead':>10}"
        )
        for kind, tags in KINDS.items():
            small = frames(1, PAGE, tags)[0]
            number += 1
            built(store, number, frames(mib, PAGE, tags), READ_RECORDS)
            locator, entry = next(store.entries(number))
            view = store.records(locator)
            flags = bytes(dice.random() < 0.01 for _ in range(entry.record_count))
            of_write = reads(RecordsView(*small), 0, flags[:PAGE])
            of_extent = reads(view, entry.record_count - PAGE - 7, flags)
            for name, figures in (
                ("write", of_write),
                (f"extent of {entry.record_count:,}", of_extent),
            ):
                print(f"{f'{kind}, {name}':34}" + "".join(f"{value:>10.1f}" for value in figures))
            print(
                f"{'ratio':34}"
                + "".join(
                    f"{extent / write:>10.2f}"
                    for extent, write in zip(of_extent, of_write, strict=True)
                )
            )
        locator = in_extent(number, 0)
        view = store.records(locator)
        one, many = b'"tag-77777"', b'"tag-777'
        print(
            f"\nfind a tag {cost(lambda: view.find_tag(one)):.1f} us, a prefix"
            f" {cost(lambda: view.find_prefix(many)):.1f} us"
        )
        indexes = dice.sample(range(view.count), 1000)
        one_us, all_us = (
            cost(lambda: flag(store, locator, indexes[:1])),
            cost(lambda: flag(store, locator, indexes), 20),
        )
        print(f"flag one {one_us:.1f} us, a thousand {all_us:.1f} us")
        path = store.segments[number].path
        print(f"open a segment {cost(lambda: Segment(path, 0, number), 5):.0f} us")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 64)
