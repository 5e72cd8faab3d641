"""Filter `kinemill_inventory_faults`: all faults of an inventory; the checking itself is kinemill.control.inventory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ansible.errors import AnsibleFilterError
from ansible.parsing.dataloader import DataLoader
from ansible.utils.vars import load_extra_vars


def inventory_faults(sources: Sequence[str], roles_dir: str, removed_file: str) -> list[str]:
    """One line for each fault of the inventory and of the command line's variables."""
    try:
        from kinemill.control.inventory import inventory_faults as find
        from kinemill.errors import KinemillError
    except ImportError as error:
        raise AnsibleFilterError(f"install kinemill-control on the control host, beside ansible: {error}") from error
    try:
        faults = find(
            list(sources),
            roles_dir=Path(roles_dir),
            removed_file=Path(removed_file),
            extra_vars=load_extra_vars(DataLoader()),
        )
    except KinemillError as error:
        raise AnsibleFilterError(str(error)) from error
    return [str(fault) for fault in faults]


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> dict[str, Callable[..., list[str]]]:
        """Filters by name."""
        return {"kinemill_inventory_faults": inventory_faults}
