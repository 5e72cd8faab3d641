"""Reads every GPU through NVML. The only importer of pynvml.

Each value is a reading: `{"v": value}` or `{"e": "NotSupported"}` with NVML's own error name, so
that a check can tell "this GPU has no such thing" from "it could not be measured".
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from kinemill.agents.context import Context
from kinemill.agents.probes import Emit

__all__ = ["read"]

_RECOVERY_FIELD = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; by number, since older bindings lack the name."""
_MAX_GPUS = 64
_MAX_LINKS = 18


def read(ctx: Context, emit: Emit) -> None:
    """Emit `nvml.init`, `nvml.driver`, `nvml.count` and one `gpu.<index>` for each GPU."""
    del ctx
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pynvml as n

    def reading(call: Callable[[], Any]) -> dict[str, Any]:
        try:
            return {"v": call()}
        except n.NVMLError as exc:
            return {"e": _error_name(n, exc)}
        except (AttributeError, TypeError, ValueError, UnicodeDecodeError, OverflowError) as exc:
            return {"e": f"Garbage({type(exc).__name__})"}

    started = reading(lambda: n.nvmlInit() or True)
    emit("nvml.init", started)
    if "e" in started:
        return
    emit("nvml.driver", reading(lambda: _text(n.nvmlSystemGetDriverVersion())))
    count = reading(n.nvmlDeviceGetCount)
    emit("nvml.count", count)
    for index in range(min(int(count.get("v") or 0), _MAX_GPUS)):
        emit(f"gpu.{index}", _gpu(n, index, reading))


def _gpu(n: Any, index: int, reading: Callable[[Callable[[], Any]], dict[str, Any]]) -> dict[str, Any]:
    found = reading(lambda: n.nvmlDeviceGetHandleByIndex(index))
    if "e" in found:
        return {"index": index, "handle": found}
    h = found["v"]
    corrected, uncorrected = n.NVML_MEMORY_ERROR_TYPE_CORRECTED, n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    volatile, aggregate = n.NVML_VOLATILE_ECC, n.NVML_AGGREGATE_ECC
    return {
        "index": index,
        "handle": {"v": True},
        "uuid": reading(lambda: _text(n.nvmlDeviceGetUUID(h))),
        "minor": reading(lambda: int(n.nvmlDeviceGetMinorNumber(h))),
        "name": reading(lambda: _text(n.nvmlDeviceGetName(h))),
        "pci": reading(lambda: _text(n.nvmlDeviceGetPciInfo(h).busId)),
        "recovery": reading(lambda: _field(n, h, _RECOVERY_FIELD)),
        "remap": reading(lambda: [int(x) for x in n.nvmlDeviceGetRemappedRows(h)]),
        "ecc_volatile_uncorrected": reading(lambda: int(n.nvmlDeviceGetTotalEccErrors(h, uncorrected, volatile))),
        "ecc_volatile_corrected": reading(lambda: int(n.nvmlDeviceGetTotalEccErrors(h, corrected, volatile))),
        "ecc_aggregate_uncorrected": reading(lambda: int(n.nvmlDeviceGetTotalEccErrors(h, uncorrected, aggregate))),
        "ecc_aggregate_corrected": reading(lambda: int(n.nvmlDeviceGetTotalEccErrors(h, corrected, aggregate))),
        "clock_events": reading(lambda: int(_clock_events(n, h))),
        "pcie_width": reading(lambda: int(n.nvmlDeviceGetCurrPcieLinkWidth(h))),
        "pcie_generation": reading(lambda: int(n.nvmlDeviceGetCurrPcieLinkGeneration(h))),
        "nvlinks": reading(lambda: _active_links(n, h)),
        "fabric": reading(lambda: _fabric(n, h)),
        "persistence": reading(lambda: int(n.nvmlDeviceGetPersistenceMode(h))),
        "mig": reading(lambda: [int(x) for x in n.nvmlDeviceGetMigMode(h)]),
        "memory": reading(lambda: _memory(n.nvmlDeviceGetMemoryInfo(h))),
        "processes": reading(lambda: [int(p.pid) for p in n.nvmlDeviceGetComputeRunningProcesses(h)]),
        "temperature_c": reading(lambda: int(n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU))),
    }


def _text(value: str | bytes) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else value


def _memory(info: Any) -> dict[str, int]:
    return {"total": int(info.total), "used": int(info.used)}


def _field(n: Any, handle: Any, field: int) -> int:
    (value,) = n.nvmlDeviceGetFieldValues(handle, [field])
    if value.nvmlReturn != n.NVML_SUCCESS:
        raise n.NVMLError(value.nvmlReturn)
    return int(value.value.uiVal)


def _clock_events(n: Any, handle: Any) -> int:
    call = getattr(n, "nvmlDeviceGetCurrentClocksEventReasons", None)
    return int((call or n.nvmlDeviceGetCurrentClocksThrottleReasons)(handle))


def _fabric(n: Any, handle: Any) -> list[int]:
    """State (3: completed) and status (0: success) of the GPU's place in the NVLink fabric."""
    info = n.c_nvmlGpuFabricInfo_v2_t()
    n.nvmlDeviceGetGpuFabricInfoV(handle, n.byref(info))
    return [int(info.state), int(info.status)]


def _active_links(n: Any, handle: Any) -> int:
    """Active NVLinks; the first link that the GPU does not have ends the count."""
    active = 0
    for link in range(_MAX_LINKS):
        try:
            active += int(n.nvmlDeviceGetNvLinkState(handle, link) == n.NVML_FEATURE_ENABLED)
        except (n.NVMLError_InvalidArgument, n.NVMLError_NotSupported):
            if link == 0:
                raise
            break
    return active


def _error_name(n: Any, exc: Any) -> str:
    """NVML's error as one word: `NotSupported`, `GpuIsLost`, `FunctionNotFound`, ..."""
    name = type(exc).__name__.removeprefix("NVMLError_")
    return name if name != "NVMLError" else f"Code{getattr(exc, 'value', '?')}"
