"""Counters, gauges and histograms as plain numbers, and their Prometheus text.

A metric costs one addition on the hot path; everything else happens when somebody scrapes.  The
rules it owns: a name starts with `headrace_` and ends with its unit, a counter's with `_total`;
the number of series of a metric is bounded, and a use of one beyond the bound is counted in
`headrace_metric_series_dropped_total` and not stored.  Not thread-safe: the loop thread owns a
registry, and other threads hand their figures over with their results.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

SERIES_PER_METRIC_MAX = 1_000

# 0.1 ms doubled up to 1.6 s: a lone fdatasync, a slow disk and a dying one fall in other buckets.
LATENCY_SECONDS = tuple(0.0001 * 2**n for n in range(15))
BATCH_RECORDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)

Labels = tuple[str, ...]


class Counter:
    """A number that only grows.

    >>> counter = Counter()
    >>> counter.add(3)
    >>> counter.value
    3
    """

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: int | float = 0

    def add(self, amount: int | float = 1) -> None:
        self.value += amount

    def samples(self) -> Iterator[tuple[str, str, int | float]]:
        yield "", "", self.value


class Gauge:
    """A number that is what it is now; set, or read from a function at each scrape."""

    __slots__ = ("read", "value")

    def __init__(self) -> None:
        self.value: int | float = 0
        self.read: Callable[[], int | float] | None = None

    def set(self, value: int | float) -> None:
        self.value = value

    def samples(self) -> Iterator[tuple[str, str, int | float]]:
        yield "", "", self.read() if self.read is not None else self.value


class Histogram:
    """Counts by fixed upper bounds, with the sum of what was observed.

    >>> histogram = Histogram((1, 10))
    >>> for value in (1, 5, 50): histogram.observe(value)
    >>> histogram.counts, histogram.sum
    ([1, 1, 1], 56)
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[int | float]) -> None:
        assert list(bounds) == sorted(set(bounds)), bounds
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)  # the last holds what is above every bound
        self.sum: int | float = 0

    def observe(self, value: int | float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def samples(self) -> Iterator[tuple[str, str, int | float]]:
        total = 0
        for bound, count in zip((*map(_number, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            yield "_bucket", f'le="{bound}"', total
        yield "_sum", "", self.sum
        yield "_count", "", total


M = TypeVar("M", bound=Counter | Gauge | Histogram)


class Family(Generic[M]):
    """One metric by name, with a series for each set of label values."""

    def __init__(self, name: str, help_text: str, labels: Labels, make: Callable[[], M]) -> None:
        self.name = name
        self.help_text = help_text
        self.labels = labels
        self.series: dict[Labels, M] = {}
        self.dropped = 0
        self._make = make
        self._overflow = make()

    def of(self, *values: str) -> M:
        """The series of these label values; keep it where it is used often."""
        found = self.series.get(values)
        if found is not None:
            return found
        assert len(values) == len(self.labels), (self.name, values)
        if len(self.series) >= SERIES_PER_METRIC_MAX:
            self.dropped += 1
            return self._overflow
        return self.series.setdefault(values, self._make())

    def text(self, kind: str) -> Iterator[str]:
        yield f"# HELP {self.name} {self.help_text}\n# TYPE {self.name} {kind}\n"
        for values, metric in self.series.items():
            own = [f'{k}="{_escape(v)}"' for k, v in zip(self.labels, values, strict=True)]
            for suffix, extra, number in metric.samples():
                labels = ",".join([*own, extra] if extra else own)
                braces = f"{{{labels}}}" if labels else ""
                yield f"{self.name}{suffix}{braces} {_number(number)}\n"


class Registry:
    """Every metric of one process.

    >>> registry = Registry()
    >>> registry.counter("headrace_append_records_total", "Records appended.").add(2)
    >>> print(registry.text().splitlines()[2])
    headrace_append_records_total 2
    """

    def __init__(self) -> None:
        self._families: dict[str, tuple[Callable[[], Iterator[str]], Callable[[], int]]] = {}

    def counter(self, name: str, help_text: str) -> Counter:
        return self.counters(name, help_text, ()).of()

    def gauge(
        self, name: str, help_text: str, read: Callable[[], int | float] | None = None
    ) -> Gauge:
        gauge = self.gauges(name, help_text, ()).of()
        gauge.read = read
        return gauge

    def histogram(self, name: str, help_text: str, bounds: Sequence[int | float]) -> Histogram:
        return self.histograms(name, help_text, (), bounds).of()

    def counters(self, name: str, help_text: str, labels: Labels) -> Family[Counter]:
        assert name.endswith("_total"), name
        return self._add("counter", Family(name, help_text, labels, Counter))

    def gauges(self, name: str, help_text: str, labels: Labels) -> Family[Gauge]:
        assert not name.endswith("_total"), name
        return self._add("gauge", Family(name, help_text, labels, Gauge))

    def histograms(
        self, name: str, help_text: str, labels: Labels, bounds: Sequence[int | float]
    ) -> Family[Histogram]:
        assert "le" not in labels, name
        return self._add("histogram", Family(name, help_text, labels, lambda: Histogram(bounds)))

    def text(self) -> str:
        """The exposition text that a Prometheus server reads."""
        parts = [part for text, _ in self._families.values() for part in text()]
        name = "headrace_metric_series_dropped_total"
        parts.append(f"# HELP {name} Uses of series beyond a metric's bound.\n")
        parts.append(f"# TYPE {name} counter\n")
        for family, (_, dropped) in self._families.items():
            if dropped():
                parts.append(f'{name}{{metric="{family}"}} {dropped()}\n')
        return "".join(parts)

    def _add(self, kind: str, family: Family[M]) -> Family[M]:
        assert family.name.startswith("headrace_"), family.name
        assert family.name not in self._families, f"{family.name} is registered twice"
        self._families[family.name] = (lambda: family.text(kind), lambda: family.dropped)
        return family


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: int | float) -> str:
    # repr is exact for a float; twelve digits keep 0.0001 * 2**n readable in a bucket's name.
    return str(value) if isinstance(value, int) else f"{value:.12g}"
