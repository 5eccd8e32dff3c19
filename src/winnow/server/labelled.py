"""The metrics of several replicas as one text, each figure with the name of its replica."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

PREFIX = "winnow:"


def labelled(texts: Mapping[str, str], own: CollectorRegistry) -> bytes:
    """What each replica shows, by its name, and what the front itself does."""
    registry = CollectorRegistry()
    registry.register(_All(texts, own))
    return generate_latest(registry)


class _All(Collector):
    def __init__(self, texts: Mapping[str, str], own: CollectorRegistry) -> None:
        self._texts, self._own = texts, own

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for name, text in self._texts.items():
            for family in text_string_to_metric_families(text):
                kept = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    kept.add_sample(sample.name, {**sample.labels, "replica": name}, sample.value)
        yield from families.values()
        yield from self._own.collect()
