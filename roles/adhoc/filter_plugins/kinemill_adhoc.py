"""Filters of the playbooks in playbooks/adhoc; the judging is kinemill.control.adhoc."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError


def _judges() -> Any:
    try:
        import kinemill.control.adhoc as judges
    except ImportError as error:
        raise AnsibleFilterError(f"install kinemill-control on the control host, beside ansible: {error}") from error
    return judges


def faults(given: Mapping[str, Any], playbook: str, **said: Any) -> list[str]:
    """All that is wrong with a request; the nodes of slurm.conf are counted from the inventory's entries."""
    from kinemill.errors import KinemillError
    from kinemill.slurm.hostlist import expand_hostlist

    entries = said.pop("entries")
    try:
        stated = [name for entry in entries for name in expand_hostlist(str(entry["name"]))]
        found: list[str] = _judges().request_faults(
            playbook, given, stated=stated, now=dt.datetime.now().astimezone(), **said
        )
    except KinemillError as error:
        raise AnsibleFilterError(str(error)) from error
    return found


def chosen(said: Any, nodes: Sequence[str]) -> list[str]:
    """The nodes that were named; all where none were."""
    found: list[str] = _judges().chosen(said or "all", nodes)
    return found


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Filters by name."""
        return {
            "kinemill_adhoc_faults": faults,
            "kinemill_adhoc_chosen": chosen,
            "kinemill_adhoc_batch": lambda said, total: _judges().batch_size(said, total),
            "kinemill_adhoc_drain_text": lambda who, until, reason: _judges().drain_text(who, until, reason),
            "kinemill_adhoc_worse": lambda before, after: _judges().worse(before, after),
            "kinemill_adhoc_refusing": lambda results: _judges().refusing(results),
            "kinemill_adhoc_without": lambda entries, gone, key: _judges().without(
                entries, gone, key=key, default="ALL"
            ),
        }
