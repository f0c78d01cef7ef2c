"""The command apply: plans, changes, and files that are refused before the first change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.client.conftest import url_of
from tests.support.server import Server
from topics.client import Topics

FILE = """
[topics.NAME]
durability = "fsync"
ttl_ms = "7d"
[topics."NAME.jobs"]
type = "queue"
lease_ms = 50
dead_letter = "NAME.dead"
[routers."NAME->audit"]
source = "NAME"
dest = "NAME.audit"
filter = "eu:*"
"""


@pytest.fixture
def file(tmp_path: Path, name: str) -> Callable[[str], str]:
    """Return a function that writes a file, with the name of the test for NAME."""

    def write(text: str) -> str:
        path = tmp_path / "topics.toml"
        path.write_text(text.replace("NAME", name))
        return str(path)

    return write


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(
        tmp_path_factory.mktemp("keyed") / "data", api_keys="all,mine::client-,reader:r"
    ) as server:
        yield server


def test_a_plan_and_a_second_apply_change_nothing(
    topics: Run, client: Topics, name: str, file: Callable[[str], str]
) -> None:
    path = file(FILE)
    client.topic(name).put(ttl_ms=1000, cap_records=5)
    lines = [
        f"+ topic {name}.jobs  type = queue, lease_ms = 100ms, dead_letter = {name}.dead",
        f"~ topic {name}  ttl_ms: 1s -> 7d, durability: disk -> fsync",
        f"+ router {name}->audit  source = {name}, dest = {name}.audit, filter = eu:*",
    ]
    plan = topics("apply", path, "--plan")
    assert (plan.code, plan.out.splitlines(), plan.err) == (7, lines, "")
    assert [each.name for each in client.topics(name)] == [name]
    assert topics("apply", path) == (0, plan.out, "")
    assert client.topic(name).state().config["cap_records"] == 5
    assert client.router(f"{name}->audit").filter == ["tag", "Glob", "eu:*"]
    for options in ([], ["--plan"]):
        again = topics("apply", path, *options)
        assert (again.code, {line[0] for line in again.out.splitlines()}) == (0, {"="})
    shown = topics("apply", path, "--json").objects
    assert shown[-1] == {"change": "keep", "router": f"{name}->audit", "fields": {}}


def test_an_apply_changes_only_the_router_fields_in_the_file(
    topics: Run, client: Topics, name: str, file: Callable[[str], str]
) -> None:
    client.put_router(f"{name}->audit", name, f"{name}.b", guarantee="exactly_once")
    change = topics("apply", file(FILE)).out.splitlines()[-1]
    details = f"dest: {name}.b -> {name}.audit, filter: null -> eu:*"
    assert change == f"~ router {name}->audit  {details}"
    assert client.router(f"{name}->audit").guarantee == "exactly_once"


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("[topics.NAME]\nx =", 2, "Invalid value (at end of document)"),
        ("[topcs.NAME]", 2, "unknown table topcs; did you mean topics?"),
        ("[topics]\nNAME = 1", 2, "[topics] NAME must be a table: [topics.NAME]"),
        ("[topics.NAME.dead]", 2, 'quote a name with dots: [topics."NAME.dead"]'),
        ('[topics."NAME b"]', 2, "[topics.NAME b] 'NAME b' is not a valid topic name"),
        (
            "[topics.NAME]\nttl = 1",
            2,
            "[topics.NAME] a topic has no field ttl; did you mean ttl_ms",
        ),
        ("[topics.NAME]\nttl_ms = 1.5", 2, "[topics.NAME] ttl_ms must be an integer, not a number"),
        ('[routers.NAME]\nsource="NAME"', 2, "[routers.NAME] dest is required"),
        ('[routers.NAME]\nsource="a"\ndest="a"', 2, "[routers.NAME] dest must differ from source"),
        (
            '[routers.NAME-1]\nsource="a"\ndest="b"\n[routers.NAME-2]\nsource="c"\ndest="b"',
            2,
            "[routers.NAME-2] b is already the dest of a (router NAME-1)",
        ),
        (
            '[topics.NAME-log]\ntype = "queue"',
            1,
            '[topics.NAME-log] topic "NAME-log" is a log; its',
        ),
    ],
)
def test_an_invalid_file_changes_nothing(
    topics: Run,
    client: Topics,
    name: str,
    file: Callable[[str], str],
    text: str,
    code: int,
    message: str,
) -> None:
    client.topic(f"{name}-log").put()
    path = file(f"[topics.NAME-a]\n{text}")
    done = topics("apply", path, "--json")
    assert (done.code, done.out) == (code, "")
    assert done.error["message"].startswith(f"{path}: {message.replace('NAME', name)}")
    assert [each.name for each in client.topics(name)] == [f"{name}-log"]


def test_a_missing_or_empty_file_is_refused(topics: Run) -> None:
    assert topics("apply", "nope.toml").code == 2
    assert topics("apply", "-") == (0, "", "topics: - specifies no topics and no routers\n")
    assert topics("apply", "-", "--prune", "--yes").code == 2


def test_a_file_that_begins_with_a_byte_order_mark_is_read(topics: Run, name: str) -> None:
    assert topics("apply", "-", "--plan", given=f'\ufeff[topics."{name}"]').code == 7


def test_a_file_that_removes_records_needs_a_confirmation(
    topics: Run, client: Topics, name: str
) -> None:
    topic = client.topic(name)
    topic.append(1, 2, 3)
    given = f'[topics."{name}"]\ncap_records = 1\n[topics."{name}.new"]\n'
    plan = topics("apply", "-", "--plan", given=given)
    line = f"~ topic {name}  cap_records: 0 -> 1, removes 2 records\n"
    assert (plan.code, plan.out) == (7, f"+ topic {name}.new\n{line}")
    unsure = topics("apply", "-", given=given)
    assert (unsure.code, unsure.out) == (2, "")
    assert f"Remove 2 records of {name}? Confirm with --yes" in unsure.err
    assert [(each.name, each.count) for each in client.topics(name)] == [(name, 3)]
    done = topics("apply", "-", "--yes", "--json", given=given)
    assert [each.get("dropped") for each in done.objects] == [None, 2]
    assert topic.state().count == 1


CYCLES = {
    "within the file": (
        [],
        "b->c c->a a->b",
        "[routers.NAME-3] would close a cycle: NAME.b -> NAME.c -> NAME.a -> NAME.b;",
    ),
    "with the server": (
        ["a->b"],
        "b->c c->a",
        "[routers.NAME-2] would close a cycle: NAME.a -> NAME.b -> NAME.c -> NAME.a;",
    ),
    "with itself turned around": (["a->b"], "b->a", None),
    "by a second source": (
        ["a->b"],
        "x->y c->b",
        "[routers.NAME-2] NAME.b is already the dest of NAME.a (router NAME-old-1)",
    ),
}


@pytest.mark.parametrize(("existing", "edges", "message"), CYCLES.values(), ids=CYCLES)
def test_routers_that_the_server_would_refuse_change_nothing(
    topics: Run, client: Topics, name: str, existing: list[str], edges: str, message: str | None
) -> None:
    """A plan and an apply refuse the file before the first change, and name its table."""
    for number, edge in enumerate(existing, 1):
        source, dest = (f"{name}.{end}" for end in edge.split("->"))
        client.put_router(
            f"{name}-{number}" if message is None else f"{name}-old-{number}", source, dest
        )
    text = f'[topics."{name}.new"]\n'
    for number, edge in enumerate(edges.split(), 1):
        source, dest = (f"{name}.{end}" for end in edge.split("->"))
        text += f'[routers."{name}-{number}"]\nsource = "{source}"\ndest = "{dest}"\n'
    before = [each.name for each in client.topics(name)], [*client.routers(name)]
    for options in (["--plan"], []):
        done = topics("apply", "-", *options, given=text)
        if message is None:
            assert done.code == (7 if options else 0)
            continue
        assert (done.code, done.out) == (2, "")
        assert f"-: {message.replace('NAME', name)}" in done.err
        assert ([each.name for each in client.topics(name)], [*client.routers(name)]) == before


def test_a_field_permits_a_router_cycle_and_a_prune_removes_it(
    topics: Run, client: Topics, name: str
) -> None:
    ends = ["source", "dest"]
    router = dict(zip(ends, (f"{name}.b", f"{name}.a"), strict=True))
    client.put_router(f"{name}-1", f"{name}.a", f"{name}.b")
    table = f'[routers."{name}-2"]\n' + "".join(f'{end} = "{router[end]}"\n' for end in ends)
    assert topics("apply", "-", "--plan", given=table).code == 2
    assert topics("apply", "-", "--plan", given=f"{table}allow_cycle = true\n").code == 7
    pruned = topics("apply", "-", "--plan", "--prune", given=f'{table}[topics."{name}.a"]')
    assert pruned.code == 7
    assert f"- router {name}-1\n" in pruned.out


def test_routers_of_a_file_change_in_an_order_that_the_server_accepts(
    topics: Run, client: Topics, name: str
) -> None:
    client.put_router(f"{name}-1", f"{name}.a", f"{name}.b")
    client.put_router(f"{name}-2", f"{name}.b", f"{name}.c")
    # If the first table were applied first, it would close a cycle and create a second source.
    text = "".join(
        f'[routers."{name}-{number}"]\nsource = "{name}.{source}"\ndest = "{name}.{dest}"\n'
        for number, source, dest in ((1, "c", "b"), (2, "a", "d"))
    )
    done = topics("apply", "-", given=text)
    assert (done.code, len(done.out.splitlines())) == (0, 2)
    found = {(each.source, each.dest) for each in client.routers(name)}
    assert found == {(f"{name}.c", f"{name}.b"), (f"{name}.a", f"{name}.d")}


@pytest.mark.slow
def test_prune_removes_routers_and_topics_that_the_file_and_its_key_do_not_protect(
    topics: Run,
    keyed: Server,
    name: str,
    file: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, url = file(FILE), url_of(keyed)
    monkeypatch.setenv("TOPICS_API_KEY", "mine")
    with Topics(url, key="all") as client:
        client.topic("other").put()
        client.topic(f"{name}.dead").put()
        client.topic(f"{name}.old").append(*range(3))
        # The file gives its dest another source, so it must be removed first.
        client.put_router(f"{name}.r", f"{name}.old", f"{name}.audit")
        command = ["--url", url, "apply", path, "--prune"]
        plan = topics(*command, "--plan")
        assert plan.code == 7
        lines = plan.out.splitlines()
        assert (lines[0], lines[-1]) == (f"- router {name}.r", f"- topic {name}.old  (3 records)")
        unsure = topics(*command)
        assert (unsure.code, unsure.out) == (2, "")
        assert f"Remove router {name}.r, topic {name}.old (3 records)?" in unsure.err
        assert topics(*command, "--yes")[:2] == (0, plan.out)
        left = [name, f"{name}.audit", f"{name}.dead", f"{name}.jobs", "other"]
        assert [each.name for each in client.topics()] == left
        assert topics(*command, "--plan").code == 0


def test_a_plan_needs_no_permission_to_change_configs(
    topics: Run, keyed: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = f'[topics."{name}"]\ncap_records = 1\n[topics."{name}.new"]\n'
    command = ["--url", url_of(keyed), "apply", "-"]
    with Topics(url_of(keyed), key="all") as client:
        client.topic(name).append(1, 2)
        monkeypatch.setenv("TOPICS_API_KEY", "reader")
        assert topics(*command, "--plan", given=given).code == 7
        assert topics(*command, "--yes", given=given).code == 5
        # The second table needs another key: the first one is not applied.
        monkeypatch.setenv("TOPICS_API_KEY", "mine")
        given += 'dead_letter = "other"\ntype = "queue"\n'
        assert topics(*command, "--yes", given=given).code == 5
        assert [each.count for each in client.topics(name)] == [2]


def test_prune_keeps_cursors(topics: Run, client: Topics, name: str) -> None:
    with client.cursor(name):
        pass
    given = f'[topics."{name}"]'
    plan = topics("apply", "-", "--prune", "--plan", given=given).out
    assert f"+ topic {name}\n" in plan
    assert "cursor:" not in plan
