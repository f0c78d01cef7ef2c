"""The metrics page as Prometheus reads it."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tests.support.api import Answer, Api

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SampleKey = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class Page:
    """One scrape. ``types`` and ``helps`` are by the name of the family."""

    types: dict[str, str]
    helps: dict[str, str]
    samples: dict[SampleKey, float]

    def value(self, name: str, **labels: str) -> float:
        return self.samples[name, frozenset(labels.items())]

    def total(self, name: str) -> float:
        """Return the sum of all series of a name."""
        return sum(value for (found, _), value in self.samples.items() if found == name)

    def labels(self, name: str, label: str) -> set[str]:
        """Return the values of a label of a name."""
        return {dict(labels)[label] for found, labels in self.samples if found == name}

    @property
    def counters(self) -> dict[SampleKey, float]:
        """Return the values that never decrease: counters, and the values of histograms."""
        growing = {name for name, kind in self.types.items() if kind == "counter"}
        for name, kind in self.types.items():
            if kind == "histogram":
                growing |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
        return {key: value for key, value in self.samples.items() if key[0] in growing}


def page_of(answer: Answer) -> Page:
    """Parse a page and check its format: each family once, and every sample in a declared
    family.
    """
    assert (answer.status, answer.headers["content-type"]) == (200, MEDIA_TYPE), str(answer)
    text = answer.body.decode()
    lines = text.splitlines()
    types, helps = _named(lines, "# TYPE "), _named(lines, "# HELP ")
    assert [*types] == [*helps]
    samples: dict[SampleKey, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in samples, f"duplicate sample: {key}"
            samples[key] = sample.value
    count = sum(not line.startswith("#") for line in lines)
    assert len(samples) == count, "the parser reads every line"
    return Page(types, helps, samples)


def _named(lines: list[str], head: str) -> dict[str, str]:
    """Return the rest of each line that starts with ``head``, by the name after it."""
    pairs = [line.removeprefix(head).split(" ", 1) for line in lines if line.startswith(head)]
    found = {name: text for name, text in pairs}  # noqa: C416 - a pair of two types
    assert len(found) == len(pairs), "a family occurs once"
    return found


def scrape(api: Api) -> Page:
    return page_of(api.call("GET", "/v0/metrics"))
