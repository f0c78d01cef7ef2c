"""Valid and mutated requests of every route, generated from the documented schemas. The tests run
for a few seconds, the program ``tests.campaigns.schema_fuzz`` for longer.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.campaigns.schema_fuzz import fuzz, fuzzed_server
from tests.campaigns.schema_mutations import bytes_of, mutate, text_of
from tests.campaigns.schemas import ROWS, command, valid_request
from topics.front.table import ROUTES, match

# Below this number of requests, a loaded machine may refuse none because of the mutation.
FEW = 8


def test_the_same_seed_makes_the_same_requests() -> None:
    one, other = (_requests(random.Random(7), 300) for _ in range(2))
    assert one == other


def _requests(source: random.Random, count: int) -> list[bytes]:
    made = []
    for _ in range(count):
        request = valid_request(source)
        mutate(source, request)
        made.append(bytes_of(request, "k"))
    return made


def test_a_generated_request_matches_its_route() -> None:
    source = random.Random(3)
    for _ in range(500):
        request = valid_request(source)
        found = match(request.method, request.path.encode())
        assert request.method in found.route.methods
        if request.body is not None:
            json.loads(text_of(request.body))
    for number in range(200):
        assert json.loads(text_of(command(source, number)))["op"]


def test_every_route_is_requested() -> None:
    source = random.Random(1)
    made = [valid_request(source) for _ in range(40 * len(ROWS))]
    found = {match(request.method, request.path.encode()).route.path for request in made}
    others = {"/v0/watch/:wid", "/v0/ws", "/v0/backup"}  # streams and the backup
    assert found | others == {route.path for route in ROUTES if not route.is_public}


@pytest.mark.slow
def test_mutated_requests_are_refused_and_valid_ones_are_accepted(tmp_path: Path) -> None:
    seed, seconds = 11, 5.0
    with fuzzed_server(tmp_path / "data") as server:
        findings, growth = fuzz(server, seed=seed, seconds=seconds, rate=300)
    print(f"repeat with: python -m tests.campaigns.schema_fuzz --seconds {seconds} --seed {seed}")
    assert findings.problems == []
    assert findings.valid > 100
    assert growth.lines().keys() == {"front 0", "shard 0", "shard 1"}
    for name in {row.name for row in ROWS}:
        mutated = {
            outcome.split()[-1]: count
            for outcome, count in findings.outcomes.items()
            if outcome.startswith(f"{name} spoiled ")
        }
        refused = any(status.startswith("4") for status in mutated)
        assert refused or sum(mutated.values()) < FEW, f"{name}: {mutated}"
