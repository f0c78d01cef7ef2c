"""The metrics page in the text format of Prometheus, and as JSON."""

from __future__ import annotations

import json

from topics.formats.api.metrics_text import (
    STEP_ROWS,
    Column,
    Histogram,
    MetricFamily,
    MetricKind,
    json_chunks,
    text_chunks,
)

SYNCS = MetricFamily("topics_syncs_total", MetricKind.COUNTER, "Syncs.", [((), 2**63)])
CLASSES = MetricFamily(
    "topics_by_class",
    MetricKind.GAUGE,
    "Topics.",
    [((("class", "fsync"),), 3), ((("class", "disk"),), 0)],
)
LATENCY = MetricFamily(
    "topics_latency_us",
    MetricKind.HISTOGRAM,
    "Latency.",
    [((), Histogram((100, 500), (2, 0, 1), 9_000))],
)
BY_ROUTE = LATENCY._replace(series=[((("route", "diff"),), Histogram((100,), (2, 1), 150))])


def text(*families: MetricFamily) -> str:
    return b"".join(text_chunks(families)).decode()


def document(*families: MetricFamily) -> object:
    return json.loads(b"".join(json_chunks(families, b'"end":true}')))


def test_the_text_follows_the_prometheus_format() -> None:
    assert text(SYNCS, CLASSES, LATENCY) == (
        "# HELP topics_syncs_total Syncs.\n"
        "# TYPE topics_syncs_total counter\n"
        "topics_syncs_total 9223372036854775808\n"
        "# HELP topics_by_class Topics.\n"
        "# TYPE topics_by_class gauge\n"
        'topics_by_class{class="fsync"} 3\n'
        'topics_by_class{class="disk"} 0\n'
        "# HELP topics_latency_us Latency.\n"
        "# TYPE topics_latency_us histogram\n"
        'topics_latency_us_bucket{le="100"} 2\n'
        'topics_latency_us_bucket{le="500"} 2\n'
        'topics_latency_us_bucket{le="+Inf"} 3\n'
        "topics_latency_us_sum 9000\n"
        "topics_latency_us_count 3\n"
    )


def test_a_family_without_values_has_only_its_header_lines() -> None:
    empty = CLASSES._replace(series=[])
    assert text(empty) == "# HELP topics_by_class Topics.\n# TYPE topics_by_class gauge\n"
    assert document(empty) == {"topics_by_class": [], "end": True}


def test_quotes_backslashes_and_line_ends_are_escaped() -> None:
    family = MetricFamily("topics_a", MetricKind.GAUGE, 'a"\\\nb', [((("x", 'a"\\\nb'),), 1)])
    assert text(family).splitlines() == [
        '# HELP topics_a a"\\\\\\nb',
        "# TYPE topics_a gauge",
        'topics_a{x="a\\"\\\\\\nb"} 1',
    ]


def test_the_json_has_the_same_values() -> None:
    by_route = BY_ROUTE._replace(name="by_route")
    buckets = [{"le": "100", "count": 2}, {"le": "500", "count": 2}, {"le": "+Inf", "count": 3}]
    diff_buckets = [{"le": "100", "count": 2}, {"le": "+Inf", "count": 3}]
    assert document(SYNCS, CLASSES, LATENCY, by_route) == {
        "topics_syncs_total": 2**63,
        "topics_by_class": [{"class": "fsync", "value": 3}, {"class": "disk", "value": 0}],
        "topics_latency_us": {"buckets": buckets, "sum": 9000, "count": 3},
        "by_route": [{"route": "diff", "value": {"buckets": diff_buckets, "sum": 150, "count": 3}}],
        "end": True,
    }


def test_the_columns_of_a_table_are_rendered_a_bounded_number_of_rows_at_a_time() -> None:
    names = [f"t-{number}" for number in range(2 * STEP_ROWS + 1)]
    first = Column("topic", names, range(len(names)))
    one_value = first.with_values([None, 7, *[None] * (len(names) - 2)])
    families = [
        MetricFamily(f"topics_{name}", MetricKind.GAUGE, "Some.", column)
        for name, column in (
            ("a", first),
            ("b", one_value),
            ("c", first.with_values([None] * len(names))),
        )
    ]
    chunks = [*text_chunks(families)]
    assert [chunk.count(b"\n") for chunk in chunks] == [2, STEP_ROWS, STEP_ROWS, 1, 2, 1, 2]
    assert chunks[1].startswith(b'topics_a{topic="t-0"} 0\ntopics_a{topic="t-1"} 1\n')
    assert chunks[5] == b'topics_b{topic="t-1"} 7\n'
    found = json.loads(b"".join(json_chunks(families, b'"end":true}')))
    assert found["topics_a"] == [{"topic": name, "value": at} for at, name in enumerate(names)]
    assert (found["topics_b"], found["topics_c"]) == ([{"topic": "t-1", "value": 7}], [])


def test_names_of_a_column_are_escaped() -> None:
    column = Column("topic", ['a"b', "c\\d\n"], [1, 2])
    text = b"".join(text_chunks([MetricFamily("topics_a", MetricKind.GAUGE, "Some.", column)]))
    assert text.endswith(b'topics_a{topic="a\\"b"} 1\ntopics_a{topic="c\\\\d\\n"} 2\n')
    assert [*column.items()] == [b'{"topic":"a\\"b","value":1},{"topic":"c\\\\d\\n","value":2}']
