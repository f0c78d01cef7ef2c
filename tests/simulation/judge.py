"""The judge: checks a history of requests and responses against the contract.

The judge is conservative. A call without a response may have happened or not. Calls that overlap
may have happened in either order. If it is not certain to which incarnation of a topic a response
belongs, only the response itself is checked. Every check is one method of a class in
`tests.simulation.judging` and names the promise that it verifies. `judge` runs all checks.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation.history import Entry
from tests.simulation.judging.base import Broken
from tests.simulation.judging.collection import Collection
from tests.simulation.judging.duplicates import DuplicateChecks
from tests.simulation.judging.final_state import FinalStateChecks
from tests.simulation.judging.queues import QueueChecks
from tests.simulation.judging.readers import ReaderChecks
from tests.simulation.judging.responses import ResponseChecks
from tests.simulation.judging.routing import RouterChecks
from tests.simulation.model import Model


def judge(history: Sequence[Entry], *, shards: int) -> list[Broken]:
    """Return everything in the history that the contract does not allow, in order."""
    return Judge(Model(history, shards)).run()


class Judge(
    ResponseChecks,
    Collection,
    ReaderChecks,
    DuplicateChecks,
    QueueChecks,
    FinalStateChecks,
    RouterChecks,
):
    """One history. First the returned data is collected by incarnation, then each promise is
    checked.
    """

    def run(self) -> list[Broken]:
        for call in self.model.calls:
            self.check_response(call)
        self.collect()
        for topic in self.model.topics.values():
            self.check_keys(topic)
            self.check_epochs(topic)
            for incarnation in topic.epochs.values():
                self.mark_removed(topic, incarnation)
        for topic in self.model.topics.values():
            for incarnation in topic.epochs.values():
                self.check_readings(topic, incarnation)
                self.check_heads(topic, incarnation)
                self.check_order(topic, incarnation)
                self.check_duplicates(topic, incarnation)
                self.check_leases(topic, incarnation)
                self.check_settles(topic, incarnation)
                self.check_power_loss(topic, incarnation)
        self.check_dead_letters()
        self.check_final()
        self.check_redriven([one for name in self.model.topics for one in self.final_reading(name)])
        self.check_backups()
        self.check_routers()
        return sorted(set(self.broken), key=lambda one: (one.entries[-1:], one))
