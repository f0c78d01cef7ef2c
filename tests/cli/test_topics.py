"""The commands ls, info, create, config, rm and delete."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run, started
from topics.cli import configs
from topics.client import NotFound, Topics


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("durabilty=fsync", "a topic has no field durabilty; did you mean durability?"),
        ("zz=1", "a topic has no field zz (known: type, ttl_ms, "),
        ("ttl_ms=soon", "ttl_ms: 'soon' is not a duration such as 500ms, 30s"),
        ("cap_bytes=much", "cap_bytes: 'much' is not an amount"),
        ("durability=ram", "durability must be one of ephemeral, memory, disk, fsync"),
        ("ttl_ms=-1", "ttl_ms must be an integer from 0"),
        ("auto_create=yes", "auto_create must be true or false, not a string"),
        ("dead_letter=a b", "dead_letter is not a valid topic name"),
        ("ttl_ms", "'ttl_ms' is not FIELD=VALUE"),
    ],
)
def test_an_invalid_field_gives_exit_code_2_and_creates_nothing(
    topics: Run, client: Topics, name: str, given: str, message: str
) -> None:
    done = topics("create", name, "--set", "cap_records=1", "--set", given)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"topics: {message}")
    with pytest.raises(NotFound):
        client.topic(name).state()


# ls, info


def test_topics_are_listed(topics: Run, client: Topics, name: str) -> None:
    client.topic(f"{name}.a").append(*range(3))
    client.topic(f"{name}.b").put()
    titles, first, second = topics("ls", name).out.splitlines()
    assert titles.split() == ["TOPIC", "RECORDS", "SIZE", "WRITTEN"]
    assert first.split()[:2] == [f"{name}.a", "3"]
    assert second.split() == [f"{name}.b", "0", "0", "B", "-"]
    objects = topics("ls", name, "--json").objects
    assert [(each["topic"], each["count"]) for each in objects] == [
        (f"{name}.a", 3),
        (f"{name}.b", 0),
    ]
    none = topics("ls", f"{name}.c")
    assert (none.code, none.out, none.err) == (0, "", f"topics: no topic begins with {name}.c\n")
    assert topics("-q", "ls", f"{name}.c").err == ""


def test_a_narrow_terminal_shows_counts_in_full_and_shortens_names(
    topics: Run, client: Topics, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = f"{name}.{'x' * 150}"
    client.topic(long).append(*range(123))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = topics("ls", long).out.splitlines()[1]
    cells = re.sub(r"\x1b\[[0-9;]*m", "", shown).split()
    assert cells[0] == long[: len(cells[0]) - 1] + "…"
    assert cells[1] == "123"
    assert cells[-1] == "ago"
    assert "…" not in " ".join(cells[1:])


def test_info_lists_fields_that_differ_from_the_defaults_first(
    topics: Run, client: Topics, name: str
) -> None:
    client.queue(name).put(ttl_ms=90_000, dead_letter=f"{name}.dead")
    client.queue(name).append("job")
    state, config = topics("info", name).out.split("\n\n")
    assert f"topic     {name} (queue)" in state
    assert "jobs      1 ready, 0 in flight, 0 delayed, 0 dead-lettered" in state
    rows = [line.split() for line in config.splitlines()]
    assert rows[:4] == [
        ["FIELD", "VALUE", "DEFAULT"],
        ["type", "queue", "log"],
        ["ttl_ms", "90s", "0"],
        ["dead_letter", f"{name}.dead", "null"],
    ]
    assert ["lease_ms", "30s", "30s"] in rows
    (shown,) = topics("info", name, "--json").objects
    assert (shown["queue"]["ready"], shown["config"]["ttl_ms"]) == (1, 90_000)


# create, config


def test_create_does_not_change_an_existing_topic(topics: Run, client: Topics, name: str) -> None:
    command = ["create", name, "--durability", "fsync", "--ttl", "7d", "--cap", "1M"]
    command += ["--cap-bytes", "1G", "--set", "priority=5"]
    done = topics(*command)
    assert (done.code, done.out, done.err) == (0, "", f"topics: created topic {name}\n")
    config = client.topic(name).state().config
    assert (config["durability"], config["ttl_ms"]) == ("fsync", 7 * 86_400_000)
    assert (config["cap_records"], config["cap_bytes"]) == (10**6, 1 << 30)
    same = topics(*command)
    assert (same.code, same.err) == (0, f"topics: topic {name} already exists with this config\n")
    other = topics("create", name, "--ttl", "1s")
    assert (other.code, other.out) == (7, "~ ttl_ms: 7d -> 1s\n")
    assert f"topics config {name} ttl_ms=1s changes it" in other.err
    assert client.topic(name).state().config == config
    (shown,) = topics("create", name, "--ttl", "1s", "--json").objects
    fields = {"ttl_ms": {"old": 7 * 86_400_000, "new": 1000}}
    assert shown == {"change": "change", "topic": name, "fields": fields}
    assert topics("create", name, "--queue").code == 1


def test_create_reports_queue_fields_of_a_log(topics: Run, client: Topics, name: str) -> None:
    options = ("--set", "max_deliveries=5")
    assert (
        f"max_deliveries: not used, because {name} is a log" in topics("create", name, *options).err
    )
    assert "not used" not in topics("create", f"{name}-q", "--queue", *options).err
    assert "not used" not in topics("create", f"{name}-q", *options).err


def test_a_config_can_be_shown_changed_and_changed_in_a_dry_run(
    topics: Run, client: Topics, name: str
) -> None:
    client.topic(name).put(ttl_ms=1500)
    assert topics("config", name).out.splitlines()[1].split() == ["ttl_ms", "1500ms", "0"]
    assert topics("config", name, "--json").objects[0]["ttl_ms"] == 1500
    command = ["config", name, "ttl_ms=2m", "cap_bytes=1M", "priority=null", "durable=true"]
    lines = "~ ttl_ms: 1500ms -> 2m\n~ cap_bytes: 0 -> 1M\n~ durability: disk -> fsync\n"
    dry = topics(*command, "--dry-run")
    assert (dry.code, dry.out) == (7, lines)
    assert client.topic(name).state().config["ttl_ms"] == 1500
    assert topics(*command)[:2] == (0, lines)
    assert client.topic(name).state().config["ttl_ms"] == 120_000
    for options in ([], ["--dry-run"]):
        same = topics(*command, *options)
        assert same == (0, "", "topics: nothing to change\n")
    assert topics("config", name, "type=queue").code == 1


def test_a_lowered_cap_reports_the_number_of_removed_records(
    topics: Run, client: Topics, name: str
) -> None:
    topic = client.topic(name)
    topic.append(1, 2, 3)
    command = ["config", name, "cap_records=1"]
    dry = topics(*command, "--dry-run")
    assert dry.code == 7
    assert "this would remove 2 records" in dry.err
    (shown,) = topics(*command, "--dry-run", "--json").objects
    assert (shown["dropped"], topic.state().count) == (2, 3)
    assert topic.plan(cap_records=2).dropped == 1
    assert "this removed 2 records" in topics(*command, "--yes").err
    assert topic.state().count == 1


@pytest.mark.parametrize("field", ["ttl_ms=1", "cap_records=1", "cap_bytes=1"])
def test_a_config_that_removes_records_needs_a_confirmation(
    topics: Run, client: Topics, name: str, field: str
) -> None:
    topic = client.topic(name)
    first = topic.append(1, 2, 3)
    while topic.plan(ttl_ms=1).dropped < 3:  # until the clock has advanced
        pass
    config = topic.state().config
    unsure = topics("config", name, field)
    assert (unsure.code, unsure.out) == (2, "")
    kept = 1 if field == "cap_records=1" else 0
    assert f" and remove {3 - kept} records of {name}? Confirm with --yes" in unsure.err
    assert (topic.state().count, topic.state().config) == (3, config)
    assert topics("config", name, "--json", field).error["code"] == "usage"
    done = topics("config", name, field, "--yes", "--json")
    assert (done.code, done.objects[0]["dropped"]) == (0, 3 - kept)
    assert topic.state().count == kept
    assert first.last_seq == topic.state().head_seq


def test_a_config_that_removes_nothing_needs_no_confirmation(
    topics: Run, client: Topics, name: str
) -> None:
    client.topic(name).append(1, 2, 3)
    assert topics("config", name, "cap_records=3", "ttl_ms=1d", "cap_bytes=1M").code == 0
    assert client.topic(name).state().count == 3


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("ttl_ms", 86_400_000, "1d"),
        ("ttl_ms", 1001, "1001ms"),
        ("cap_records", 12_000, "12K"),
        ("cap_bytes", 3 << 20, "3M"),
        ("cap_bytes", 0, "0"),
        ("priority", -3, "-3"),
        ("dead_letter", "a.b", "a.b"),
        ("auto_create", False, "false"),
    ],
)
def test_a_value_is_shown_in_a_form_that_can_be_parsed(
    field: str, value: object, text: str
) -> None:
    assert configs.format_value(field, value) == text
    assert configs.checked("topic", "a", configs.pairs([f"{field}={text}"])) == {field: value}


# rm, delete


def test_topics_are_removed_with_their_routers(topics: Run, client: Topics, name: str) -> None:
    client.put_router(f"{name}->r", name, f"{name}.dest")
    unsure = topics("rm", name)
    assert (unsure.code, unsure.out) == (2, "")
    assert f"Remove {name} (0 records, 0 B), router {name}->r?" in unsure.err
    assert topics("rm", name, f"{name}.nope", "--yes").code == 4
    assert client.router(f"{name}->r").source == name
    done = topics("rm", name, f"{name}.dest", "-y", "--json")
    assert done.objects == [
        {"topic": name, "deleted": True},
        {"topic": f"{name}.dest", "deleted": True},
    ]
    assert [*client.topics(name), *client.routers(name)] == []


def test_records_are_deleted_by_seq_and_by_tag(topics: Run, client: Topics, name: str) -> None:
    client.topic(name).append(records=[{"data": n, "tag": f"t:{n % 2}"} for n in range(6)])
    assert topics("delete", name, "--yes").code == 2
    assert topics("delete", name, "--before", "3").code == 2
    assert topics("delete", name, "--tag", "t*0*", "--yes").code == 2
    assert client.topic(name).state().count == 6
    (both,) = topics("delete", name, "--before", "3", "--tag", "t:0", "--yes", "--json").objects
    assert (both["deleted"], both["count"]) == (1, 5)
    done = topics("delete", name, "--tag", "t:*", "--yes")
    assert done == (0, "", f"topics: deleted 5 records from {name}; 0 remain\n")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["rm NAME", "config NAME cap_records=1"])
@pytest.mark.parametrize(
    ("answer", "code", "is_left"), [("y", 0, False), ("n", 1, True), ("", 130, True)]
)
def test_a_terminal_user_must_confirm_a_removal(
    url: str, client: Topics, name: str, command: str, answer: str, code: int, is_left: bool
) -> None:
    client.topic(name).append(1, 2)
    terminal, its_end = os.openpty()
    with started(*command.replace("NAME", name).split(), stdin=its_end) as process:
        assert process.stderr is not None
        while process.stderr.read(1) != "]":
            assert process.poll() is None
        while Path(f"/proc/{process.pid}/stat").read_text().split()[2] != "S":
            assert process.poll() is None  # input() swallows an interrupt before it reads
        os.write(terminal, f"{answer}\n".encode()) if answer else process.send_signal(signal.SIGINT)
        assert process.wait(30) == code
    os.close(terminal)
    os.close(its_end)
    assert (sum(info.count for info in client.topics(name)) == 2) is is_left
