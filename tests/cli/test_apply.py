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
    """Write a file; NAME is the test's."""

    def write(text: str) -> str:
        path = tmp_path / "topics.toml"
        path.write_text(text.replace("NAME", name))
        return str(path)

    return write


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("keyed") / "data", api_keys="all,mine::client-") as server:
        yield server


def test_a_plan_changes_nothing_and_a_second_run_neither(
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


def test_a_router_changes_only_in_what_the_file_says(
    topics: Run, client: Topics, name: str, file: Callable[[str], str]
) -> None:
    client.put_router(f"{name}->audit", name, f"{name}.b", guarantee="exactly_once")
    change = topics("apply", file(FILE)).out.splitlines()[-1]
    told = f"dest: {name}.b -> {name}.audit, filter: null -> eu:*"
    assert change == f"~ router {name}->audit  {told}"
    assert client.router(f"{name}->audit").guarantee == "exactly_once"


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("[topics.NAME]\nx =", 2, "Invalid value (at end of document)"),
        ("[topcs.NAME]", 2, "there is no table topcs; did you mean topics?"),
        ("[topics]\nNAME = 1", 2, "[topics] NAME is no table: [topics.NAME]"),
        ("[topics.NAME.dead]", 2, 'quote a name with dots: [topics."NAME.dead"]'),
        ('[topics."NAME b"]', 2, "[topics.NAME b] 'NAME b' is no name of a topic"),
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
            "b is the dest of two sources, and may have one",
        ),
        (
            '[topics.NAME-log]\ntype = "queue"',
            1,
            '[topics.NAME-log] topic "NAME-log" is a log; its',
        ),
    ],
)
def test_a_wrong_file_changes_nothing(
    topics: Run,
    client: Topics,
    name: str,
    file: Callable[[str], str],
    text: str,
    code: int,
    said: str,
) -> None:
    client.topic(f"{name}-log").put()
    path = file(f"[topics.NAME-a]\n{text}")
    done = topics("apply", path, "--json")
    assert (done.code, done.out) == (code, "")
    assert done.error["message"].startswith(f"{path}: {said.replace('NAME', name)}")
    assert [each.name for each in client.topics(name)] == [f"{name}-log"]


def test_a_file_that_is_not_there_or_empty(topics: Run) -> None:
    assert topics("apply", "nope.toml").code == 2
    assert topics("apply", "-") == (0, "", "topics: - names nothing\n")
    assert topics("apply", "-", "--prune", "--yes").code == 2


@pytest.mark.slow
def test_prune_removes_what_the_file_and_its_key_do_not_leave_alone(
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
        # Its dest gets another source by the file: it must go first.
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


def test_prune_leaves_cursors(topics: Run, client: Topics, name: str) -> None:
    with client.cursor(name):
        pass
    given = f'[topics."{name}"]'
    plan = topics("apply", "-", "--prune", "--plan", given=given).out
    assert f"+ topic {name}\n" in plan
    assert "cursor:" not in plan
