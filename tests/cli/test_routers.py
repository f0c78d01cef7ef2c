"""The commands ``router ls``, ``create``, ``rm`` and ``graph``."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run
from topics.cli import routers
from topics.client import RouterInfo, Topics


def of(*edges: str) -> list[RouterInfo]:
    """Return routers. ``a->b`` has its default name, ``r: a->b`` has the name r."""
    found = []
    for edge in edges:
        name, _, ends = edge.rpartition(": ")
        source, dest = ends.split("->")
        found.append(
            RouterInfo(name=name or ends, source=source, dest=dest, guarantee="at_least_once")
        )
    return found


def test_routers_are_created_listed_and_removed(topics: Run, client: Topics, name: str) -> None:
    router, dest = f"{name}->d", f"{name}.d"
    command = ["router", "create", router, name, dest, "--filter", "eu:*"]
    assert topics(*command) == (0, "", f"topics: created router {router}\n")
    assert topics(*command).code == 0
    other = topics(*command, "--set", "guarantee=exactly_once")
    assert (other.code, other.out) == (7, "~ guarantee: at_least_once -> exactly_once\n")
    assert topics(*command, "--set", "gurantee=x").code == 2
    assert topics("router", "create", f"{name}.r2", f"{name}.other", dest).code == 1
    assert topics("router", "create", f"{name}.r3", name, f"{name}.e").code == 0

    listed = topics("router", "ls", "--source", name)
    titles, row, _ = (line.split() for line in listed.out.splitlines())
    assert titles == ["ROUTER", "SOURCE", "DEST", "FILTER", "FORWARDED", "LAG"]
    assert row == [router, name, dest, "eu:*", "0", "0"]
    (shown,) = topics("router", "ls", "--dest", dest, "--json").objects
    assert (shown["router"], shown["filter"]) == (router, ["tag", "Glob", "eu:*"])
    none = topics("router", "ls", "--source", f"{name}.none")
    assert none == (0, "", "topics: there are no matching routers\n")

    assert topics("router", "rm", router, "nope").code == 4
    assert topics("router", "rm", router, "--json").objects == [{"router": router, "deleted": True}]
    assert [each.name for each in client.routers(source=name)] == [f"{name}.r3"]


@pytest.mark.parametrize(
    ("edges", "lines"),
    [
        (["a->b", "b->c", "r: a->d"], ["a", "  -> b", "       -> c", "  -> d  (r)"]),
        (["b->a", "a->b"], ["a", "  -> b", "       -> a ..."]),
        (["1: a->b", "2: a->b"], ["a", "  -> b  (1)", "  -> b  (2)"]),
        (["x->a", "a->b", "b->a"], ["x", "  -> a", "       -> b", "            -> a ..."]),
        (["a->b", "c->d"], ["a", "  -> b", "c", "  -> d"]),
    ],
)
def test_a_graph_is_drawn_as_a_tree_in_which_cycles_end(edges: list[str], lines: list[str]) -> None:
    assert [*routers._tree(of(*edges))] == lines


def test_a_long_chain_is_drawn() -> None:
    chain = of(*(f"t{n}->t{n + 1}" for n in range(3000)))
    assert sum(1 for _ in routers._tree(chain)) == 3001


def test_a_graph_can_be_written_for_mermaid() -> None:
    assert [*routers._mermaid(of("a->b", "r>: b->a"))] == [
        "graph LR",
        '  t0["a"]',
        '  t1["b"]',
        "  t0 --> t1",
        '  t1 -->|"r>"| t0',
    ]


def test_the_graph_contains_the_routers_of_the_server(
    topics: Run, client: Topics, name: str
) -> None:
    client.put_router(f"{name}->{name}.b", name, f"{name}.b")
    assert f"{name}\n  -> {name}.b\n" in topics("router", "graph").out
    assert topics("router", "graph", "--mermaid").out.startswith("graph LR\n")
    edge = {"router": f"{name}->{name}.b", "source": name, "dest": f"{name}.b"}
    assert edge in topics("router", "graph", "--json").objects
