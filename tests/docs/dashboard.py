"""Generates the Grafana dashboard: a panel for each metric of a server.

python -m tests.docs.dashboard --write
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.support.api import Api, ok
from tests.support.metrics import Page, scrape
from tests.support.queues import Queue, until
from tests.support.server import Server

FILE: Final = Path(__file__).resolve().parents[2] / "deploy/grafana/topics.json"
# The name patterns of each row. The first matching row is used.
ROWS: Final = {
    "Overview": r"ready|recovery_progress|uptime_ms|build_info|topics|topics_by_class|"
    r"topics_ahead_of_clock|records_live|bytes_live|limit_max|keys_reload_.*|(front|shard)_state",
    "Appends": r"wal_(frames|batches|bytes|rotations|queue|submit|read_only).*|"
    r"idempotency_keys|topic_.*_(seq|live)|topic_metrics_truncated",
    "Fsync": r"wal_.*fsync.*|shard_disk_silent_ms",
    "Reads and streams": r"http_.*|connections_.*|sse_connections|watch_sessions|streams|held_.*",
    "Queues": r"(topic_)?queue_.*",
    "Routers": r"routers?(_.*)?",
    "Disk": r"(disk|log_bytes|blob|segments?|checkpoint|seal|backups?)(_.*)?",
    "Processes": r"(process|loop|link|log_lines|inbox|iterations|shard_delay)_.*",
}
UNITS: Final = {
    "_finished_ms": ("dateTimeFromNow", "short"),
    "_bytes": ("bytes", "Bps"),
    "_ms": ("ms", "ms"),
    "_us": ("µs", "µs"),
}
PLAIN: Final = ("short", "cps")  # of a gauge, and of the rate of a counter
MANY: Final = ("topic", "router")  # labels with a large number of values
SHOWN_MAX: Final = 10
OWN: Final = ("le",)  # labels of the exposition format
WIDTH, HEIGHT, PER_ROW = 8, 7, 3
SELECTED: Final = 'instance=~"$instance"'
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@contextmanager
def metered() -> Iterator[Api]:
    """Return a client of a server that has series of every metric."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(Path(folder) / "data", shards=1) as server,
        Api(server.address) as api,
    ):
        Queue.create(api, "jobs", 1)
        ok(api.append("orders", 1), 201)
        ok(api.call("PUT", "/v0/routers/r", {"source": "orders", "dest": "audit"}), 201)
        yield api


def complete_page() -> Page:
    """Return a metrics page on which every family has a series."""
    with metered() as api:
        return until(lambda: scrape(api), lambda page: not without_series(page))


def without_series(page: Page) -> set[str]:
    """Return the families without series."""
    return set(page.types) - {family_of(page, name) for name, _ in page.samples}


def family_of(page: Page, name: str) -> str:
    """Return the family of a series. The series of a histogram have other names."""
    return name if name in page.types else re.sub("_(bucket|sum|count)$", "", name)


def row_of(name: str) -> str:
    """Return the row of a metric."""
    short = name.removeprefix("topics_")
    return next(row for row, pattern in ROWS.items() if re.fullmatch(pattern, short))


def targets(name: str, kind: str, labels: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Return the queries of a panel."""
    by = ["instance", *labels]
    legend = " ".join(f"{{{{{label}}}}}" for label in by)
    if kind == "histogram":
        for share in (0.5, 0.99):
            rate = f"rate({name}_bucket{{{SELECTED}}}[$__rate_interval])"
            query = f"histogram_quantile({share}, sum by ({', '.join(['le', *by])}) ({rate}))"
            yield {"expr": query, "legendFormat": f"p{round(100 * share)} {legend}"}
        return
    query = f"{name}{{{SELECTED}}}"
    if kind == "counter":
        query = f"sum by ({', '.join(by)}) (rate({query}[$__rate_interval]))"
    if any(label in MANY for label in by):
        query = f"topk({SHOWN_MAX}, {query})"
    yield {"expr": query, "legendFormat": legend}


def panel(page: Page, name: str, at: int, y: int) -> dict[str, Any]:
    """Return the panel of a metric, the ``at``-th of its row, which begins at ``y``."""
    kind = page.types[name]
    series = [dict(labels) for found, labels in page.samples if family_of(page, found) == name]
    labels = sorted({label for each in series for label in each} - {*OWN})
    stem = name.removesuffix("_total")
    unit = next((unit for unit in UNITS if f"{unit}_" in f"{stem}_"), "")
    gauge, rate = UNITS.get(unit, PLAIN)
    return {
        "type": "timeseries",
        "title": stem.removeprefix("topics_").removesuffix(unit).replace("_", " "),
        "description": page.helps[name],
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": rate if kind == "counter" else gauge, "min": 0}},
        "gridPos": {
            "x": at % PER_ROW * WIDTH,
            "y": y + at // PER_ROW * HEIGHT,
            "w": WIDTH,
            "h": HEIGHT,
        },
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": SOURCE, **target}
            for number, target in enumerate(targets(name, kind, labels))
        ],
    }


def panels(page: Page) -> Iterator[dict[str, Any]]:
    """Return all rows. The rows after the first one are collapsed and contain their panels."""
    y, numbers = 0, itertools.count(1)
    for title in ROWS:
        names = [name for name in page.types if row_of(name) == title]
        row = {"id": next(numbers), "type": "row", "title": title}
        inside = [
            {"id": next(numbers), **panel(page, name, at, y + 1)} for at, name in enumerate(names)
        ]
        is_open = not y
        place = {"x": 0, "y": y, "w": PER_ROW * WIDTH, "h": 1}
        yield {
            **row,
            "collapsed": not is_open,
            "gridPos": place,
            "panels": [] if is_open else inside,
        }
        if is_open:
            yield from inside
        y += 1 + -(-len(names) // PER_ROW) * HEIGHT


def variable(name: str, kind: str, query: str, **more: object) -> dict[str, Any]:
    return {"name": name, "type": kind, "query": query, **more}


def dashboard(page: Page) -> str:
    """Return the content of the file."""
    everything = {"text": "All", "value": "$__all"}
    content = {
        "uid": "topics",
        "title": "topics",
        "tags": ["topics"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                variable("datasource", "datasource", "prometheus"),
                variable(
                    *("instance", "query", "label_values(topics_ready, instance)"),
                    datasource=SOURCE,
                    refresh=2,
                    multi=True,
                    includeAll=True,
                    current=everything,
                ),
            ]
        },
        "panels": [*panels(page)],
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        FILE.write_text(dashboard(complete_page()))
    else:
        sys.stdout.write(dashboard(complete_page()))
