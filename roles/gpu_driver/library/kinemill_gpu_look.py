#!/usr/bin/python3
"""Ansible module: what a node's GPU driver says, which of its packages are there, and who uses the node."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: kinemill_gpu_look
short_description: Look at a node's GPU driver
description:
  - Asks the driver's library in a child that is ended after a minute, for a sick driver may never answer.
  - Says which jobs Slurm has on the node, from the node's own processes and from the controller; judges nothing.
author: kinemill
options:
  packages:
    description: Packages whose installed versions are wanted.
    type: list
    elements: str
    default: []
  services:
    description: Units of systemd; those that do not run are returned.
    type: list
    elements: str
    default: []
  node:
    description: The node's name in Slurm.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Look
  kinemill_gpu_look:
    packages: [nvidia-open]
    node: gpu001
"""

# The library's functions are stable; a list of numbers comes back, or the words of its error.
ASK = """
import ctypes, json
library = ctypes.CDLL("libnvidia-ml.so.1")
def call(name, *arguments):
    status = getattr(library, name)(*arguments)
    if status:
        library.nvmlErrorString.restype = ctypes.c_char_p
        raise SystemExit(f"{name}: {library.nvmlErrorString(status).decode()}")
call("nvmlInit_v2")
version = ctypes.create_string_buffer(96)
call("nvmlSystemGetDriverVersion", version, 96)
count = ctypes.c_uint()
call("nvmlDeviceGetCount_v2", ctypes.byref(count))
persistent = 0
for index in range(count.value):
    handle, mode = ctypes.c_void_p(), ctypes.c_uint()
    call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
    call("nvmlDeviceGetPersistenceMode", handle, ctypes.byref(mode))
    persistent += mode.value
print(json.dumps({"driver": version.value.decode(), "gpus": count.value, "persistent": persistent}))
"""
TIMEOUT_S = 60


def output(*command: str) -> str | None:
    """What a program prints, or None where it fails or does not end."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def driver() -> dict[str, Any]:
    """Version, GPUs and how many are in persistence mode; or `error`."""
    nothing: dict[str, Any] = {"driver": "", "gpus": 0, "persistent": 0}
    try:
        done = subprocess.run(
            [sys.executable, "-c", ASK], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {**nothing, "error": f"the driver did not answer within {TIMEOUT_S} s"}
    if done.returncode != 0:
        return {**nothing, "error": (done.stderr.strip().splitlines() or ["no word"])[-1]}
    return {**json.loads(done.stdout), "error": ""}


def installed(names: list[str]) -> dict[str, str]:
    """Versions of the packages that are installed."""
    if not names:
        return {}
    shown = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${Package} ${Version} ${db:Status-Status}\n", *names],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    ).stdout
    rows = [line.split() for line in shown.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 3 and row[2] == "installed"}


def steps() -> int:
    """Job steps that run here, whatever the controller knows."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            found += path.read_text(encoding="utf-8").startswith("slurmstepd")
        except OSError:
            continue
    return found


def jobs(node: str) -> list[str] | None:
    """Jobs that the controller has on the node; None where it does not say."""
    states = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED"
    shown = output("squeue", "--noheader", f"--nodelist={node}", f"--states={states}", "--format=%A")
    return None if shown is None else shown.split()


def main() -> None:
    """Entry."""
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "list", "elements": "str", "default": []},
            "services": {"type": "list", "elements": "str", "default": []},
            "node": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    node = module.params["node"]
    slurm = shutil.which("slurmd", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin") is not None
    release = dict(
        line.partition("=")[::2] for line in Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    )
    state = output("sinfo", "--noheader", f"--nodes={node}", "--format=%T") if slurm else ""
    look = {
        **driver(),
        "os_id": release.get("ID", "").strip('"'),
        "installed": installed(module.params["packages"]),
        "stopped": [one for one in module.params["services"] if output("systemctl", "is-active", one) is None],
        "slurm": slurm,
        "steps": steps(),
        "jobs": jobs(node) if slurm else [],
        "state": (state or "").split("\n")[0].strip("*~#!%$@^- "),
    }
    module.exit_json(changed=False, look=look)


if __name__ == "__main__":
    main()
