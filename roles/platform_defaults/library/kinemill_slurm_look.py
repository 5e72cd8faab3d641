#!/usr/bin/python3
"""Ansible module: look at a Slurm that somebody else set up; how it is configured, and what is left to us."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: kinemill_slurm_look
short_description: Look at a running Slurm
description:
  - Asks the controller for its configuration and reads slurm.conf with what it includes. Changes nothing.
author: kinemill
options:
  config_dir:
    description: Folder of slurm.conf. Where it has none, as on nodes without a configuration of their own, only the
      controller is asked.
    type: path
    required: true
  include:
    description: File that slurm.conf includes and leaves to us; what it says is told apart from the rest.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Look
  kinemill_slurm_look:
    config_dir: /etc/slurm
    include: /etc/slurm/site.conf
"""

PAIR = re.compile(r'([A-Za-z]\w*)\s*=\s*("[^"]*"|\S+)')
# Lines that describe things; what they say is not a setting of the cluster.
THINGS = {"nodename", "partitionname", "nodeset", "downnodes", "frontendname"}
DEEPEST = 8


def running(shown: str) -> dict[str, list[str]]:
    """Name -> values of `scontrol show config`; `Prolog[0]`, `Prolog[1]` are two values of one name."""
    found: dict[str, list[str]] = {}
    for line in shown.splitlines():
        name, mark, value = (part.strip() for part in line.partition(" = "))
        if mark and value != "(null)":
            found.setdefault(re.sub(r"\[\d+\]$", "", name).lower(), []).append(value)
    return found


def lines_of(text: str) -> list[str]:
    """Lines without comments, continued ones joined."""
    whole = re.sub(r"\\\r?\n", " ", text)
    return [line for raw in whole.splitlines() if (line := raw.split("#", 1)[0].strip())]


def stated(
    path: Path, *, apart: str, found: dict[str, list[str]] | None = None, depth: int = 0
) -> tuple[dict[str, list[str]], list[str]]:
    """What a slurm.conf and its includes say, without one of them.

    Args:
        path: The file.
        apart: The include that is left out.
        found: What was read before.
        depth: How many includes led here.

    Returns:
        Setting -> values, in small letters, and every included path.
    """
    found = {} if found is None else found
    includes: list[str] = []
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return found, includes
    for line in lines_of(text):
        word, _, rest = line.partition(" ")
        if word.lower() == "include":
            name = rest.strip().strip('"')
            other = Path(name) if name.startswith("/") else path.parent / name
            includes.append(str(other))
            if str(other) != apart and depth < DEEPEST:
                includes += stated(other, apart=apart, found=found, depth=depth + 1)[1]
            continue
        pairs = PAIR.findall(line)
        if pairs and pairs[0][0].lower() in THINGS:
            continue
        for key, value in pairs:
            found.setdefault(key.lower(), []).append(value.strip('"'))
    return found, includes


def main() -> None:
    """Entry."""
    module = AnsibleModule(
        argument_spec={
            "config_dir": {"type": "path", "required": True},
            "include": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    status, shown, said = module.run_command(["scontrol", "show", "config"], handle_exceptions=False)
    conf = Path(module.params["config_dir"]) / "slurm.conf"
    include = module.params["include"]
    settings, includes = stated(conf, apart=include)
    mine = Path(include)
    look: dict[str, Any] = {
        "answers": status == 0,
        "said": (said or shown).strip()[-300:],
        "running": running(shown) if status == 0 else {},
        "has_file": conf.is_file(),
        "stated": settings,
        "includes": includes,
        "include_text": mine.read_text(encoding="utf-8", errors="replace") if include and mine.is_file() else "",
    }
    module.exit_json(changed=False, look=look)


if __name__ == "__main__":
    main()
