"""Every metric that kinemill exports: name, type, labels, help. Alerts and dashboards read this."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["METRICS", "RESERVED_METRICS", "Metric"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric in Prometheus terms."""

    name: str
    kind: str
    """counter, gauge or histogram."""
    labels: tuple[str, ...]
    help: str


METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        Metric("kinemill_check_result", "gauge", ("check", "class"), "0 OK, 1 WARN, 2 FAIL, 3 SKIP, 4 UNKNOWN"),
        Metric("kinemill_check_seconds", "histogram", ("check",), "time a check took"),
        Metric("kinemill_check_timeouts_total", "counter", ("check",), "checks stopped at their deadline"),
        Metric("kinemill_check_unreaped_total", "counter", ("check",), "check children that could not be killed"),
        Metric("kinemill_agent_missing_total", "counter", ("hook",), "hooks that found no working agent"),
        Metric("kinemill_agent_last_success_timestamp", "gauge", ("part",), "epoch seconds of the last good pass"),
        Metric("kinemill_drains_total", "counter", ("check", "class", "owner"), "drains by owner"),
        Metric("kinemill_drain_open_seconds", "gauge", ("node", "check"), "age of an open drain"),
        Metric("kinemill_false_drains_total", "counter", ("check",), "own drains lifted unchanged within 30 min"),
        Metric("kinemill_resumes_total", "counter", ("result",), "automatic resumes"),
        Metric("kinemill_flap_locked", "gauge", ("node",), "1 where automatic resume gave up"),
        Metric("kinemill_breaker_open", "gauge", ("check",), "1 where a check was turned to observe-only"),
        Metric("kinemill_reservation_swept_total", "counter", ("action", "why"), "reservations handled"),
        Metric("kinemill_restart_attempts_total", "counter", ("kind",), "training restarts by kind"),
        Metric("kinemill_lost_step_seconds", "counter", (), "training time lost to restarts"),
        Metric("kinemill_export_lag_seconds", "gauge", (), "age of the oldest row not yet in the warehouse"),
        Metric("kinemill_export_rows_total", "counter", (), "rows committed to the warehouse"),
        Metric("kinemill_store_requests_total", "counter", ("op", "result"), "object-store requests"),
        Metric("kinemill_cache_fallbacks_total", "counter", ("reason",), "cache reads that went to the origin"),
        Metric("kinemill_loader_samples_total", "counter", ("dataset",), "samples delivered"),
        Metric("kinemill_loader_masked_total", "counter", ("dataset", "reason"), "samples masked"),
        Metric("kinemill_loader_seconds", "counter", ("phase",), "loader time by fetch, verify, decode, collate"),
        Metric("kinemill_optimizer_bytes_total", "counter", ("group",), "bytes exchanged by group kind"),
        Metric("kinemill_optimizer_seconds", "counter", ("phase",), "optimizer time by phase"),
    )
}

RESERVED_METRICS: frozenset[str] = frozenset(
    {
        "kinemill_breaker_open",
        "kinemill_cache_fallbacks_total",
        "kinemill_drain_open_seconds",
        "kinemill_false_drains_total",
        "kinemill_flap_locked",
        "kinemill_reservation_swept_total",
        "kinemill_resumes_total",
    }
)
"""Named for parts that are not there yet (controller, cache): nobody tells them, so nothing may wait for them."""
