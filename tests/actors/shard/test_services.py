"""Services: the order in which their hooks are called."""

from __future__ import annotations

from tests.support.shard import Desk
from topics.actors.shard.service import Service


def order_of(desk: Desk, hook: str) -> list[str]:
    """The services that define a hook, in the order of its calls."""
    return [type(each).__name__ for each in desk.loop.services if has(each, hook)]


def has(service: Service, hook: str) -> bool:
    return getattr(type(service), hook) is not getattr(Service, hook)


async def test_what_is_tried_again_comes_before_all_that_a_turn_may_add_to_its_group(
    desk: Desk,
) -> None:
    assert order_of(desk, "on_due")[0] == "Retries"


async def test_a_front_that_has_gone_leaves_the_lines_with_its_claims_and_streams(
    desk: Desk,
) -> None:
    closing = order_of(desk, "on_session_closed")
    assert {"Claims", "WorkStreams"} <= set(closing)
    assert "JobDispatch" not in closing, "its claimers leave by themselves"
