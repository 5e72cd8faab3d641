"""Requests and bytes as the object store itself counted them."""

from __future__ import annotations

import re
import urllib.request
from dataclasses import dataclass

__all__ = ["Served", "served"]

_LINE = re.compile(r"(?P<name>SeaweedFS_s3_\w+)\{(?P<labels>[^}]*)\} (?P<value>[0-9.e+]+)")


@dataclass(frozen=True, slots=True)
class Served:
    """Since the server started."""

    gets: int
    """GET requests that were answered with data (200 or 206)."""
    sent_bytes: int

    def since(self, before: Served) -> Served:
        """What came after `before`."""
        return Served(self.gets - before.gets, self.sent_bytes - before.sent_bytes)


def served(metrics_url: str, bucket: str) -> Served:
    """Read the server's counters of one bucket."""
    with urllib.request.urlopen(metrics_url, timeout=60) as answer:  # noqa: S310 - our own server's http URL
        text = answer.read().decode()
    gets = sent = 0.0
    for match in _LINE.finditer(text):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', match["labels"]))
        if labels.get("bucket") != bucket:
            continue
        if (
            match["name"] == "SeaweedFS_s3_request_total"
            and labels["type"] == "GET"
            and labels["code"] in {"200", "206"}
        ):
            gets += float(match["value"])
        if match["name"] == "SeaweedFS_s3_bucket_traffic_sent_bytes_total":
            sent += float(match["value"])
    return Served(int(gets), int(sent))
