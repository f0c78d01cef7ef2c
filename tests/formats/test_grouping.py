"""Groups of bounded weight."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from topics.formats.grouping import grouped


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 20))
def test_groups_contain_all_items_in_order_and_are_filled_up_to_the_weight_limit(
    items: list[int], max_weight: int
) -> None:
    groups = list(grouped(items, lambda item: item, max_weight))
    assert [item for group in groups for item in group] == items
    assert all(group for group in groups)
    assert all(sum(group) <= max_weight or len(group) == 1 for group in groups)
    assert all(sum(group) + following[0] > max_weight for group, following in pairwise(groups))
