"""Check that alerts, dashboard and runbook agree with each other and with the metrics of a
server.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.docs import dashboard
from tests.docs.pages import PAGES
from tests.support.metrics import Page
from tests.support.proxies import DEPLOY
from topics.cli.standby import Figures
from topics.storage.standby import Generation

FOLDER = DEPLOY / "prometheus"
RUNBOOK = DEPLOY.parent / "topics/docs/runbook.md"
RULES = (FOLDER / "alerts.yml").read_text().split("- alert: ")[1:]
NAME = re.compile(r"\btopics_[a-z0-9_]+\b(?!\.)")
EXPRESSION = re.compile(r"expr: (?:>-\n)?(.*?)\n +for:", re.DOTALL)
ALERTS = {
    *("Down", "NotReady", "ShardReadOnly", "DiskFills4h", "FsyncSlow"),
    *("RouterStalled", "QueueStalled", "DeadLetters", "ConnectionsNearCap"),
    "ClockAhead",
    "StandbyOld",
}


@pytest.fixture(scope="module")
def page() -> Page:
    """Return the metrics page of a server with topics, queues and routers."""
    return dashboard.complete_page()


def standby_metrics() -> set[str]:
    """Return the names of the metrics of ``topics standby run``."""
    figures = Figures()
    figures.newest = Generation(
        *(1, "", 1, 1_000, []),
        members=[],
        number=1,
        requested_ms=1_000,
        received_bytes=5,
        seconds=0.5,
        counters=None,
    )
    text = figures.text()
    return {
        sample.name for family in text_string_to_metric_families(text) for sample in family.samples
    }


def families(page: Page, text: str) -> set[str]:
    return {dashboard.family_of(page, name) for name in NAME.findall(text)}


# Queries to Prometheus use existing metrics


@pytest.mark.slow
def test_the_dashboard_has_a_panel_for_each_metric_of_a_server(page: Page) -> None:
    made = dashboard.dashboard(page)
    assert made == dashboard.FILE.read_text(), "python -m tests.docs.dashboard --write"
    expressions = json.dumps([found["targets"] for found in panels()])
    assert families(page, expressions) == {*page.types}


def panels() -> Iterator[dict[str, object]]:
    """Return all panels except the rows."""
    for found in json.loads(dashboard.FILE.read_text())["panels"]:
        yield from found.get("panels", []) if found["type"] == "row" else [found]


def test_panels_are_numbered_and_do_not_overlap() -> None:
    shown = json.loads(dashboard.FILE.read_text())["panels"]
    every = [*shown, *(inner for found in shown for inner in found.get("panels", []))]
    assert len({found["id"] for found in every}) == len(every)
    places = [(found["gridPos"]["x"], found["gridPos"]["y"]) for found in every]
    assert len({*places}) == len(every)
    rows = [found["title"] for found in shown if found["type"] == "row"]
    assert rows == [*dashboard.ROWS]


@pytest.mark.slow
def test_alerts_query_existing_metrics(page: Page) -> None:
    queried = families(page, " ".join(EXPRESSION.findall("".join(RULES))))
    assert len(queried) >= len(ALERTS)
    assert queried <= {*page.types} | standby_metrics()


@pytest.mark.slow
@pytest.mark.parametrize("doc", PAGES, ids=lambda doc: doc.stem)
def test_pages_name_existing_metrics(page: Page, doc: Path) -> None:
    named = families(page, doc.read_text())
    assert named <= {*page.types} | standby_metrics()


# Alerts


def test_each_alert_has_a_condition_a_severity_and_a_runbook_link() -> None:
    assert {rule.split()[0] for rule in RULES} == ALERTS
    headings = re.findall(r"^## (\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert {*headings} == ALERTS
    for rule in RULES:
        name = rule.split()[0]
        assert re.search(r"^ +for: \d+m$", rule, re.MULTILINE), name
        assert re.search(r"labels: {severity: (critical|warning)}", rule), name
        assert re.search(r'summary: ".+"', rule), name
        assert f"runbook_url: topics/docs/runbook.md#{name.lower()}\n" in rule, name


def test_each_section_of_the_runbook_has_meaning_diagnosis_and_action() -> None:
    for section in RUNBOOK.read_text().split("\n## ")[1:]:
        for part in ("**Means.**", "**Check.**", "**Do.**"):
            assert part in section or "| means | do |" in section, section.split("\n")[0]


def test_each_alert_is_tested_firing_and_not_firing() -> None:
    text = (FOLDER / "alerts_test.yml").read_text()
    assert {*re.findall(r"- alertname: (\w+)", text)} == ALERTS
    assert {*re.findall(r"{alertname: (\w+), .*exp_alerts: \[\]}", text)} == ALERTS


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
        ("check", "config", "--syntax-only", "prometheus.yml"),
    ],
    ids=" ".join,
)
def test_promtool_accepts_the_rules_and_their_tests(command: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool, of the Debian package prometheus, is not installed")
    done = subprocess.run(
        [promtool, *command], cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
