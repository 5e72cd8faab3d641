"""Filter `kinemill_vendor_slurm_plan`: what to add to a vendor's Slurm; see kinemill.control.vendor_slurm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError


def vendor_slurm_plan(look: Mapping[str, Any], **said: Any) -> dict[str, Any]:
    """Drop-ins, lines of the included file, and faults."""
    try:
        from kinemill.control.vendor_slurm import plan
    except ImportError as error:
        raise AnsibleFilterError(f"install kinemill-control on the control host, beside ansible: {error}") from error
    return plan(look, **said)


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> dict[str, Callable[..., dict[str, Any]]]:
        """Filters by name."""
        return {"kinemill_vendor_slurm_plan": vendor_slurm_plan}
