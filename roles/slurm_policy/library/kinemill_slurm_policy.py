#!/usr/bin/python3
"""Ansible module: QOS, accounts and users of a Slurm cluster, brought to what is asked for; nothing is ever removed."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: kinemill_slurm_policy
short_description: Bring QOS, accounts and users to what is asked for
description:
  - Reads what slurmdbd has and changes what differs. What is not named is left alone.
author: kinemill
options:
  cluster:
    description: Name of the cluster.
    type: str
    required: true
  qos:
    description: Qualities of service; see role slurm_policy.
    type: list
    elements: dict
    required: true
  accounts:
    description: Accounts; see role slurm_policy.
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
- name: Let evaluations preempt
  kinemill_slurm_policy:
    cluster: west
    qos:
      - name: pretrain
      - name: eval
        preempt: [pretrain]
    accounts: []
"""

QOS_COLUMNS = ("name", "priority", "preempt", "preemptmode", "gracetime", "grptres", "maxwall", "maxjobsperuser")
ASSOCIATION_COLUMNS = ("account", "user", "share", "qos", "defaultqos")
Row = dict[str, str]


def rows(text: str, columns: tuple[str, ...]) -> list[Row]:
    """Lines of `sacctmgr --parsable2` as mappings."""
    found = [line.split("|") for line in text.splitlines() if line]
    return [dict(zip(columns, fields, strict=True)) for fields in found]


def clock(minutes: int) -> str:
    """A time as sacctmgr prints it: [days-]hours:minutes:seconds."""
    days, rest = divmod(minutes, 24 * 60)
    text = f"{rest // 60:02d}:{rest % 60:02d}:00"
    return f"{days}-{text}" if days else text


def qos_wanted(one: dict[str, Any]) -> Row:
    """A QOS as sacctmgr prints it; only what is asked for."""
    wanted: Row = {"priority": str(one.get("priority", 0)), "preempt": ",".join(sorted(one.get("preempt", [])))}
    # Slurm's own default is the cluster's mode, printed as `cluster`.
    wanted["preemptmode"] = one.get("preempt_mode", "cluster")
    grace = int(one.get("grace_s", 0))
    wanted["gracetime"] = f"{grace // 3600:02d}:{grace % 3600 // 60:02d}:{grace % 60:02d}"
    wanted["grptres"] = ",".join(f"{name}={count}" for name, count in sorted(one.get("group_tres", {}).items()))
    wanted["maxwall"] = clock(one["max_wall_minutes"]) if one.get("max_wall_minutes") else ""
    wanted["maxjobsperuser"] = str(one["max_jobs_per_user"]) if one.get("max_jobs_per_user") else ""
    return wanted


def _list(text: str) -> str:
    return ",".join(sorted(part for part in text.split(",") if part))


def differences(wanted: Row, found: Row) -> list[str]:
    """`name=value` words that make the found row the wanted one."""
    words: list[str] = []
    for name, asked in wanted.items():
        order = _list if name in {"preempt", "grptres", "qos"} else str
        here, value = order(found.get(name, "")), order(asked)
        if here.lower() == value.lower():
            continue
        if name == "grptres":  # a limit that is no longer wanted is taken away by -1
            gone = [part.split("=")[0] for part in here.split(",") if part]
            words += [f"grptres={value}"] if value else [f"grptres={','.join(f'{part}=-1' for part in gone)}"]
        elif value == "" and name in {"maxwall", "maxjobsperuser"}:
            words.append(f"{name}=-1")
        elif name == "gracetime":  # printed as a clock, read as seconds
            hours, minutes, seconds = (int(part) for part in value.split(":"))
            words.append(f"gracetime={hours * 3600 + minutes * 60 + seconds}")
        else:
            words.append(f"{name}={value}")
    return words


def plan_qos(wanted: list[dict[str, Any]], found: list[Row]) -> list[list[str]]:
    """Commands of sacctmgr that bring QOS about; first they are all made, since one may name another."""
    here = {row["name"]: row for row in found}
    commands = [["add", "qos", one["name"]] for one in wanted if one["name"] not in here]
    for one in wanted:
        words = differences(qos_wanted(one), here.get(one["name"], {"priority": "0", "gracetime": "00:00:00"}))
        if words:
            commands.append(["modify", "qos", "where", f"name={one['name']}", "set", *words])
    return commands


def plan_accounts(cluster: str, wanted: list[dict[str, Any]], found: list[Row]) -> list[list[str]]:
    """Commands of sacctmgr that bring accounts and their users about."""
    here = {(row["account"], row["user"]): row for row in found}
    commands: list[list[str]] = []
    for one in wanted:
        name = one["name"]
        target: Row = {"share": str(one.get("fairshare", 1))}
        if one.get("qos"):
            target["qos"] = ",".join(one["qos"])
        if one.get("default_qos"):
            target["defaultqos"] = one["default_qos"]
        row = here.get((name, ""))
        if row is None:
            commands.append(["add", "account", name, f"cluster={cluster}"])
        words = [word.replace("share=", "fairshare=", 1) for word in differences(target, row or {"share": "1"})]
        if words:
            commands.append(["modify", "account", "where", f"name={name}", f"cluster={cluster}", "set", *words])
        for user in one.get("users", []):
            if (name, user) not in here:
                commands.append(["add", "user", user, f"account={name}", f"cluster={cluster}"])
    return commands


def enforced(config: str) -> bool:
    """Whether `scontrol show config` says that QOS are enforced and preempt."""
    pairs = dict(part.partition("=")[::2] for part in config.splitlines() if "=" in part)
    settings = {name.strip(): value.strip() for name, value in pairs.items()}
    return settings.get("PreemptType") == "preempt/qos" and "qos" in settings.get("AccountingStorageEnforce", "")


def main() -> None:
    """Entry."""
    module = AnsibleModule(
        argument_spec={
            "cluster": {"type": "str", "required": True},
            "qos": {"type": "list", "elements": "dict", "required": True},
            "accounts": {"type": "list", "elements": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    cluster = module.params["cluster"]

    def show(what: list[str], columns: tuple[str, ...]) -> list[Row]:
        command = ["sacctmgr", "--noheader", "--parsable2", "show", *what, f"format={','.join(columns)}"]
        return rows(module.run_command(command, check_rc=True)[1], columns)

    association = ["association", "where", f"cluster={cluster}"]
    commands = plan_qos(module.params["qos"], show(["qos"], QOS_COLUMNS))
    commands += plan_accounts(cluster, module.params["accounts"], show(association, ASSOCIATION_COLUMNS))
    if not module.check_mode:
        for command in commands:
            module.run_command(["sacctmgr", "--immediate", "--quiet", *command], check_rc=True)
    status, config, _ = module.run_command(["scontrol", "show", "config"])
    module.exit_json(
        changed=bool(commands),
        commands=[" ".join(command) for command in commands],
        enforced=status == 0 and enforced(config),
    )


if __name__ == "__main__":
    main()
