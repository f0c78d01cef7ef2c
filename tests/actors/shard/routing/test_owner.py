"""The owner of the routers: one mutation after another, and every shard hears of it."""

from __future__ import annotations

from tests.support.shards import Shards


async def test_a_router_is_made_with_its_ends_and_the_shards_of_both_know_it(
    shards: Shards,
) -> None:
    await shards.append("c", 1, 2, 3)
    answer = await shards.put("c->b", "c", "b", filter=["tag", "Glob", "x*"])
    answer.pop("performance")
    assert answer == {
        "router": "c->b",
        "created": True,
        "source": "c",
        "dest": "b",
        "preserve_node": True,
        "preserve_tag": True,
        "filter": ["tag", "Glob", "x*"],
        "allow_cycle": False,
        "guarantee": "at_least_once",
    }
    (row,) = shards.registries[1].rows.values()
    assert (row.start_seq, row.filter, row.dest) == (3, ["Glob", "x"], "b")
    assert "b" in shards.loops[2].context.engine.topics
    assert shards.ends_agree()
    assert (await shards.get("c->b"))["lag_records"] == 2
    listed = await shards.list_routers()
    assert [name for name, _ in listed.items] == ["c->b"]
    assert (await shards.delete("c->b"))["deleted"] is True
    assert (await shards.delete("c->b"))["deleted"] is False
    assert shards.ends_agree()
