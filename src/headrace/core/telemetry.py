"""Counters, gauges and histograms as plain numbers, and their Prometheus text.

A metric costs one addition on the hot path; everything else happens when somebody scrapes.  The
rules it owns: a name starts with `headrace_` and ends with its unit, a counter's with `_total`;
the number of series of a metric is bounded, and a use of one beyond the bound is counted in
`headrace_metric_series_dropped_total` and not stored.  Not thread-safe: the loop thread owns a
registry, and other threads hand their figures over with their results.

A figure that is kept elsewhere is a *reading*: a function that is asked at each scrape.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

SERIES_PER_METRIC_MAX = 1_000
# Values that a histogram keeps before it sorts them into their buckets.
RECENT_VALUES_MAX = 512

# 0.1 ms doubled up to 1.6 s: a lone fdatasync, a slow disk and a dying one fall in other buckets.
LATENCY_SECONDS = tuple(0.0001 * 2**n for n in range(15))
# The same in nanoseconds, for what is observed as a difference of two clock readings.
LATENCY_NS = tuple(100_000 * 2**n for n in range(15))
SECONDS_PER_NS = 1e-9
BATCH_RECORDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)

Labels = tuple[str, ...]
Number = int | float
Reading = Callable[[], Iterable[tuple[Labels, Number]]]


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

    Values are sorted into their buckets many at a time, when it is asked for them or
    `RECENT_VALUES_MAX` have come: to find the bucket of each as it comes takes five times as long.

    `scale` turns what is observed into the unit of the metric's name: nanoseconds are whole
    numbers, and only a scrape makes seconds of them.
    """

    __slots__ = ("_counts", "_recent", "_sum", "bounds", "scale")

    def __init__(self, bounds: Sequence[int | float], scale: Number = 1) -> None:
        assert list(bounds) == sorted(set(bounds)), bounds
        self.bounds = tuple(bounds)
        self.scale = scale
        self._counts = [0] * (len(self.bounds) + 1)  # the last holds what is above every bound
        self._sum: int | float = 0
        self._recent: list[int | float] = []

    def observe(self, value: int | float) -> None:
        recent = self._recent
        recent.append(value)
        if len(recent) >= RECENT_VALUES_MAX:
            self._sort()

    def observe_all(self, values: Iterable[int | float]) -> None:
        recent = self._recent
        recent += values
        if len(recent) >= RECENT_VALUES_MAX:
            self._sort()

    def observe_times(self, value: int | float, times: int) -> None:
        """Observe one value so many times."""
        self._counts[bisect_left(self.bounds, value)] += times
        self._sum += value * times

    def _sort(self) -> None:
        """Count recent values in their buckets."""
        recent, counts = self._recent, self._counts
        recent.sort()
        below = 0
        for bucket, bound in enumerate(self.bounds):
            reached = bisect_right(recent, bound, below)
            counts[bucket] += reached - below
            below = reached
            if below == len(recent):
                break
        counts[-1] += len(recent) - below
        self._sum += sum(recent)
        recent.clear()

    @property
    def counts(self) -> Sequence[int]:
        """How many values each bucket has; the last holds what is above every bound."""
        self._sort()
        return self._counts

    @property
    def sum(self) -> int | float:
        self._sort()
        return self._sum

    def add(self, other: Histogram) -> None:
        """Count all that another histogram of the same bounds has, too."""
        assert other.bounds == self.bounds, other.bounds
        self._counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self._sum += other.sum

    @property
    def count(self) -> int:
        return sum(self.counts)

    def samples(self) -> Iterator[tuple[str, str, int | float]]:
        total = 0
        bounds = [_number(bound * self.scale) for bound in self.bounds]
        for bound, count in zip((*bounds, "+Inf"), self.counts, strict=True):
            total += count
            yield "_bucket", f'le="{bound}"', total
        yield "_sum", "", self.sum * self.scale
        yield "_count", "", total


def add_up(histograms: Sequence[Histogram], bounds: Sequence[Number], scale: Number) -> Histogram:
    """Several histograms of the same bounds as one.

    >>> add_up([Histogram((1, 2)), Histogram((1, 2))], (1, 2), 1).count
    0
    """
    total = Histogram(bounds, scale)
    for histogram in histograms:
        total.add(histogram)
    return total


M = TypeVar("M", bound=Counter | Gauge | Histogram)


class Described(NamedTuple):
    """What a metric is, without its numbers."""

    name: str
    kind: str  # counter, gauge or histogram
    labels: Labels
    help_text: str

    @property
    def head(self) -> str:
        return f"# HELP {self.name} {self.help_text}\n# TYPE {self.name} {self.kind}\n"


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

    def text(self) -> Iterator[str]:
        for values, metric in self.series.items():
            own = [f'{k}="{escape(v)}"' for k, v in zip(self.labels, values, strict=True)]
            for suffix, extra, number in metric.samples():
                labels = ",".join([*own, extra] if extra else own)
                braces = f"{{{labels}}}" if labels else ""
                yield f"{self.name}{suffix}{braces} {_number(number)}\n"


class _Source(NamedTuple):
    described: Sequence[Described]
    text: Callable[[], Iterable[str]]
    dropped: Callable[[], int]


class Registry:
    """Every metric of one process.

    >>> registry = Registry()
    >>> registry.counter("headrace_append_records_total", "Records appended.").add(2)
    >>> print(registry.text().splitlines()[2])
    headrace_append_records_total 2
    """

    def __init__(self) -> None:
        self._sources: list[_Source] = []
        self._names: set[str] = set()

    def counter(self, name: str, help_text: str) -> Counter:
        return self.counters(name, help_text, ()).of()

    def gauge(
        self, name: str, help_text: str, read: Callable[[], int | float] | None = None
    ) -> Gauge:
        gauge = self.gauges(name, help_text, ()).of()
        gauge.read = read
        return gauge

    def histogram(
        self, name: str, help_text: str, bounds: Sequence[Number], scale: Number = 1
    ) -> Histogram:
        return self.histograms(name, help_text, (), bounds, scale).of()

    def counters(self, name: str, help_text: str, labels: Labels) -> Family[Counter]:
        assert name.endswith("_total"), name
        return self._add("counter", Family(name, help_text, labels, Counter))

    def gauges(self, name: str, help_text: str, labels: Labels) -> Family[Gauge]:
        assert not name.endswith("_total"), name
        return self._add("gauge", Family(name, help_text, labels, Gauge))

    def histograms(
        self,
        name: str,
        help_text: str,
        labels: Labels,
        bounds: Sequence[Number],
        scale: Number = 1,
    ) -> Family[Histogram]:
        assert "le" not in labels, name
        family = Family(name, help_text, labels, lambda: Histogram(bounds, scale))
        return self._add("histogram", family)

    # Readings: what is kept elsewhere

    def read_counter(self, name: str, help_text: str, read: Callable[[], Number]) -> None:
        """A counter that somebody else counts."""
        assert name.endswith("_total"), name
        self._read("counter", name, help_text, (), lambda: (((), read()),))

    def read_counters(self, name: str, help_text: str, labels: Labels, read: Reading) -> None:
        """The same by labels; `read` gives label values with their number."""
        assert name.endswith("_total"), name
        self._read("counter", name, help_text, labels, read)

    def read_gauges(self, name: str, help_text: str, labels: Labels, read: Reading) -> None:
        assert not name.endswith("_total"), name
        self._read("gauge", name, help_text, labels, read)

    def read_histogram(self, name: str, help_text: str, read: Callable[[], Histogram]) -> None:
        """A histogram that somebody else keeps, or adds up."""

        def text() -> Iterator[str]:
            for suffix, extra, number in read().samples():
                braces = f"{{{extra}}}" if extra else ""
                yield f"{name}{suffix}{braces} {_number(number)}\n"

        described = Described(name, "histogram", (), help_text)
        self.block([described], lambda: [described.head, *text()])

    def _read(self, kind: str, name: str, help_text: str, labels: Labels, read: Reading) -> None:
        described = Described(name, kind, labels, help_text)

        def text() -> Iterator[str]:
            yield described.head
            for values, number in read():
                pairs = zip(labels, values, strict=True)
                own = ",".join(f'{label}="{escape(value)}"' for label, value in pairs)
                yield (
                    f"{name}{{{own}}} {_number(number)}\n" if own else f"{name} {_number(number)}\n"
                )

        self.block([described], text)

    def block(self, described: Sequence[Described], text: Callable[[], Iterable[str]]) -> None:
        """Metrics whose whole text, heads included, one function makes."""
        self._source(_Source(described, text, int))

    # What it all is

    def described(self) -> list[Described]:
        """Every metric, in the order of the text."""
        return [*(one for source in self._sources for one in source.described), DROPPED]

    def text(self) -> str:
        """The exposition text that a Prometheus server reads."""
        parts = [part for source in self._sources for part in source.text()]
        parts.append(DROPPED.head)
        for source in self._sources:
            if source.dropped():
                name = source.described[0].name
                parts.append(f'{DROPPED.name}{{metric="{name}"}} {source.dropped()}\n')
        return "".join(parts)

    def _add(self, kind: str, family: Family[M]) -> Family[M]:
        described = Described(family.name, kind, family.labels, family.help_text)

        def text() -> Iterator[str]:
            yield described.head
            yield from family.text()

        self._source(_Source([described], text, lambda: family.dropped))
        return family

    def _source(self, source: _Source) -> None:
        for described in source.described:
            assert described.name.startswith("headrace_"), described.name
            assert described.name not in self._names, f"{described.name} is registered twice"
            self._names.add(described.name)
        self._sources.append(source)


DROPPED = Described(
    "headrace_metric_series_dropped_total",
    "counter",
    ("metric",),
    "Uses of series beyond a metric's bound.",
)


def escape(value: str) -> str:
    """A label's value as it stands between quotes.

    >>> print(escape('say "hi"'))
    say \\"hi\\"
    """
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: int | float) -> str:
    # repr is exact for a float; twelve digits keep 0.0001 * 2**n readable in a bucket's name.
    return str(value) if isinstance(value, int) else f"{value:.12g}"
