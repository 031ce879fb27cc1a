"""`/metrics` for the operator of the platform, in Prometheus' text format: sums over all tenants, and no name that a tenant chose.

The processes count nothing themselves: whichever answers reads the roll-ups and the database, so that all give the same numbers.
"""

import hmac
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from runs.queries import metrics as rollups

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_HISTOGRAMS: Final = {
    "runs_ended": "From the first claim to the end of a run, whatever the end.",
    "steps_succeeded": "From the lease to the success of a step.",
    "queue_wait": "From runnable to the first lease of a step.",
    "gates_satisfied": "From the opening of a gate to a human's yes.",
}
_COUNTERS: Final = (
    "runs_created", "runs_started", "runs_ended", "runs_disturbed", "step_attempts", "step_retries", "steps_succeeded",
    "steps_failed", "steps_dead_letter", "leases_lost", "gates_opened", "gates_satisfied", "gates_refused", "incidents",
    *rollups.TOOLS,
)  # fmt: skip
_DOUBLINGS: Final = range(-6, 18)  # bounds of 2^n seconds: 16 ms to a day and a half


def metrics(request: HttpRequest) -> HttpResponse:
    """Answers the token of METRICS_TOKEN; without one, and to everybody else, there is nothing here."""
    token: str = settings.METRICS_TOKEN
    sent = request.META.get("HTTP_AUTHORIZATION", "").encode()
    if not token or not hmac.compare_digest(sent, f"Bearer {token}".encode()):
        raise Http404
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Platform())
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE, headers={"Cache-Control": "no-store"})


class _Platform(Collector):
    def collect(self) -> Iterator[Metric]:
        counts: defaultdict[str, int] = defaultdict(int)
        slots: defaultdict[str, dict[int, int]] = defaultdict(dict)
        seconds: defaultdict[str, float] = defaultdict(float)
        for metric, slot, count, total in rollups.platform_totals():
            counts[metric] += count
            seconds[metric] += float(total)
            if slot != rollups.NO_SLOT:
                slots[metric][slot] = count
        for name in _COUNTERS:
            yield CounterMetricFamily(f"smriti_{name}", f"How many {name.replace('_', ' ')}.", value=counts[name])
        for name, text in _HISTOGRAMS.items():
            bounds = [
                (f"{2.0**n:g}", sum(v for k, v in slots[name].items() if k <= n * rollups.SLOTS_PER_DOUBLING))
                for n in _DOUBLINGS
            ]
            every = ("+Inf", sum(slots[name].values()))
            yield HistogramMetricFamily(
                f"smriti_{name}_seconds", text, buckets=[*bounds, every], sum_value=seconds[name]
            )
        for name, value in sorted(rollups.platform_gauges().items()):
            yield GaugeMetricFamily(f"smriti_{name}", f"Now: {name.replace('_', ' ')}.", value=value)
