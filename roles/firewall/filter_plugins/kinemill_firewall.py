"""Filter `kinemill_firewall_faults`: what is wrong with rules; the judging is kinemill.control.firewall."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError


def firewall_faults(subnets: Sequence[str], **said: Any) -> list[str]:
    """One sentence for each fault."""
    try:
        from kinemill.control.firewall import faults
    except ImportError as error:
        raise AnsibleFilterError(f"install kinemill-control on the control host, beside ansible: {error}") from error
    return faults(subnets, **said)


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> dict[str, Callable[..., list[str]]]:
        """Filters by name."""
        return {"kinemill_firewall_faults": firewall_faults}
