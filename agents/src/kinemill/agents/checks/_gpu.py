"""What the GPU checks share: whether the library answered, and which GPUs count for this run."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kinemill.agents.checks import Finding, unknown
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts, Gpu, Reading
from kinemill.contracts.checks import CheckContext

__all__ = ["ALWAYS", "expected_gpus", "for_each_gpu", "no_gpus_expected", "nvml_missing"]

ALWAYS = (
    CheckContext.PROLOG,
    CheckContext.EPILOG,
    CheckContext.PERIODIC,
    CheckContext.BOOT,
    CheckContext.INJOB,
    CheckContext.CLI,
)


def expected_gpus(ctx: Context) -> int | None:
    """How many GPUs the inventory promises; None where it does not say."""
    stated = ctx.settings.hardware.gpus
    return stated if stated is not None else ctx.sku.gpus


def no_gpus_expected(ctx: Context) -> bool:
    """True where the inventory states no GPU at all."""
    return not expected_gpus(ctx)


def nvml_missing(facts: Facts) -> Finding | None:
    """UNKNOWN where NVML did not answer: check `gpu.nvml` says why, the others only that they could not look."""
    started = facts.reading("nvml.init")
    if started.error is None:
        return None
    return unknown("nvml_unavailable", f"NVML did not answer ({started.error}, probe {facts.how('nvml')})")


def for_each_gpu(
    facts: Facts, ctx: Context, reading: str, judge: Callable[[Gpu, Reading], Finding | None]
) -> Iterable[Finding]:
    """Findings for the GPUs of the job (all, where the job has no list), from one reading each.

    What the GPU or its driver does not have is no finding. Any other NVML error is UNKNOWN; that a GPU is lost is for
    `gpu.count` to say.
    """
    missing = nvml_missing(facts)
    if missing is not None:
        yield missing
        return
    wanted = ctx.job.gpus if ctx.job is not None else None
    seen: set[int] = set()
    for gpu in facts.gpus():
        seen.add(gpu.index)
        if wanted is not None and gpu.slot not in wanted:
            continue
        handle = gpu.get("handle")
        value = handle if handle.error else gpu.get(reading)
        if value.not_supported and handle.error is None:
            continue
        if value.error is not None:
            yield unknown(f"nvml_{value.error.lower()[:24]}", f"gpu{gpu.index} {reading}: {value.error}")
            continue
        found = judge(gpu, value)
        if found is not None:
            yield found
    promised = facts.reading("nvml.count").value
    if isinstance(promised, int):
        for index in range(promised):
            if index not in seen and (wanted is None or index in wanted):
                yield unknown("gpu_not_read", f"gpu{index} {reading}: probe {facts.how('nvml')} before it was read")
