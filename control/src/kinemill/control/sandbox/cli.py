"""`kinemill sandbox`: a real cluster on one machine, for tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kinemill.records import dumps

if TYPE_CHECKING:
    from kinemill.control.sandbox.box import Sandbox

__all__ = ["sandbox"]

_NAME = click.option("--name", help="The sandbox; KINEMILL_SANDBOX or 'default' unless given.")
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object.")


def _open(name: str | None) -> Sandbox:
    from kinemill.control.sandbox.box import Sandbox

    return Sandbox.open(name)


def _say(line: str) -> None:
    click.echo(line, err=True)


def _print(as_json: bool, record: Any, text: str) -> None:
    click.echo(dumps(record) if as_json else text)


@click.group()
def sandbox() -> None:
    """A real cluster on one machine, for tests.

    Nodes boot their own systemd and have their own network, but they share this machine's kernel as real root:
    a test bed, never a cage for hostile code.

    Example: kinemill sandbox up --nodes ctl,n1,n2
    """


@sandbox.command()
@_JSON
def check(as_json: bool) -> None:
    """Say what this machine lacks.

    \b
    Exit: 0 nothing, 1 something.
    Example: kinemill sandbox check
    """
    from kinemill.control.sandbox.host import lacks

    found = lacks(for_images=True)
    text = "\n".join(f"lacks {lack.what}: {lack.cure}" for lack in found) or "nothing is missing"
    _print(as_json, {"lacks": [asdict(lack) for lack in found]}, text)
    if found:
        sys.exit(1)


@sandbox.command()
@click.argument("names", nargs=-1)
@click.option("--prune", is_flag=True, help="Remove images whose recipe has changed.")
@_JSON
def image(names: tuple[str, ...], prune: bool, as_json: bool) -> None:
    """Build images that are not there yet; without NAMES say which are.

    \b
    Exit: 0 built, 1 this machine lacks something, 75 the mirror does not answer, 78 no such image.
    Example: kinemill sandbox image bookworm-slurm trixie-slurm
    """
    from kinemill.control.sandbox import images

    gone = images.prune() if prune else []
    rows: list[dict[str, Any]] = []
    for one in names or images.RECIPES:
        found = images.build(one, say=_say) if names else images.find(one)
        size = found.bytes if found else 0
        built_s = round(found.built_s, 1) if found else 0
        rows.append({"name": one, "built": found is not None, "bytes": size, "built_s": built_s})
    text = "\n".join(f"{r['name']:16} {r['bytes'] / 1e6:6.0f} MB" if r["built"] else f"{r['name']:16} -" for r in rows)
    _print(as_json, {"images": rows, "pruned": gone}, text)


@sandbox.command()
@_NAME
@click.option("--nodes", default="ctl,n1,n2", show_default=True, help="Host names, with commas.")
@click.option("--image", "image_name", default="bookworm-slurm", show_default=True, help="What they are made from.")
@click.option("--gpus", default=8, show_default=True, help="Stub GPUs on each node but the first.")
@click.option("--disk", default="2G", show_default=True, help="Size of each node's writable layer; it lies in memory.")
@click.option("--offline", is_flag=True, help="No package proxy.")
@click.option("--wheelhouses", type=click.Path(path_type=Path, exists=True), help="Seen read-only at /srv/wheelhouses.")
@click.option("--slurm", is_flag=True, help="Start Slurm; the first node is the controller.")
@_JSON
def up(
    *,
    name: str | None,
    nodes: str,
    image_name: str,
    gpus: int,
    disk: str,
    offline: bool,
    wheelhouses: Path | None,
    slurm: bool,
    as_json: bool,
) -> None:
    """Bring nodes up, building their image if need be; what is up stays as it is.

    \b
    Exit: 0 up, 1 this machine lacks something, 75 a node did not boot in time, 78 a bad name.
    Example: kinemill sandbox up --nodes ctl,n1,n2 --slurm
    """
    from kinemill.control.sandbox.box import Sandbox
    from kinemill.control.sandbox.furnish import NodeSpec
    from kinemill.control.sandbox.standins import Hardware

    words = [word.strip() for word in nodes.split(",") if word.strip()]
    if slurm:
        from kinemill.control.sandbox.cluster import Cluster

        cluster = Cluster.up(
            words[0], words[1:], image=image_name, name=name, gpus=gpus, disk=disk, proxy=not offline,
            wheelhouses=wheelhouses, say=_say,
        )  # fmt: skip
        box = cluster.box
    else:
        specs = [
            NodeSpec(word, image=image_name, disk=disk, hardware=Hardware(gpus=gpus) if index and gpus else None)
            for index, word in enumerate(words)
        ]
        box = Sandbox.up(specs, name=name, proxy=not offline, wheelhouses=wheelhouses, say=_say)
    _show(box, as_json)


@sandbox.command()
@_NAME
@click.option("--all", "every", is_flag=True, help="Every sandbox, named or not.")
@_JSON
def down(name: str | None, every: bool, as_json: bool) -> None:
    """Remove a sandbox and what killed runs left; nothing to remove is no fault.

    \b
    Exit: 0 gone, 75 a process does not die.
    Example: kinemill sandbox down
    """
    from kinemill.control.sandbox import anchor
    from kinemill.control.sandbox.box import names, sweep

    running = names()
    wanted = list(running) if every else [name or os.environ.get("KINEMILL_SANDBOX") or "default"]
    gone = [one for one in wanted if one in running]
    for one in gone:
        anchor.destroy(running[one])
    swept = sweep()
    text = f"gone: {', '.join(gone) or 'nothing was up'}"
    _print(as_json, {"gone": gone, "swept": swept}, text + (f"; swept: {swept}" if swept else ""))


@sandbox.command()
@_NAME
@click.option("--all", "every", is_flag=True, help="Every sandbox.")
@_JSON
def status(name: str | None, every: bool, as_json: bool) -> None:
    """Show the nodes.

    \b
    Exit: 0 shown, 1 no such sandbox.
    Example: kinemill sandbox status --json
    """
    if every:
        from kinemill.control.sandbox.box import names

        found = names()
        _print(as_json, {"sandboxes": {k: v.id for k, v in found.items()}}, "\n".join(found) or "none")
        return
    _show(_open(name), as_json)


def _show(box: Sandbox, as_json: bool) -> None:
    nodes = box.status()
    record = {"name": box.name, "id": box.places.id, "ssh_config": str(box.places.ssh_config)}
    lines = [f"{n.name:12} {n.address:12} {n.state:8} {n.image:16} {n.disk_used_bytes / 1e6:6.0f} MB" for n in nodes]
    _print(as_json, {**record, "nodes": [asdict(node) for node in nodes]}, "\n".join(lines))


@sandbox.command("exec", context_settings={"ignore_unknown_options": True})
@_NAME
@click.argument("node")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(name: str | None, node: str, command: Sequence[str]) -> None:
    """Run COMMAND on NODE as root, without ssh.

    \b
    Exit: the command's.
    Example: kinemill sandbox exec n1 -- systemctl status slurmd
    """
    words = _open(name).exec_command(node, command)
    os.execvp(words[0], words)  # noqa: S606 - the node's own shell is the point


@sandbox.command(context_settings={"ignore_unknown_options": True})
@_NAME
@click.argument("node")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def ssh(name: str | None, node: str, command: Sequence[str]) -> None:
    """Log in to NODE by ssh.

    \b
    Exit: ssh's.
    Example: kinemill sandbox ssh n1
    """
    box = _open(name)
    os.execvp("ssh", ["ssh", "-F", str(box.places.ssh_config), node, *command])  # noqa: S606 - as above


@sandbox.command()
@_NAME
@click.argument("node")
@click.option("--lines", default=60, show_default=True)
@click.option("--journal", is_flag=True, help="The journal rather than the console.")
def logs(name: str | None, node: str, lines: int, journal: bool) -> None:
    """Show the end of NODE's console or journal, on or off.

    \b
    Example: kinemill sandbox logs n1 --journal
    """
    box = _open(name)
    click.echo(box.journal(node, lines=lines) if journal else box.logs(node, lines=lines))


@sandbox.command()
@_NAME
@click.argument("node")
def cut(name: str | None, node: str) -> None:
    """Cut NODE's power. `on` switches it on again.

    \b
    Example: kinemill sandbox cut n1
    """
    from kinemill.control.sandbox import faults

    faults.cut(_open(name), node)


@sandbox.command("on")
@_NAME
@click.argument("node")
def switch_on(name: str | None, node: str) -> None:
    """Switch NODE on.

    \b
    Example: kinemill sandbox on n1
    """
    _open(name).on(node)


@sandbox.command()
@_NAME
@click.argument("node")
def reboot(name: str | None, node: str) -> None:
    """Reboot NODE through its systemd.

    \b
    Example: kinemill sandbox reboot n1
    """
    from kinemill.control.sandbox import faults

    faults.reboot(_open(name), node)


@sandbox.command()
@_NAME
@click.argument("nodes", nargs=-1, required=True)
@click.option("--heal", is_flag=True, help="Let packets through again.")
def partition(name: str | None, nodes: tuple[str, ...], heal: bool) -> None:
    """Drop every packet from and to NODES.

    \b
    Example: kinemill sandbox partition n1 n2
    """
    from kinemill.control.sandbox import faults

    faults.partition(_open(name), nodes, heal=heal)


@sandbox.command()
@_NAME
@click.argument("node")
@click.argument("rate", required=False)
def shape(name: str | None, node: str, rate: str | None) -> None:
    """Limit NODE's bandwidth to RATE (as tc takes it), both ways; without RATE lift the limit.

    \b
    Example: kinemill sandbox shape n1 10mbit
    """
    from kinemill.control.sandbox import faults

    faults.shape(_open(name), node, rate)


@sandbox.command("fill-disk")
@_NAME
@click.argument("node")
@click.option("--leave", default=0, show_default=True, help="Bytes that stay free.")
@click.option("--undo", is_flag=True, help="Take it back.")
def fill_disk(name: str | None, node: str, leave: int, undo: bool) -> None:
    """Fill NODE's disk (never this machine's).

    \b
    Example: kinemill sandbox fill-disk n1 --leave 1048576
    """
    from kinemill.control.sandbox import faults

    box = _open(name)
    if undo:
        faults.free_disk(box, node)
    else:
        click.echo(f"{faults.fill_disk(box, node, leave_bytes=leave)} bytes written")


@sandbox.command(context_settings={"ignore_unknown_options": True})
@_NAME
@click.argument("node")
@click.argument("offset_s", type=int)
@click.argument("services", nargs=-1, required=True)
def clock(name: str | None, node: str, offset_s: int, services: tuple[str, ...]) -> None:
    """Step the clock that SERVICES of NODE see by OFFSET_S seconds; 0 puts it right.

    \b
    Example: kinemill sandbox clock n1 3600 slurmd
    """
    from kinemill.control.sandbox import faults

    faults.clock(_open(name), node, services, offset_s)


@sandbox.command()
@_NAME
@click.argument("state", type=click.Choice(["on", "off"]))
def proxy(name: str | None, state: str) -> None:
    """Give the nodes their way to packages, or take it away.

    \b
    Example: kinemill sandbox proxy off
    """
    from kinemill.control.sandbox import faults

    faults.proxy(_open(name), on=state == "on")


@sandbox.group()
def gpu() -> None:
    """Change the stub GPUs of a node while things run.

    Example: kinemill sandbox gpu set n1 gpu3.ecc.volatile.uncorrected=2
    """


@gpu.command("set")
@_NAME
@click.argument("node")
@click.argument("changes", nargs=-1, required=True)
def gpu_set(name: str | None, node: str, changes: tuple[str, ...]) -> None:
    """Set KEY=VALUE on NODE; an empty VALUE takes the key back.

    \b
    Keys: count, driver, gpuN.ecc.volatile.uncorrected, gpuN.remap.pending, gpuN.recovery_action, gpuN.lost, ...,
    [gpuN.]return.nvmlFunction with a code, [gpuN.]hang.nvmlFunction with seconds.
    Exit: 0 set, 78 no such key.
    Example: kinemill sandbox gpu set n1 gpu3.lost=1
    """
    from kinemill.control.sandbox.standins import change_gpus

    pairs = dict(change.partition("=")[::2] for change in changes)
    change_gpus(_open(name).stand_ins(node), pairs)


@gpu.command("show")
@_NAME
@click.argument("node")
@_JSON
def gpu_show(name: str | None, node: str, as_json: bool) -> None:
    """Show the state of NODE's GPUs.

    \b
    Example: kinemill sandbox gpu show n1
    """
    from kinemill.control.sandbox.standins import read_state

    state = read_state(_open(name).stand_ins(node))
    _print(as_json, state, "\n".join(f"{key} {value}" for key, value in state.items()))


@gpu.command("library")
@_NAME
@click.argument("node")
@click.argument("variant", type=click.Choice(["whole", "partial", "empty", "absent"]))
def gpu_library(name: str | None, node: str, variant: str) -> None:
    """Swap NODE's stub library: an old driver, a file of 0 bytes, none at all.

    \b
    Example: kinemill sandbox gpu library n1 empty
    """
    _open(name).use_library(node, variant)


@sandbox.command()
@_NAME
@click.argument("node")
@click.argument("text")
@click.option("--priority", default=4, show_default=True, help="syslog priority; 4 is a warning.")
def kmsg(name: str | None, node: str, text: str, priority: int) -> None:
    """Write TEXT into NODE's kernel log.

    \b
    Example: kinemill sandbox kmsg n1 "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."
    """
    from kinemill.control.sandbox.standins import kernel_message

    kernel_message(_open(name).stand_ins(node), text, priority=priority)


@sandbox.command()
@_NAME
@click.argument("node")
@click.argument("file")
@click.argument("value")
def sysfs(name: str | None, node: str, file: str, value: str) -> None:
    """Change a FILE of the sysfs that NODE's probes see.

    \b
    Example: kinemill sandbox sysfs n1 class/infiniband/mlx5_0/ports/1/state "1: DOWN"
    """
    from kinemill.control.sandbox.standins import set_sysfs

    set_sysfs(_open(name).stand_ins(node), file, value)


@sandbox.command()
@_NAME
@click.argument("node")
@click.argument("port", type=int)
def connect(name: str | None, node: str, port: int) -> None:
    """Join standard input and output to PORT of NODE: ssh's ProxyCommand.

    \b
    Example: ssh -o ProxyCommand="kinemill sandbox connect %h %p" root@n1
    """
    from kinemill.control.sandbox.connect import main

    sys.exit(main([str(_open(name).places.id), node, str(port)]))
