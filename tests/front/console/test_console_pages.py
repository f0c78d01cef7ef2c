"""The console in Chromium: the content and actions of each page, with topics of all kinds."""

from __future__ import annotations

import json
import re
import time
from functools import partial
from pathlib import Path

import pytest

from tests.front.console.conftest import WAIT_S, Console
from tests.support import chromium
from tests.support.api import Api, create, ok
from tests.support.queues import until
from tests.support.server import Server

pytestmark = pytest.mark.slow

UNSAFE_HTML = "<img src=x onerror='globalThis.executed=1'><script>globalThis.executed=1</script>"
LONG = "n" * 255
PAGES = {  # each with a selector of an element that it shows when it is complete
    "#/": ".attention a",
    "#/topics": "td.accent",
    "#/topics/shop:orders/live": ".row",
    "#/topics/shop:orders/live?from=0": ".lost",
    "#/topics/shop:orders/browse": ".row",
    "#/topics/shop:orders/publish": "textarea",
    "#/topics/shop:orders/config": ".config",
    f"#/topics/{LONG}": ".stats",
    "#/queues": "table a.bad",
    "#/queues/jobs": ".held:not(:empty)",
    "#/queues/jobs/leases": "td.name",
    "#/queues/jobs/dead": ".reason",
    "#/queues/bare/dead": ".empty",
    "#/routers": "td.name",
    "#/cursors": "td.name",
}


@pytest.fixture(scope="module")
def filled(server: Server) -> None:
    """Topics of all kinds, with hostile names, tags and records."""
    with Api(server.address) as api:
        epoch = create(api, "shop:orders", *range(9), cap_records=5)
        ok(
            api.append(
                "shop:orders",
                records=[{"data": UNSAFE_HTML, "tag": UNSAFE_HTML, "node": UNSAFE_HTML}],
            )
        )
        ok(
            api.append(
                "shop:orders", "é\u202e" * 400, records=[{"data": LONG * 9, "tag": "ü" * 99}]
            )
        )
        create(api, LONG)
        create(api, "jobs", 1, 2, 3, type="queue", max_deliveries=1, dead_letter="jobs.dead")
        dead_letter_jobs(api, "jobs", UNSAFE_HTML, 1)
        create(api, "bare", type="queue")
        for name, config in {
            "shop-%3E": {"source": "shop:orders", "dest": LONG, "filter": UNSAFE_HTML[:50]},
            "r" * 255: {"source": "shop:orders", "dest": "audit"},
        }.items():
            ok(api.call("PUT", f"/v0/routers/{name}", config), 201)
        places = {"shop:orders": [3, epoch], "gone": [1, 1], LONG: [0, 1]}
        create(api, "cursor:reader", places)


def dead_letter_jobs(api: Api, queue: str, error: str, count: int) -> None:
    """Turn this number of jobs of a queue into dead letters."""
    claim_request = {"node": "worker", "max": count}
    claimed = ok(api.call("POST", f"/v0/topics/{queue}/claim", claim_request))["claimed"]
    nack = {"node": "worker", "seqs": [job["$seq"] for job in claimed], "error": error}
    ok(api.call("POST", f"/v0/topics/{queue}/nack", nack))
    held = {"node": UNSAFE_HTML, "lease_ms": 3_600_000}  # longer than the module runs
    ok(api.call("POST", f"/v0/topics/{queue}/claim", held))  # this claim moves them
    deadline = time.monotonic() + WAIT_S
    while api.get(f"{queue}.dead").status != 200 or api.state(f"{queue}.dead")["count"] < count:
        assert time.monotonic() < deadline


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("path", PAGES)
def test_no_page_logs_errors_runs_text_or_is_wider_than_the_window(
    console: Console, path: str
) -> None:
    console.open(path)
    console.wait(f"document.querySelector({json.dumps(PAGES[path])})")
    console.evaluate("document.querySelectorAll('.row').forEach((each) => each.click())")
    for width in (390, 1200):
        for dark in (False, True):
            console.browser.set_window(width, dark=dark)
            assert console.too_wide == []
    assert console.evaluate("document.querySelectorAll('main :is(img, script)').length") == 0
    assert console.evaluate("globalThis.executed") is None
    assert console.browser.complaints == []


@pytest.mark.usefixtures("filled")
def test_text_that_looks_like_html_is_shown_unchanged(console: Console) -> None:
    for path in ("#/topics/shop:orders/browse", "#/queues/jobs/leases", "#/queues/jobs/dead"):
        console.open(path)
        console.shows(UNSAFE_HTML[:40])


@pytest.mark.usefixtures("filled")
def test_every_page_of_an_empty_server_shows_what_to_do(
    browser: chromium.Chromium, tmp_path: Path
) -> None:
    with Server(tmp_path / "data", shards=1) as server:
        console = Console(browser, server)
        for path in ("#/", "#/topics", "#/queues", "#/routers", "#/cursors"):
            console.open(path)
            console.wait("document.querySelectorAll('main .empty .code').length === 2")
            lines = console.evaluate(
                "[...document.querySelectorAll('.code code')].map((e) => e.innerText)"
            )
            assert sorted(line.split()[0] for line in lines) == ["curl", "topics"]
        browser.open("about:blank")


def test_an_append_is_shown_live_and_after_a_restart_of_the_server(
    console: Console, api: Api, server: Server
) -> None:
    create(api, "live", "first")
    console.open("#/topics/live")
    console.shows('"first"', "live")
    ok(api.append("live", "second"))
    console.shows('"second"')
    assert console.browser.complaints == []
    server.stop()
    console.shows("Reconnecting", "reconnecting")
    server.start()
    console.wait("document.querySelector('.banner').hidden")
    ok(api.append("live", "third"))
    console.shows('"third"', "connected")
    assert console.seqs == [3, 2, 1]
    for complaint in console.browser.complaints:
        assert complaint.startswith("Failed to load resource: net::ERR_"), complaint


def test_the_live_page_keeps_500_rows_and_reports_dropped_ones_and_losses(
    console: Console, api: Api
) -> None:
    create(api, "many", cap_records=600)
    ok(api.append("many", *range(1000)))
    console.open("#/topics/many/live?from=0")
    console.wait("document.querySelector('.row .seq')?.textContent === '#1000'")
    console.shows("keeps 500 rows", "101 older")  # of 600 records and a loss
    assert console.seqs == [*range(1000, 500, -1)]
    console.go("#/topics/many/browse?from=0")
    console.shows("lost #1–#400")


def test_a_pause_holds_back_rows_and_opening_a_row_pauses(console: Console, api: Api) -> None:
    create(api, "paused", {"key": "value"})
    console.open("#/topics/paused")
    console.wait("document.querySelectorAll('.row').length === 1")
    console.browser.press("j")
    console.browser.press("Enter")
    console.shows('"key": "value"', "copy JSON", "copy curl", "Resume")
    ok(api.append("paused", 2, 3))
    console.shows("Resume · 2 new")
    assert console.seqs == [1]
    console.browser.press("p")
    console.wait("document.querySelectorAll('.row').length === 3")
    assert console.seqs == [3, 2, 1]


def test_the_live_page_filters_by_tag_and_text(console: Console, api: Api) -> None:
    create(api, "chosen")
    rows = [("eu:se", "x" * 500 + "needle"), ("eu:de", "hay"), ("us", "Needle")]
    ok(api.append("chosen", records=[{"data": data, "tag": tag} for tag, data in rows]))
    console.open("#/topics/chosen")
    for tag, text, seqs in (
        ("eu:*", "", [2, 1]),
        ("us", "", [3]),
        ("", "needle", [3, 1]),
        ("eu:*", "needle", [1]),
    ):
        console.fill("tag, or", tag)
        console.fill("text", text)
        console.wait(f"document.querySelectorAll('.row').length === {len(seqs)}")
        assert console.seqs == seqs


def test_browsing_moves_both_ways_over_gaps_and_to_a_seq_or_time(
    console: Console, api: Api
) -> None:
    create(api, "browsed")
    for start in (0, 2000, 4000):
        tags = {2000: "hole"}
        rows = [{"data": n, "tag": tags.get(start, "kept")} for n in range(start, start + 2000)]
        ok(api.append("browsed", records=rows))
    ok(api.call("POST", "/v0/topics/browsed/delete", {"match": "hole"}))
    middle = api.read("browsed", from_seq=4000)[0]["$ts"]
    since = next(each["$seq"] for each in api.read("browsed") if each["$ts"] >= middle)
    console.open("#/topics/browsed/browse")

    def shown(first: int, last: int) -> None:
        console.wait(
            f"document.querySelector('.row .seq')?.textContent === '#{first}'"
            f" && [...document.querySelectorAll('.row .seq')].at(-1).textContent === '#{last}'"
        )

    shown(5901, 6000)
    console.click("Older")
    shown(5801, 5900)
    console.fill("seq", "4051")
    shown(4051, 4150)
    console.click("Older")  # half of the page is before the gap
    shown(1951, 4050)
    assert len(console.seqs) == 100
    console.click("Older")
    shown(1851, 1950)
    console.click("Newer")
    shown(1951, 4050)
    console.click("Oldest")
    shown(1, 100)
    assert console.wait(console.is_off("Older"))
    console.click("Newest")
    shown(5901, 6000)
    assert console.wait(console.is_off("Newer"))
    local = f"new Date({middle} - new Date().getTimezoneOffset() * 60000).toISOString()"
    console.fill("time", console.evaluate(local).rstrip("Z"))
    shown(since, since + 99)
    console.fill("seq", "4051")
    shown(4051, 4150)
    address = console.evaluate("location.href")
    console.browser.open("about:blank")
    console.browser.open(address)
    shown(4051, 4150)


def test_a_long_record_is_shown_in_part_and_copied_completely(console: Console, api: Api) -> None:
    create(api, "long", "x" * 1_000_000)
    console.open("#/topics/long/browse")
    console.wait("document.querySelector('.row')")
    console.evaluate("document.querySelector('.row').click()")
    console.wait("document.querySelector('pre')")
    assert console.evaluate("document.querySelector('pre').textContent.length") == 200_000
    console.shows("Only the first 200,000 characters")
    console.evaluate(
        "navigator.clipboard.writeText = (text) => { globalThis.copied = text; }; null"
    )
    console.click("copy JSON")
    console.shows("copied")
    assert json.loads(console.evaluate("copied"))["data"] == "x" * 1_000_000


PAYLOAD = '{"n":1234567890123456789,"price":1.10,"big":1E400,"tag":"data","data":{"data":[1.0]}}'
SHOWN = """{
  "n": 1234567890123456789,
  "price": 1.10,
  "big": 1E400,
  "tag": "data",
  "data": {
    "data": [
      1.0
    ]
  }
}"""


@pytest.mark.parametrize(
    "path", ["topics/exact/live?from=0", "topics/exact/browse", "queues/exact"]
)
def test_payloads_are_shown_and_copied_as_they_were_sent(
    console: Console, api: Api, path: str
) -> None:
    create(api, "exact", type="queue")
    record = f'{{"data":{PAYLOAD},"meta":{{"$m":0.10}},"tag":"t","node":"n"}}'
    ok(api.call("POST", "/v0/topics/exact", f'{{"records":[{record}]}}'.encode()))
    console.open(f"#/{path}")
    console.shows(PAYLOAD)
    console.evaluate("document.querySelector('.row').click()")
    console.wait("document.querySelector('pre')")
    assert console.evaluate("document.querySelector('pre').textContent") == SHOWN
    console.shows('{"$m":0.10}')
    console.evaluate(
        "navigator.clipboard.writeText = (text) => { globalThis.copied = text; }; null"
    )
    console.click("copy JSON")
    console.shows("copied")
    (sent,) = re.findall(rb'"records":\[(.*)\],"next', api.diff("exact", include_tags=True).body)
    assert console.evaluate("copied").encode() == sent
    api.call("DELETE", "/v0/topics/exact")


TEXTS = [
    *('""', '"data"', r'"\\"', r'"\"data\":"', "0", "-1.50e+3", "true", "null", "[]", "{ }"),
    *('{"data":1,"meta":[]}', r'[{"a\"b":[[],{}]}, "]}"]', "[1,\n 2.0]", '{"":{"":{}}}'),
]


def test_members_keep_any_text_unchanged(console: Console) -> None:
    console.open("#/")
    records = ",".join(f'{{"$seq":1,"$tag":"data","data":{one},"meta":{one}}}' for one in TEXTS)
    answer = f'{{"topic":"data","records":[{records}],"lag":2}}'
    script = f"""import("/console/json.js").then(({{ parseRecords, recordText, indented }}) => {{
      const {{ records, lag, topic }} = parseRecords({json.dumps(answer)});
      return [lag, topic, records.map(({{ data, meta }}) => [data, meta]),
        records.map(recordText).join(), records.map(({{ data }}) => indented(data, 1000))];
    }})"""
    lag, topic, members, copied, shown = console.evaluate(script)
    assert (lag, topic, copied) == (2, "data", records)
    assert members == [[text, text] for text in TEXTS]
    assert [json.loads(text) for text in shown] == [json.loads(text) for text in TEXTS]


def test_characters_that_reorder_text_are_shown_as_escapes(console: Console, api: Api) -> None:
    create(api, "reordered")
    record = {"data": "a\u202eb", "tag": "c\u2066d", "node": "e\u200ff", "meta": {"g": "\u2069"}}
    body = json.dumps({"records": [record]}, ensure_ascii=False).encode()
    ok(api.call("POST", "/v0/topics/reordered", body))
    console.open("#/topics/reordered")
    console.wait("document.querySelector('.row')")
    console.evaluate("document.querySelector('.row').click()")
    console.shows("a\\u202eb", "c\\u2066d", "e\\u200ff", "\\u2069")
    shown = console.evaluate("document.querySelector('.records').textContent")
    assert not re.search("[\u200f\u202e\u2066\u2069]", shown)


def test_the_text_filter_finds_letters_that_were_sent_as_escapes(
    console: Console, api: Api
) -> None:
    create(api, "escaped")
    for text in (b'"K\\u00e4se"', '"Käse"'.encode(), b'"cheese"'):
        ok(api.call("POST", "/v0/topics/escaped", b'{"records":[{"data":%b}]}' % text))
    console.open("#/topics/escaped?from=0")
    console.fill("text", "käse")
    console.wait("document.querySelectorAll('.row').length === 2")
    assert console.seqs == [2, 1]


def test_a_record_is_published_as_it_was_typed(console: Console, api: Api) -> None:
    create(api, "published")
    console.open("#/topics/published/publish")
    console.fill("Data", "{nonsense")
    console.click("Append")
    console.shows("data is not valid JSON")
    console.fill("Data", '{"n": 12345678901234567890, "text": "é"}')
    console.fill("Meta", "nonsense")
    console.click("Append")
    console.shows("meta is not valid JSON")
    console.fill("Meta", '{"price": 1.10}')
    console.fill("Tag", 'a "tag"')
    console.fill("Node", "n1")
    console.fill("Idempotency key", "k1")
    console.click("Append")
    console.shows("Appended as #1")
    console.click("Append")
    console.shows("Already appended as #1")
    (record,) = api.read("published", include_tags=True)
    assert record["data"] == {"n": 12345678901234567890, "text": "é"}
    assert (record["$tag"], record["$node"]) == ('a "tag"', "n1")
    assert b'"meta":{"price": 1.10}' in api.diff("published").body


def test_a_draft_is_kept_until_it_is_appended(console: Console, api: Api) -> None:
    create(api, "drafted", type="queue")
    console.open("#/topics/drafted/publish")
    texts = {"Data": '{"n": 1}', "Meta": "{}", "Tag": "t", "Delay": "7 days"}
    for label, text in texts.items():
        console.fill(label, text)
    console.go("#/topics")
    console.shows("New topic")
    console.evaluate("history.back()")
    value = "[...document.querySelectorAll('form :is(input, textarea)')].map((e) => e.value)"
    console.wait(f"{value}.join() === '{{\"n\": 1}},{{}},t,,,7 days'")
    console.go("#/topics/drafted/publish?other")  # another page has no draft of this topic
    console.click("Append")
    console.shows("“7 days” is not a time. Write for example 500ms, 30s, 10m or 7d.")
    console.fill("Delay", "7d")
    console.evaluate(
        """document.querySelector("textarea").dispatchEvent(new KeyboardEvent("keydown",
          { key: "Enter", ctrlKey: true, bubbles: true, cancelable: true }))"""
    )
    console.shows("Appended as #1")
    assert api.state("drafted")["queue"]["delayed"] == 1
    console.go("#/topics")
    console.go("#/topics/drafted/publish")
    console.shows("Append")
    assert console.evaluate(f"{value}.join('')") == ""


def test_a_draft_that_is_too_long_is_reported_and_not_kept(console: Console, api: Api) -> None:
    create(api, "too-long")
    console.open("#/topics/too-long/publish")
    console.fill("Data", "short")
    console.shows("Append")
    console.evaluate(
        """(() => {
          const area = document.querySelector("textarea");
          area.value = "x".repeat(6_000_000);
          area.dispatchEvent(new Event("input", { bubbles: true }));
        })()"""
    )
    console.shows("too long to be kept")
    assert console.evaluate("Object.keys(sessionStorage).length") == 0
    console.fill("Data", "short")
    console.wait("!document.body.innerText.includes('too long')")


def test_a_topic_is_created_configured_and_deleted(console: Console, api: Api) -> None:
    console.open("#/topics")
    console.click("New topic")
    console.fill("Name", "no such name!")
    console.click("Create", "dialog")
    console.shows("not a topic name")
    console.fill("Name", "made")
    console.fill("type", "queue")
    console.fill("max_deliveries", "3")
    console.fill("dead_letter", "made.dead")
    console.click("Create", "dialog")
    console.shows("queue: jobs")
    config = api.state("made")["config"]
    assert (config["type"], config["max_deliveries"], config["dead_letter"]) == (
        "queue",
        3,
        "made.dead",
    )
    console.click("Config")
    console.fill("ttl_ms", "86400000")
    console.fill("durability", "fsync")
    console.shows("topics config made")
    console.click("Save")
    console.shows("saved", "kept 1 d")
    config = api.state("made")["config"]
    assert (config["ttl_ms"], config["durability"], config["max_deliveries"]) == (
        86400000,
        "fsync",
        3,
    )
    console.click("Delete the topic")
    console.fill("Type made", "mad")
    assert console.wait("document.querySelector('dialog .danger')?.disabled")
    console.evaluate("document.querySelector('dialog form').requestSubmit()")
    console.fill("Type made", "made")
    assert api.get("made").status == 200
    console.click("Delete", "dialog")
    console.wait("location.hash === '#/topics'")
    assert api.get("made").status == 404


def test_a_config_that_removes_records_needs_a_confirmation(console: Console, api: Api) -> None:
    create(api, "shrunk")
    ok(api.append("shrunk", *range(400)))
    console.open("#/topics/shrunk/config")
    console.fill("cap_records", "30")
    console.click("Save")
    console.shows("Remove 370 records?", "They cannot be restored")
    assert api.state("shrunk")["count"] == 400
    console.click("Cancel", "dialog")
    assert api.state("shrunk")["count"] == 400
    console.click("Save")
    console.click("Remove 370 records", "dialog")
    console.shows("saved; 370 removed")
    state = api.state("shrunk")
    assert (state["count"], state["config"]["cap_records"]) == (30, 30)
    console.fill("cap_records", "1k")
    console.click("Save")
    until(lambda: api.state("shrunk")["config"]["cap_records"] == 1000)
    assert console.evaluate("document.querySelector('dialog[open]')") is None


VALUE = "[...document.querySelectorAll('.field')].find((e) => e.innerText.startsWith('{}'))"


def test_fields_of_a_config_take_units_and_show_the_stored_value_in_them(
    console: Console, api: Api
) -> None:
    create(api, "units", ttl_ms=604_800_000, cap_bytes=64 << 20, lease_ms=90_500, type="queue")
    console.open("#/topics/units/config")
    for field, shown in (
        ("ttl_ms", "7d"),
        ("cap_bytes", "64MiB"),
        ("lease_ms", "90500ms"),
        ("cap_records", "0"),
        ("idempotency_window_ms", "2m"),
    ):
        console.wait(f"{VALUE.format(field)}?.querySelector('input').value === '{shown}'")
    assert "1 m 30 s" in console.evaluate(f"{VALUE.format('lease_ms')}.innerText")

    def is_saved(field: str, value: int) -> bool:
        return bool(api.state("units")["config"][field] == value)

    for field, text, value in (
        ("ttl_ms", "1.5h", 5_400_000),
        ("ttl_ms", "2w", 1_209_600_000),
        ("ttl_ms", "86400000", 86_400_000),
        ("ttl_ms", "", 0),
        ("cap_bytes", "1 gib", 1 << 30),
        ("cap_bytes", "5M", 5 << 20),
        ("cap_bytes", "7000", 7000),
        ("max_deliveries", "5", 5),
    ):
        console.fill(field, text)
        console.click("Save")
        until(partial(is_saved, field, value))


def test_an_invalid_unit_is_reported_at_its_field_and_nothing_is_saved(
    console: Console, api: Api
) -> None:
    create(api, "bad-units", ttl_ms=1000)
    console.open("#/topics/bad-units/config")
    console.fill("discard", "reject")
    for field, text, message in (
        ("ttl_ms", "7 dayz", "“7 dayz” is not a time. Write for example 500ms, 30s, 10m or 7d."),
        ("ttl_ms", "-1", "“-1” is not a time"),
        ("ttl_ms", "99999999999999999999d", "is not a time"),
        ("cap_bytes", "64 apples", "“64 apples” is not a size. Write for example 5000, 64KiB"),
        ("cap_records", "constructor", "is not a count"),
    ):
        console.fill(field, text)
        console.wait(f"{VALUE.format(field)}.innerText.includes({json.dumps(message)})")
        assert console.wait(console.is_off("Save"))
        console.evaluate("document.querySelector('form').requestSubmit()")
        console.fill(field, "1")
        console.wait(f"({console.is_off('Save')}) === false")
    assert api.state("bad-units")["config"]["ttl_ms"] == 1000


def test_a_new_topic_or_router_does_not_change_an_existing_one(console: Console, api: Api) -> None:
    create(api, "existing", *range(10))
    console.open("#/topics")
    console.click("New topic")
    console.fill("Name", "existing")
    console.fill("cap_records", "1")
    console.click("Create", "dialog")
    console.shows("a topic of this name exists already")
    assert api.state("existing")["count"] == 10
    ok(api.call("PUT", "/v0/routers/route", {"source": "existing", "dest": "copy"}), 201)
    console.go("#/routers")
    console.click("New router")
    for label, text in (("Name", "route"), ("From the", "copy"), ("To the", "elsewhere")):
        console.fill(label, text)
    console.click("Create", "dialog")
    console.shows("a router of this name exists already")
    assert ok(api.call("GET", "/v0/routers/route"))["source"] == "existing"
    assert api.get("elsewhere").status == 404


def test_the_list_of_topics_has_pages_and_a_filter_by_prefix(console: Console, api: Api) -> None:
    for number in range(130):
        ok(api.append(f"page:{number:03d}", number), 201)
    console.open("#/topics")
    console.wait("document.querySelector('[data-filter]')")
    console.browser.press("/")
    assert console.wait("document.activeElement.type === 'search'")
    names = "[...document.querySelectorAll('td.name')].map((each) => each.innerText).join()"

    def shown(first: int, last: int) -> None:
        listed = ",".join(f"page:{number:03d}" for number in range(first, last + 1))
        console.wait(f"{names} === '{listed}'")

    console.fill("name begins with", "page:")
    shown(0, 99)
    console.click("More")
    shown(100, 129)
    console.click("Back")
    shown(0, 99)
    console.fill("name begins with", "page:12")
    shown(120, 129)
    console.fill("name begins with", "nothing")
    console.shows("No name begins with")
    assert console.evaluate("document.activeElement.type") == "search"


def test_a_router_is_created_and_deleted(console: Console, api: Api) -> None:
    create(api, "from")
    console.open("#/routers")
    console.click("New router")
    console.fill("Name", "from->to")
    console.fill("From the topic", "from")
    console.fill("To the topic", "from")
    console.click("Create", "dialog")
    console.shows("dest must differ from source")
    console.fill("To the topic", "to")
    console.fill("Tag (optional)", "eu:*")
    console.fill("Guarantee", "exactly_once")
    console.click("Create", "dialog")
    console.wait("!document.querySelector('dialog[open]')")
    made = ok(api.call("GET", "/v0/routers/from-%3Eto"))
    assert (made["filter"], made["guarantee"]) == (["tag", "Glob", "eu:*"], "exactly_once")
    console.fill("name begins with", "from->")
    console.wait("document.querySelectorAll('tbody tr').length === 1")
    console.click("delete", "tbody")
    console.fill("Type from->to", "from->to")
    console.click("Delete", "dialog")
    console.shows("No name begins with")
    assert api.call("GET", "/v0/routers/from-%3Eto").status == 404


def test_a_redrive_moves_one_dead_letter_or_all(console: Console, api: Api) -> None:
    create(api, "fix", *range(5), type="queue", max_deliveries=1, dead_letter="fix.dead")
    dead_letter_jobs(api, "fix", "broken url", 5)
    console.open("#/queues/fix/dead")
    console.wait("document.querySelectorAll('.row').length === 5")
    console.shows("broken url", "5 in fix.dead")
    console.click("Redrive one")
    console.shows("1 moved, 4 remaining", "4 in fix.dead")
    console.click("Redrive all")
    console.shows("4 moved, 0 remaining", "There are no dead letters")
    assert sorted(job["data"] for job in api.read("fix")) == [*range(5)]


def test_setting_a_cursor_keeps_its_other_topics(console: Console, api: Api) -> None:
    one, two = (create(api, name, *range(10)) for name in ("set:one", "set:two"))
    create(api, "cursor:setter", {"set:one": [9, one], "set:two": [4, two]})
    console.open("#/cursors")
    console.fill("name begins with", "setter")
    console.wait("document.querySelectorAll('tbody tr').length === 2")
    console.click("set", "tbody")
    console.fill("set:one is read up to", "3")
    console.click("Set", "dialog")
    console.shows("cursor set")
    assert api.read("cursor:setter")[-1]["data"] == {"set:one": [3, one], "set:two": [4, two]}
    console.shows("7")


def test_the_keyboard_moves_through_rows_and_lists_its_shortcuts(
    console: Console, api: Api
) -> None:
    create(api, "keys", 1, 2)
    console.open("#/topics/keys")
    console.wait("document.querySelectorAll('.row').length === 2")
    focused = "document.activeElement.querySelector('.seq')?.textContent"
    for key, seq in (("j", "#2"), ("j", "#1"), ("j", "#1"), ("k", "#2"), ("k", "#2")):
        console.browser.press(key)
        assert console.evaluate(focused) == seq
    console.browser.press("/")
    console.browser.press("j")  # is typed here
    assert console.evaluate("document.activeElement.value") == "j"
    console.browser.press("Escape")
    console.browser.press("?")
    assert console.wait("document.querySelector('dialog[open]')?.innerText.includes('next row')")


def test_a_page_that_is_not_visible_sends_no_requests(console: Console) -> None:
    """The test shortens 2 s to 20 ms."""
    console.open("#/")
    console.evaluate(
        """(() => {
          const { setTimeout, fetch } = globalThis;
          globalThis.requestCount = 0;
          globalThis.setTimeout = (act, ms) => setTimeout(act, ms / 100);
          globalThis.fetch = (...what) => { requestCount += 1; return fetch(...what); };
          globalThis.seen = (isSeen) => {
            Object.defineProperty(document, "hidden", { value: !isSeen, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
          };
          globalThis.pause = () => new Promise((over) => setTimeout(over, 400));
        })()"""
    )
    console.evaluate("seen(true)")
    console.wait("requestCount >= 3")
    console.evaluate("seen(false)")
    before = console.evaluate("pause().then(() => requestCount)")  # no response is pending
    assert console.evaluate("pause().then(() => requestCount)") == before
    console.evaluate("seen(true)")
    console.wait(f"requestCount >= {before} + 3")
    assert console.browser.complaints == []
