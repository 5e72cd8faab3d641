"""Filter `kinemill_node_faults`: where a node contradicts its inventory; the judging is kinemill.control.vendor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError


def node_faults(look: Mapping[str, Any], **said: Any) -> list[str]:
    """One sentence for each contradiction."""
    try:
        from kinemill.control.vendor import node_faults as judge
    except ImportError as error:
        raise AnsibleFilterError(f"install kinemill-control on the control host, beside ansible: {error}") from error
    return judge(look, **said)


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> dict[str, Callable[..., list[str]]]:
        """Filters by name."""
        return {"kinemill_node_faults": node_faults}
