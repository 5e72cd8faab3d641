"""Filters that judge what module `kinemill_gpu_look` saw; the judging is kinemill.control.gpu."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError


def _judge(name: str, look: Mapping[str, Any], **said: Any) -> list[str]:
    try:
        from kinemill.control import gpu
    except ImportError as error:
        raise AnsibleFilterError(f"install kinemill-control on the control host, beside ansible: {error}") from error
    found: list[str] = getattr(gpu, name)(look, **said)
    return found


def change_faults(look: Mapping[str, Any], **said: Any) -> list[str]:
    """Why the driver of a node may not be changed now."""
    return _judge("change_faults", look, **said)


def driver_faults(look: Mapping[str, Any], **said: Any) -> list[str]:
    """Where a node's driver is not what it should be."""
    return _judge("driver_faults", look, **said)


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> dict[str, Callable[..., list[str]]]:
        """Filters by name."""
        return {"kinemill_gpu_change_faults": change_faults, "kinemill_gpu_driver_faults": driver_faults}
