"""Servers: names, addresses, and the owner of a new topic."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.spark.client.servers import BadServers, Server, Servers

THREE = "a=http://h1:4000,b=http://h2:4000,c=http://h3:4000"


def owners(servers: Servers, count: int = 3000) -> dict[str, str]:
    return {f"t{number}": servers.owner(f"t{number}").name for number in range(count)}


def test_an_address_without_a_name_is_its_own_name() -> None:
    assert Servers.parse("http://h:1/").members == (Server("http://h:1", "http://h:1"),)
    assert Servers.parse("http://h:1").owner("any").url == "http://h:1"


def test_servers_are_sorted_by_name_and_keep_their_addresses() -> None:
    servers = Servers.parse(" b = http://h2:1 , a=https://h1 ,".replace(" = ", "="))
    assert servers.members == (Server("a", "https://h1"), Server("b", "http://h2:1"))
    assert (servers.index("b"), servers.members[0]) == (1, Server("a", "https://h1"))
    with pytest.raises(KeyError):
        servers.index("c")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names no server"),
        (" , ", "names no server"),
        ("h:4000", "is not an address"),
        ("ftp://h", "is not an address"),
        ("a=", "is not an address"),
        ("http://h:port", "is not an address"),
        ("a=http://h:1,a=http://h:2", "the name a twice"),
        ("a=http://h:1,b=http://h:1/", "the address http://h:1 twice"),
        ("é=http://h:1", "not visible ASCII"),
        ("n" * 129 + "=http://h:1", "longer than 128"),
    ],
)
def test_an_invalid_list_of_servers_is_refused_with_its_reason(text: str, why: str) -> None:
    with pytest.raises(BadServers, match=why):
        Servers.parse(text)


def test_the_owner_of_a_topic_never_changes() -> None:
    # Golden values: a change would create topics on other servers than before.
    servers = Servers.parse(THREE)
    topics = [f"t{number}" for number in range(8)]
    assert "".join(servers.owner(topic).name for topic in topics) == "caaccbaa"


def test_every_server_owns_a_similar_number_of_topics() -> None:
    found = list(owners(Servers.parse(THREE)).values())
    assert all(850 < found.count(name) < 1150 for name in "abc")


def test_a_new_server_becomes_the_owner_of_some_topics_and_the_others_do_not_move() -> None:
    before = owners(Servers.parse(THREE))
    after = owners(Servers.parse(f"{THREE},d=http://h4:4000"))
    moved = [topic for topic in before if before[topic] != after[topic]]
    assert 600 < len(moved) < 900
    assert {after[topic] for topic in moved} == {"d"}


@given(st.permutations(THREE.split(",")), st.text())
def test_order_and_address_do_not_change_the_owner(parts: list[str], topic: str) -> None:
    moved = ",".join(parts).replace("h1", f"other{random.randrange(9)}")
    assert Servers.parse(moved).owner(topic).name == Servers.parse(THREE).owner(topic).name
