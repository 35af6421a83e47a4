"""Pages of metrics, read with the parser of Prometheus' own client library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Page:
    """`page["rabbitmq_queues"]`; `page.of("rabbitmq_queue_messages", queue="orders")`."""

    text: str
    samples: dict[tuple[str, Labels], float]
    kinds: dict[str, str]
    """The type of each metric by its name, with the `_total` of counters."""

    def __getitem__(self, name: str) -> float:
        """The only value of a metric."""
        (value,) = self.all(name).values()
        return value

    def all(self, name: str) -> dict[Labels, float]:
        return {labels: value for (each, labels), value in self.samples.items() if each == name}

    def of(self, name: str, **labels: str) -> float:
        (value,) = (value for found, value in self.all(name).items() if found >= frozenset(labels.items()))
        return value

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.samples}

    def counters(self) -> dict[tuple[str, Labels], float]:
        """All samples that may never go down: of counters, and the buckets, sums and counts of histograms."""
        rising = {name for name, kind in self.kinds.items() if kind in ("counter", "histogram")}
        ends = ("_bucket", "_sum", "_count")
        return {
            (name, labels): value
            for (name, labels), value in self.samples.items()
            if name in rising or any(name.removesuffix(end) in rising for end in ends)
        }


def parse(text: str) -> Page:
    samples: dict[tuple[str, Labels], float] = {}
    kinds: dict[str, str] = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert name not in kinds, f"the lines of {name} do not stand together"
        kinds[name] = family.type
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in samples, f"{key} has two values"
            samples[key] = sample.value
    return Page(text, samples, kinds)


def scrape(api: Any, path: str = "/metrics") -> Page:
    answer = api.get(path)
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return parse(answer.body.decode())
