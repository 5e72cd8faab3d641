"""Looks at a data set from outside: are samples whole, how fast do they come, does the state explain the action."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kinemill.errors import UsageError
from kinemill.loaders.metrics import count_seconds

if TYPE_CHECKING:
    from kinemill.loaders.dataset import WindowedDataset
    from kinemill.loaders.loading import LoadedDataset

__all__ = ["Overfit", "measure", "overfit_episode", "probe_samples"]


def probe_samples(data: WindowedDataset, count: int) -> dict[str, Any]:
    """Read samples spread evenly over the set.

    Args:
        data: What to read.
        count: How many at most.

    Returns:
        Plain numbers: samples read, masked by reason, absent topics, padding by key, ms a request.
    """
    picks = (
        np.unique(np.linspace(0, len(data) - 1, min(count, len(data))).astype(np.int64)).tolist() if len(data) else []
    )
    masked: Counter[str] = Counter()
    sources: dict[str, str] = {}
    pads: Counter[str] = Counter()
    # the ceiling is for training; here every fault is to be seen
    data.engine.faults.max_share, data.engine.faults.max_in_a_row = 1.0, 1 << 62
    for pick in picks:
        batch = data.read([pick]).batch
        if reason := batch["masked"][0]:
            masked[reason] += 1
            sources.setdefault(reason, batch["episode_id"][0])
            continue
        for one in data.fields:
            pads[one.key] += int(batch[f"{one.key}_is_pad"].any())
    counts = data.engine.counts
    return {
        "samples": len(data),
        "read": len(picks),
        "masked": dict(masked),
        "first_masked_episode": sources,
        "absent_topics": dict(data.engine.faults.absent),
        "samples_with_padding": dict(pads),
        "requests_per_sample": counts.requests / max(1, counts.samples),
        "kib_per_sample": counts.bytes / max(1, counts.samples) / 1024,
        "ms_per_request": counts.fetch_s / max(1, counts.requests) * 1e3,
    }


def measure(data: LoadedDataset, *, batch_size: int, workers: int, samples: int) -> dict[str, Any]:
    """Read samples in training order and say where the time goes.

    The phases are measured in this process, on a part of the same samples; with workers, the rate is that of the
    DataLoader. The bound is the decode time alone: no loader delivers more from one core.

    Raises:
        UsageError: The set has no full batch.
    """
    loader = data.loader(batch_size, workers=workers)
    if not len(loader):
        raise UsageError(f"{len(data)} samples do not fill one batch of {batch_size}")
    batches = max(1, samples // batch_size)
    masked: Counter[str] = Counter()
    start = first = time.perf_counter()
    seen = 0
    for seen, batch in enumerate(loader, 1):
        if seen == 1:
            first = time.perf_counter()  # workers start, stores connect
        masked.update(reason for reason in batch["masked"] if reason)
        if seen >= batches:
            break
    took = time.perf_counter() - first
    rate = (seen - 1) * batch_size / took if seen > 1 else batch_size / (first - start)
    phases, requests, size = _phases(data, min(64, batches * batch_size), batch_size)
    count_seconds({name.removesuffix("_ms"): value / 1e3 for name, value in phases.items()})
    busy = phases["decode_ms"] + phases["verify_ms"] + phases["collate_ms"]
    decode_bound = 1e3 / max(phases["decode_ms"], 1e-6) * max(1, workers)
    return {
        "samples_per_s": rate,
        "first_batch_s": first - start,
        "requests_per_sample": requests,
        "kib_per_sample": size / 1024,
        "ms_per_sample": phases,
        "decode_bound_per_s": decode_bound,
        "limited_by": "fetch: raise read.prefetch or workers"
        if phases["fetch_ms"] > 2 * busy
        else "decode: add workers",
        "masked": dict(masked),
    }


def _limit(fetch_ms: float, busy_ms: float) -> str:
    """What to change first."""
    return "fetch: raise read.prefetch or workers" if fetch_ms > 2 * busy_ms else "decode: add workers"


def _phases(data: WindowedDataset, count: int, batch_size: int) -> tuple[dict[str, float], float, float]:
    """(ms a sample by phase, requests a sample, bytes a sample), measured one after the other in this process."""
    from kinemill.loaders.batch import BatchBuffer, finish
    from kinemill.loaders.engine import Found

    engine = data.engine
    order = data.order()
    picks = order.samples(0, np.arange(min(count, order.length))).tolist()
    before = dataclasses.replace(engine.counts)
    for at in range(0, len(picks), batch_size):
        data.read(picks[at : at + batch_size])
    n = max(1, engine.counts.samples - before.samples)
    fetch = (engine.counts.fetch_s - before.fetch_s) / n
    decode = (engine.counts.decode_s - before.decode_s) / n
    # verification happens inside decode: measured apart, on the bytes of a few of the same samples
    looked = picks[:16]
    verify = sum(engine.verify_seconds(data.locate(pick)) for pick in looked) / max(1, len(looked))
    buffer_start = time.perf_counter()
    buffer = BatchBuffer(data.fields, batch_size, times=data.times)
    row = data.row(0, 0)
    finish(buffer, [Found(True, 0, row)] * batch_size, list(range(batch_size)), text=data.text)
    collate = (time.perf_counter() - buffer_start) / batch_size
    return (
        {
            "fetch_ms": fetch * 1e3,
            "verify_ms": verify * 1e3,
            "decode_ms": max(0.0, decode - verify) * 1e3,
            "collate_ms": collate * 1e3,
        },
        (engine.counts.requests - before.requests) / n,
        (engine.counts.bytes - before.bytes) / n,
    )


@dataclass(frozen=True, slots=True)
class Overfit:
    """What a small network made of one episode."""

    episode_id: str
    steps: int
    first_loss: float
    last_loss: float
    fits: bool
    """The loss fell to a twentieth: states and actions belong together."""


def overfit_episode(data: WindowedDataset, *, steps: int = 400) -> Overfit:
    """Fit a small network from the states to the actions of the first episode.

    A policy that cannot overfit one episode has its data wrong: shifted windows, mixed-up columns, constant inputs.

    Raises:
        UsageError: No key with 'action' in its name, or no other state.
    """
    import torch

    rows = [one for one in data.fields if not one.video]
    actions = [one.key for one in rows if "action" in one.key]
    states = [one.key for one in rows if "action" not in one.key]
    if not actions or not states:
        raise UsageError("overfit needs a state window and one with 'action' in its key")
    numbers = [i for i in range(min(len(data), 2000)) if data.locate(i).row == data.locate(0).row]
    batch = data.read(numbers[:: max(1, len(numbers) // 256)]).batch
    keep = batch["valid"]
    x = torch.cat([batch[key].flatten(1) for key in states], 1)[keep]
    y = torch.cat([batch[key].flatten(1) for key in actions], 1)[keep]
    x = (x - x.mean(0)) / (x.std(0) + 1e-6)
    y = (y - y.mean(0)) / (y.std(0) + 1e-6)
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 256), torch.nn.GELU(), torch.nn.Linear(256, y.shape[1]))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        picks = torch.randint(0, len(x), (min(64, len(x)),), generator=generator)
        loss = torch.nn.functional.mse_loss(net(x[picks]), y[picks])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        losses.append(float(loss.detach()))
    first, last = float(np.mean(losses[:5])), float(np.mean(losses[-20:]))
    return Overfit(batch["episode_id"][0], steps, first, last, last < first / 20)
