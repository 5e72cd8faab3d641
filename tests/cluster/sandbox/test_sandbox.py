"""The test bed itself: nodes are real, apart from this machine, and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinemill.control.sandbox import anchor, faults, images, standins
from kinemill.control.sandbox.box import Sandbox, names, sweep
from kinemill.control.sandbox.furnish import NodeSpec
from kinemill.control.sandbox.names import BRIDGE, GATEWAY, Places
from kinemill.errors import ConfigError, ConflictError, DeadlineError, ExternalError, NotFoundError, StateError
from support.cluster import need_sandbox, wait_for

IMAGE = "bookworm-slurm"


def tag(word: str) -> str:
    """A sandbox's name that no other run has."""
    return f"{word}{os.getpid() % 10**6}"


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    need_sandbox()
    before = host_network()
    found = Sandbox.up([NodeSpec("n1", IMAGE), NodeSpec("n2", IMAGE, disk="256M")], name=tag("a"), owned=True)
    after = host_network()
    assert ours(after) - ours(before) == set()
    assert after[-1] == before[-1], "the switch for forwarding was moved"
    yield found
    found.down()
    assert nothing_stays(found.places)


def host_network() -> list[str]:
    """Interfaces, addresses and routes of this machine, a line each; its switch for forwarding comes last."""
    lines: list[str] = []
    for command in (["ip", "-brief", "link"], ["ip", "-brief", "addr"], ["ip", "route"]):
        lines += subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [*lines, Path("/proc/sys/net/ipv4/ip_forward").read_text()]


def ours(network: list[str]) -> set[str]:
    """Lines that name a test bed's bridge, its cards or its addresses; others may change theirs meanwhile."""
    marks = (BRIDGE, GATEWAY.rpartition(".")[0] + ".", "v-n1", "v-n2", "v-ctl")
    return {line for line in network if any(mark in line for mark in marks)}


def nothing_stays(places: Places) -> bool:
    """Whether no trace of a sandbox stays; a program that served an ssh session may take a moment to end."""
    try:
        return wait_for("no trace", lambda: not traces(places), deadline_s=60)
    except DeadlineError:
        assert traces(places) == []
        raise


def call(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program of this machine."""
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def traces(places: Places) -> list[str]:
    """Everything of a sandbox that this machine still shows."""
    found: list[str] = []
    if places.home.exists():
        found.append(str(places.home))
    group = f"{places.cgroup.parent.name}/{places.id}"
    for hierarchy in Path("/sys/fs/cgroup").iterdir():
        if (hierarchy / group).exists():
            found.append(str(hierarchy / group))
    found += [line for line in Path("/proc/self/mounts").read_text().splitlines() if f"{places.home}/" in line]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(str(places.home).encode() + b"/" in word for word in words):
            found.append(f"process {process.name}: {b' '.join(words).decode(errors='replace')}")
    found += [name for name, held in names().items() if held.id == places.id]
    return found


def test_nodes_are_machines_of_their_own(box: Sandbox) -> None:
    for node in box.nodes:
        assert box.exec(node, ["hostname"]).stdout.strip() == node
        assert box.exec(node, ["systemctl", "is-active", "ssh"]).stdout.strip() == "active"
    wait_for("n2 from n1", lambda: answers(box, "n1", "n2"))


def answers(box: Sandbox, node: str, other: str) -> bool:
    """Whether a node answers another; one packet may be late on a busy machine."""
    return box.exec(node, ["ping", "-c1", "-W2", other], check=False).returncode == 0


def test_nodes_reach_nothing_but_each_other_and_packages(box: Sandbox) -> None:
    # given a node, then it has no way out
    assert "default" not in box.exec("n1", ["ip", "route"]).stdout
    code = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=3)"
    assert "Network is unreachable" in box.exec("n1", ["python3", "-c", code], check=False).stderr
    # and the proxy fetches below its mirror only
    for path, status in (("/elsewhere/x", 403), ("/debian/../etc/passwd", 403), ("/debian/%2e%2e/x", 403)):
        assert _status(box, path) == status
    wait_for("a list of packages", lambda: _status(box, "/debian/dists/bookworm/InRelease") == 200)
    # and it can be taken away
    faults.proxy(box, on=False)
    wait_for("nobody", lambda: _status(box, "/debian/dists/bookworm/InRelease") is None)
    faults.proxy(box, on=True)
    wait_for("a list of packages", lambda: _status(box, "/debian/dists/bookworm/InRelease") == 200)


def _status(box: Sandbox, path: str) -> int | None:
    """Status of a request to the package proxy, None where nobody answers."""
    code = (
        "import http.client, sys\n"
        "c = http.client.HTTPConnection('10.77.0.1', 3142, timeout=240)\n"
        "try: c.request('GET', sys.argv[1]); print(c.getresponse().status)\n"
        "except ConnectionError: print('none')\n"
    )
    answer = box.exec("n1", ["python3", "-c", code, path], deadline_s=300).stdout.strip()
    return None if answer == "none" else int(answer)


def test_a_stock_ssh_gets_in_and_checks_whom_it_talks_to(box: Sandbox) -> None:
    config = box.places.ssh_config
    done = call("ssh", "-F", config, "n2", "hostname")
    assert done.stdout.strip() == "n2", done.stderr
    # given a node whose key is another one, then ssh refuses it
    text = config.read_text().replace(str(box.places.known_hosts), "/dev/null")
    strict = box.places.home / "strict"
    strict.write_text(text)
    done = call("ssh", "-F", strict, "n2", "hostname")
    assert done.returncode == 255
    strict.unlink()


def test_a_reboot_clears_what_hardware_forgets_and_keeps_the_rest(box: Sandbox) -> None:
    # given faults on a GPU, a kernel message, and a file on disk
    folder = box.stand_ins("n1")
    standins.change_gpus(
        folder,
        {
            "gpu3.ecc.volatile.uncorrected": "2",
            "gpu3.ecc.aggregate.uncorrected": "7",
            "gpu3.remap.uncorrectable": "1",
            "gpu3.remap.pending": "1",
            "gpu3.recovery_action": "2",
        },
    )
    standins.kernel_message(folder, "NVRM: Xid (PCI:0000:4b:00): 48, pid=1, DBE")
    assert "Xid" in box.exec("n1", ["cat", standins.KERNEL_LOG]).stdout
    box.exec("n1", ["sh", "-c", "echo kept >/srv/kept; echo lost >/run/lost"])
    # when the node reboots through its own systemd
    faults.reboot(box, "n1")
    # then the volatile part is gone and the rest stays
    state = standins.read_state(folder)
    assert state["gpu3.ecc.aggregate.uncorrected"] == "7"
    assert state["gpu3.remap.uncorrectable"] == "1"
    assert not {"gpu3.ecc.volatile.uncorrected", "gpu3.remap.pending", "gpu3.recovery_action"} & set(state)
    log = box.exec("n1", ["cat", standins.KERNEL_LOG]).stdout
    assert "Xid" not in log
    assert log.startswith("4,0,")
    assert box.exec("n1", ["cat", "/srv/kept"]).stdout == "kept\n"
    assert box.exec("n1", ["cat", "/run/lost"], check=False).returncode == 1


def test_a_power_cut_node_is_off_until_it_is_switched_on(box: Sandbox) -> None:
    box.exec("n2", ["sh", "-c", "echo here >/srv/mark; sync"])
    faults.cut(box, "n2")
    assert {node.name: node.state for node in box.status()}["n2"] == "off"
    with pytest.raises(StateError, match="kinemill sandbox on n2"):
        box.exec("n2", ["true"])
    box.on("n2")
    assert box.exec("n2", ["cat", "/srv/mark"]).stdout == "here\n"


def test_a_partition_drops_packets_and_heals(box: Sandbox) -> None:
    faults.partition(box, ["n2"])
    assert box.exec("n1", ["ping", "-c1", "-W1", "n2"], check=False).returncode == 1
    # the carrier is still there: the nodes are told nothing
    assert "LOWER_UP" in box.exec("n2", ["ip", "link", "show", "eth0"]).stdout
    faults.partition(box, ["n2"], heal=True)
    wait_for("n2 from n1", lambda: answers(box, "n1", "n2"))


def test_bandwidth_is_limited_both_ways(box: Sandbox) -> None:
    faults.shape(box, "n2", "1mbit")
    for device, where in (("eth0", ["nsenter", f"--net={box.places.node('n2')}/net"]), ("v-n2", ["env"])):
        shown = anchor.inside(box.places, [*where, "tc", "qdisc", "show", "dev", device]).stdout
        assert "tbf" in shown
        assert "1Mbit" in shown
    faults.shape(box, "n2", None)
    assert "tbf" not in anchor.inside(box.places, ["tc", "qdisc", "show", "dev", "v-n2"]).stdout


def test_a_full_disk_fills_the_node_and_not_this_machine(box: Sandbox) -> None:
    written = faults.fill_disk(box, "n2")
    assert 0 < written <= 256 << 20
    done = box.exec("n2", ["python3", "-c", "open('/srv/x', 'w').write('x' * 100000)"], check=False)
    assert "No space left on device" in done.stderr
    faults.free_disk(box, "n2")
    box.exec("n2", ["python3", "-c", "open('/srv/x', 'w').write('x' * 100000)"])


def test_the_clock_of_one_service_is_stepped(box: Sandbox) -> None:
    # given a service that writes the time down
    unit = "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/sh -c 'date +%%s >/run/time'\n"
    (box.root("n1") / "etc/systemd/system/teller.service").write_text(unit)
    # when its clock is stepped by a day
    faults.clock(box, "n1", ["teller"], 86400)
    told = int(box.exec("n1", ["cat", "/run/time"]).stdout)
    now = int(box.exec("n1", ["date", "+%s"]).stdout)
    # then it alone sees another time, and it can be put right
    assert 86000 < told - now <= 86400
    faults.clock(box, "n1", ["teller"], 0)
    assert abs(int(box.exec("n1", ["cat", "/run/time"]).stdout) - now) < 600


def test_hardware_stands_in_under_its_own_names(box: Sandbox) -> None:
    assert "nvme1" in box.exec("n1", ["smartctl", "--scan"]).stdout
    report = json.loads(box.exec("n1", ["smartctl", "--json", "--all", "/dev/nvme0"]).stdout)
    assert report["smart_status"]["passed"] is True
    assert box.exec("n1", ["smartctl", "--json", "--all", "/dev/nvme9"], check=False).returncode == 2
    assert json.loads(box.exec("n1", ["nvme", "smart-log", "/dev/nvme0n1"]).stdout)["media_errors"] == 0
    assert box.exec("n1", ["enroot", "version"]).stdout.strip() == "3.5.0"
    port = f"{standins.PROBE_ROOT}/sys/class/infiniband/mlx5_0/ports/1/state"
    assert box.exec("n1", ["cat", port]).stdout == "4: ACTIVE\n"
    standins.set_sysfs(box.stand_ins("n1"), "class/infiniband/mlx5_0/ports/1/state", "1: DOWN")
    assert box.exec("n1", ["cat", port]).stdout == "1: DOWN\n"
    # what is not pretended is the node's own
    assert "tmpfs" in box.exec("n1", ["cat", f"{standins.PROBE_ROOT}/proc/mounts"]).stdout
    # and a node cannot change its own hardware
    assert box.exec("n1", ["sh", "-c", f"echo >{port}"], check=False).returncode != 0


def test_the_stub_library_loads_in_a_node(box: Sandbox) -> None:
    code = (
        "import ctypes; l = ctypes.CDLL('libnvidia-ml.so.1'); n = ctypes.c_uint();"
        "print(l.nvmlInitWithFlags(0), l.nvmlDeviceGetCount_v2(ctypes.byref(n)), n.value)"
    )
    assert box.exec("n1", ["python3", "-c", code]).stdout == "0 0 8\n"
    box.use_library("n1", "empty")
    assert "file too short" in box.exec("n1", ["python3", "-c", code], check=False).stderr
    box.use_library("n1", "absent")
    assert "cannot open shared object" in box.exec("n1", ["python3", "-c", code], check=False).stderr
    box.use_library("n1", "whole")


def test_up_again_changes_nothing_and_adds_what_is_new(box: Sandbox) -> None:
    pids = {node: box.nspawn_pid(node) for node in box.nodes}
    again = Sandbox.up([NodeSpec("n1", IMAGE), NodeSpec("n2", IMAGE), NodeSpec("n3", IMAGE)], name=box.name)
    assert {node: again.nspawn_pid(node) for node in ("n1", "n2")} == pids
    wait_for("n3 from n1", lambda: answers(again, "n1", "n3"))


def test_two_sandboxes_have_the_same_addresses_and_do_not_meet(box: Sandbox) -> None:
    # given a second sandbox whose first node has the address of this one's first node
    other = Sandbox.up([NodeSpec("n1", IMAGE, hardware=None)], name=tag("b"), owned=True)
    try:
        assert other.address("n1") == box.address("n1")
        box.exec("n1", ["sh", "-c", "echo first >/srv/who"])
        other.exec("n1", ["sh", "-c", "echo second >/srv/who"])
        # then each is reached by its own name
        for one, word in ((box, "first"), (other, "second")):
            assert call("ssh", "-F", one.places.ssh_config, "n1", "cat", "/srv/who").stdout.strip() == word
    finally:
        other.down()
    assert nothing_stays(other.places)
    assert box.exec("n1", ["cat", "/srv/who"]).stdout == "first\n"


@pytest.mark.parametrize("again", [False, True], ids=["then-down", "then-up"])
def test_a_killed_up_can_be_taken_down_or_done_again(box: Sandbox, again: bool) -> None:
    # given `up`, killed in the middle of making nodes
    name = tag("k")
    kinemill = Path(sys.executable).parent / "kinemill"
    command = [kinemill, "sandbox", "up", "--name", name, "--nodes", "ctl,n1,n2", "--image", IMAGE]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    places = wait_for("a node of it", lambda: _with_node(name, process), every_s=0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert traces(places) != []
    # when it is done again, then the half-made nodes are made anew
    if again:
        done = call(*command, "--json")
        assert done.returncode == 0, done.stderr
        assert [node["state"] for node in json.loads(done.stdout)["nodes"]] == ["up", "up", "up"]
        found = Sandbox.open(name)
        assert call("ssh", "-F", found.places.ssh_config, "n2", "hostname").stdout == "n2\n"
        places = found.places
    # when it is taken down
    done = call(kinemill, "sandbox", "down", "--name", name, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["gone"] == [name]
    # then nothing is left, and the other one runs on
    assert nothing_stays(places)
    assert box.exec("n1", ["true"]).returncode == 0


def _with_node(name: str, process: subprocess.Popen[bytes]) -> Places | None:
    assert process.poll() is None, "up ended before it was killed"
    places = names().get(name)
    return places if places and (places.home / "nodes" / "ctl").is_dir() else None


def test_a_sandbox_whose_anchor_was_killed_is_swept(box: Sandbox) -> None:
    # given a sandbox whose anchor is dead while its node runs on
    other = Sandbox.up([NodeSpec("n1", IMAGE, hardware=None)], name=tag("s"), proxy=False)
    os.kill(anchor.anchor_pid(other.places), signal.SIGKILL)
    wait_for("its death", lambda: _gone(other))
    # then it cannot be used, and is swept with all it runs
    with pytest.raises(StateError, match="anchor is gone"):
        Sandbox.open(other.name)
    sweep()  # (or another run on this machine was first)
    assert nothing_stays(other.places)
    assert box.exec("n1", ["true"]).returncode == 0


def _gone(box: Sandbox) -> bool:
    try:
        anchor.anchor_pid(box.places)
    except StateError:
        return True
    return False


def test_a_sandbox_of_a_dead_owner_is_swept() -> None:
    need_sandbox()
    name = tag("o")
    code = (
        "from kinemill.control.sandbox.box import Sandbox; from kinemill.control.sandbox.furnish import NodeSpec;"
        f"box = Sandbox.up([NodeSpec('n1', {IMAGE!r}, hardware=None)], name={name!r}, proxy=False, owned=True);"
        "print(box.places.id)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    sweep()  # (or another run on this machine was first)
    assert int(done.stdout) not in {places.id for places in names().values()}
    assert name not in names()


def test_a_node_that_never_boots_shows_its_console() -> None:
    need_sandbox()
    name = tag("c")
    other = Sandbox.up([], name=name, proxy=False, owned=True)
    try:
        # given a node without an init
        spec = NodeSpec("n1", IMAGE, hardware=None)
        found = images.build(IMAGE)
        other._add([spec], {IMAGE: found}, wheelhouses=None, proxy=False)
        for init in ("sbin/init", "usr/lib/systemd/systemd", "bin/sh"):
            (other.root("n1") / init).unlink(missing_ok=True)
        # when it is switched on, then the error shows what the console said
        with pytest.raises((ExternalError, DeadlineError), match="console ends with"):
            other.on("n1")
    finally:
        other.down()


def test_the_command_line_does_what_the_functions_do(box: Sandbox) -> None:
    kinemill = Path(sys.executable).parent / "kinemill"

    def sandbox(*words: str, status: int = 0) -> str:
        done = call(kinemill, "sandbox", *words, "--name", box.name)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    shown = json.loads(sandbox("status", "--json"))
    assert {node["name"]: node["state"] for node in shown["nodes"]}["n1"] == "up"
    sandbox("gpu", "set", "n1", "gpu5.temperature=91")
    assert json.loads(sandbox("gpu", "show", "n1", "--json"))["gpu5.temperature"] == "91"
    sandbox("gpu", "set", "n1", "gpu5.temperature=")
    assert "no GPU state" in sandbox("gpu", "set", "n1", "gpu5.temprature=91", status=78)
    sandbox("kmsg", "n1", "NVRM: Xid 13")
    assert "Xid 13" in box.exec("n1", ["cat", standins.KERNEL_LOG]).stdout
    assert "Started ssh.service" in sandbox("logs", "n1", "--journal", "--lines", "9999")
    done = call(kinemill, "sandbox", "exec", "--name", box.name, "n1", "--", "sh", "-c", "hostname; exit 7")
    assert (done.returncode, done.stdout) == (7, "n1\n")
    # ssh by hand, through the same relay that Ansible uses
    proxy = f"ProxyCommand={kinemill} sandbox connect --name {box.name} %h %p"
    options = [
        "-F",
        "none",
        "-o",
        proxy,
        "-i",
        str(box.places.key),
        "-o",
        f"UserKnownHostsFile={box.places.known_hosts}",
    ]
    assert call("ssh", *options, "root@n1", "hostname").stdout == "n1\n"
    assert "no node 'n9'" in sandbox("connect", "n9", "22", status=1)


def test_a_node_is_not_taken_for_one_of_another_image(box: Sandbox) -> None:
    with pytest.raises(ConflictError, match=f"made from {IMAGE}, not trixie-slurm"):
        box._add([NodeSpec("n1", "trixie-slurm")], {}, wheelhouses=None, proxy=False)


def test_bad_names_are_refused(box: Sandbox) -> None:
    for name in ("", "../x", "N1", "x" * 13):
        with pytest.raises(ConfigError, match="a letter first"):
            Sandbox.up([NodeSpec(name or "-", IMAGE)], name=box.name)
    with pytest.raises(ConfigError, match="same name"):
        Sandbox.up([NodeSpec("n1", IMAGE), NodeSpec("n1", IMAGE)], name=box.name)
    with pytest.raises(NotFoundError, match="has no node 'n9'"):
        box.exec("n9", ["true"])
    with pytest.raises(NotFoundError, match="bring one up"):
        Sandbox.open("nowhere")
