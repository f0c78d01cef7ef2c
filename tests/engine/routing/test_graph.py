"""The graph of routers: cycles, fan-in, names, and the replacement of a router by a later
incarnation.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.engine.routing.graph import Router, RouterGraph
from topics.errors import RouterCycle, TopicExistsIncompatible
from topics.formats.api.diff_body import TagMatch
from topics.formats.api.router_json import RouterConfig


def router(router_id: int, ends: str, name: str | None = None, **config: Any) -> Router:
    """Return a router. ``ends`` is a pair of letters such as "ab", from "a" to "b"."""
    source, dest = ends[0], ends[1]
    return Router(
        id=router_id,
        name=name or f"{source}->{dest}",
        config=RouterConfig(source=source, dest=dest, **config),
        source_id=ord(source),
        source_epoch=7,
        dest_id=ord(dest),
        start_seq=0,
    )


def graph_of(*ends: str, **config: Any) -> RouterGraph:
    graph = RouterGraph()
    for number, each in enumerate(ends, 1):
        graph.put(router(number, each, **config))
    return graph


def check(graph: RouterGraph, ends: str, name: str | None = None, **config: Any) -> list[str]:
    """Return the cycle for which the graph rejects the router, or an empty list if it accepts the
    router.
    """
    candidate = router(99, ends, name, **config)
    try:
        graph.check(candidate.name, candidate.config)
    except RouterCycle as error:
        cycle: list[str] = error.detail["cycle"]
        return cycle
    return []


# Cycles


def test_the_reported_cycle_is_the_shortest_one() -> None:
    graph = graph_of("ab", "bc", "cd", "de", "bx", "xe", allow_cycle=True)
    assert check(graph, "ea") == ["e", "a", "b", "x", "e"]


def test_a_cycle_is_allowed_to_the_router_that_allows_it() -> None:
    graph = graph_of("ab")
    assert check(graph, "ba", allow_cycle=True) == []
    graph.put(router(2, "ba", allow_cycle=True))
    assert check(graph, "bc") == []
    assert check(graph, "ab", "second") == ["a", "b", "a"]


def test_a_router_on_a_cycle_can_be_reconfigured_if_it_does_not_close_the_cycle() -> None:
    graph = graph_of("ab", "ba", allow_cycle=True)
    assert check(graph, "ba") == ["b", "a", "b"], "a router on a cycle cannot disable allow_cycle"
    graph.put(router(3, "ab"))
    assert check(graph, "ab", preserve_tag=False) == [], "the other router has closed the cycle"


def test_the_old_ends_of_a_changed_router_do_not_count_as_part_of_a_cycle() -> None:
    graph = graph_of("ab", "bc")
    assert check(graph, "ca", "b->c") == []
    assert check(graph, "ba", "b->c") == ["b", "a", "b"]


@given(st.sets(st.tuples(st.sampled_from("abcde"), st.sampled_from("abcde")), max_size=8))
def test_no_cycle_ever_closes_without_allow_cycle(pairs: set[tuple[str, str]]) -> None:
    graph, edges = RouterGraph(), set[tuple[str, str]]()
    for number, (source, dest) in enumerate(sorted(pairs), 1):
        if source == dest or any(other == dest for _, other in edges):
            continue
        if not check(graph, source + dest):
            graph.put(router(number, source + dest))
            edges.add((source, dest))
    for size in range(1, 6):
        for path in permutations("abcde", size):
            ring = set(zip(path, (*path[1:], path[0]), strict=True))
            assert not ring <= edges


# Fan-in


def test_the_source_of_a_dest_can_change_only_if_it_has_one_router() -> None:
    graph = graph_of("ab")
    assert check(graph, "cb", "a->b") == []
    graph.put(router(2, "ab", "second"))
    with pytest.raises(TopicExistsIncompatible):
        check(graph, "cb", "a->b")


# Names and ids


def names(graph: RouterGraph, *ends: Any) -> list[str]:
    return [each.name for each in graph.select(*ends)]


def test_a_selection_contains_the_routers_with_the_requested_ends() -> None:
    graph = graph_of("ab", "bc", "bd")
    graph.put(router(4, "bd", "a-second"))
    assert names(graph, "", None, "b", None) == ["a-second", "b->c", "b->d"]
    assert names(graph, "b", None, "b", None) == ["b->c", "b->d"]
    assert names(graph, "", "a-second", None, "d") == ["b->d"]
    assert names(graph, "", None, "b", "c") == ["b->c"]
    assert names(graph, "", None, "x", "c") == names(graph, "", None, None, "x") == []
    assert len(names(graph, "", None, None, None)) == 4


def test_a_later_incarnation_replaces_an_earlier_one_and_never_the_reverse() -> None:
    graph = graph_of("ab")
    earlier, later = graph.by_id[1], router(2, "cd", "a->b")
    graph.put(later)
    graph.put(earlier)
    assert graph.by_name == {"a->b": later}
    assert graph.by_id == {2: later}
    assert (graph.of_topic("a"), graph.of_topic("c")) == ([], [later])
    assert [*graph.names("", None)] == ["a->b"]


def test_an_unpacked_router_equals_the_packed_one() -> None:
    one = router(3, "ab", filter=TagMatch("Glob", "x"), guarantee="exactly_once")
    one = replace(one, base_total=9, start_seq=2**64 - 1)
    assert Router.unpack(memoryview(one.packed)) == one
