"""The modules of role adhoc, against a Slurm in memory, folders and texts."""

from __future__ import annotations

import dataclasses
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from kinemill.clock import FakeClock
from kinemill.contracts.fleet import DrainEvent, format_reason, parse_reason
from kinemill.contracts.slurm import JobInfo
from kinemill.slurm.fake import FakeSlurm
from support.ansible import ROLES, load_module

LIBRARY = ROLES / "adhoc" / "library"
nodes = load_module(LIBRARY / "kinemill_slurm_nodes.py")
venvs = load_module(LIBRARY / "kinemill_venvs.py")
prune = load_module(ROLES / "python_artifact" / "library" / "kinemill_venv_prune.py")
password = load_module(LIBRARY / "kinemill_slurmdbd_password.py")
look = load_module(LIBRARY / "kinemill_support_look.py")
pack = load_module(LIBRARY / "kinemill_support_pack.py")
uninstall = load_module(LIBRARY / "kinemill_uninstall.py")

AGENT = format_reason(DrainEvent("gpu.ecc", "T", "ecc_vol_unc", "00000001", "gpu3"))


@pytest.fixture
def slurm() -> FakeSlurm:
    return FakeSlurm(FakeClock(), ["n1", "n2", "n3"])


def asked(state: str = "drained", **more: Any) -> dict[str, Any]:
    return {
        "state": state, "code": "drain", "text": "anna: fan swap", "keep": False, "event": "", "unknown_ok": False,
        "wait_s": 10, **more,
    }  # fmt: skip


# ---- drains


def test_a_drain_carries_the_contracts_reason_and_can_be_told_from_an_agents(slurm: FakeSlurm) -> None:
    done = nodes.drain(slurm, ["n1", "n2"], asked())
    event = parse_reason(slurm.node_table["n1"].reason)
    assert event == DrainEvent("operator", "H", "drain", done.event, "anna: fan swap")
    assert (done.changed, done.drained) == (True, ["n1", "n2"])
    assert slurm.node_table["n3"].reason == ""


def test_the_same_drain_again_changes_nothing(slurm: FakeSlurm) -> None:
    first = nodes.drain(slurm, ["n1"], asked())
    again = nodes.drain(slurm, ["n1"], asked())
    assert (again.changed, again.event) == (False, first.event)


@pytest.mark.parametrize("reason", ["do not touch", AGENT, "Prolog error"])
def test_somebody_elses_drain_is_refused_and_then_none_is_drained(slurm: FakeSlurm, reason: str) -> None:
    slurm.drain("n2", reason)
    with pytest.raises(nodes.RefusedError, match=r"none was drained.*n2"):
        nodes.drain(slurm, ["n1", "n2"], asked())
    assert slurm.node_table["n1"].reason == ""
    assert slurm.node_table["n2"].reason == reason


def test_for_a_boot_somebody_elses_drain_is_kept(slurm: FakeSlurm) -> None:
    slurm.drain("n2", "do not touch")
    done = nodes.drain(slurm, ["n2"], asked(code="reboot", keep=True))
    assert (done.changed, done.event, done.kept) == (False, "", {"n2": "do not touch"})


def test_a_node_of_unknown_state_is_not_touched(slurm: FakeSlurm) -> None:
    slurm.node_table["n1"] = dataclasses.replace(slurm.node_table["n1"], states=frozenset({"UNKNOWN"}))
    with pytest.raises(nodes.RefusedError, match="unclear"):
        nodes.drain(slurm, ["n1"], asked())
    with pytest.raises(nodes.RefusedError, match="does not know n9"):
        nodes.drain(slurm, ["n9"], asked())


def test_a_dry_run_says_what_it_would_do(slurm: FakeSlurm) -> None:
    assert nodes.drain(slurm, ["n1"], asked(), dry=True).changed
    assert slurm.node_table["n1"].reason == ""


@pytest.mark.parametrize("reason", ["do not touch", AGENT, "Prolog error"])
def test_only_a_persons_drain_is_lifted(slurm: FakeSlurm, reason: str) -> None:
    nodes.drain(slurm, ["n1"], asked())
    slurm.drain("n2", reason)
    with pytest.raises(nodes.RefusedError, match=r"none was resumed.*n2"):
        nodes.resume(slurm, ["n1", "n2"], asked("resumed"))
    assert "DRAIN" in slurm.node_table["n1"].states
    done = nodes.resume(slurm, ["n1", "n3"], asked("resumed"))
    assert (done.resumed, done.kept) == (["n1"], {"n3": ""})
    assert slurm.node_table["n2"].reason == reason


def test_one_drain_can_be_named(slurm: FakeSlurm) -> None:
    event = nodes.drain(slurm, ["n1"], asked()).event
    with pytest.raises(nodes.RefusedError, match="not under drain 00000000"):
        nodes.resume(slurm, ["n1"], asked("resumed", event="00000000"))
    assert nodes.resume(slurm, ["n1"], asked("resumed", event=event)).changed


def test_slurms_own_words_after_ours_do_not_hide_ours(slurm: FakeSlurm) -> None:
    nodes.drain(slurm, ["n1"], asked())
    node = slurm.node_table["n1"]
    slurm.node_table["n1"] = dataclasses.replace(node, reason=f"{node.reason} : Not responding")
    assert nodes.resume(slurm, ["n1"], asked("resumed")).resumed == ["n1"]


def test_waiting_ends_with_the_jobs_or_names_them(slurm: FakeSlurm) -> None:
    idle = slurm.node_table["n1"]
    slurm.node_table["n1"] = dataclasses.replace(idle, states=frozenset({"MIXED", "DRAIN"}))
    slurm.job_table[7] = JobInfo(7, "RUNNING", user="kim", nodes=("n1",))
    slurm.job_table[6] = JobInfo(6, "COMPLETED", user="old", nodes=("n1",))

    def wait(on_sleep: Any) -> Any:
        now = [0.0]

        def sleep(seconds: float) -> None:
            now[0] += seconds
            on_sleep()

        return nodes.wait(slurm, ["n1"], asked("idle"), clock=lambda: now[0], sleep=sleep)

    with pytest.raises(nodes.RefusedError, match=r"after 10 s still not idle: n1 .*jobs there: 7 of kim$"):
        wait(lambda: None)
    wait(lambda: slurm.node_table.update(n1=idle))


# ---- versions


def version(root: Path, name: str, stamp: int) -> None:
    (root / name).mkdir(parents=True)
    marker = root / name / ".kinemill-venv.json"
    marker.write_text("{}")
    os.utime(marker, (stamp, stamp))


def test_previous_is_what_is_recorded_else_the_only_other(tmp_path: Path) -> None:
    for stamp, name in enumerate(("1+a", "2+b"), 1):
        version(tmp_path, name, stamp)
    (tmp_path / "current").symlink_to("2+b")
    assert venvs.look(tmp_path) == {"versions": ["2+b", "1+a"], "current": "2+b", "previous": "1+a"}
    version(tmp_path, "3+c", 3)
    assert venvs.look(tmp_path)["previous"] == ""
    (tmp_path / "previous").symlink_to("1+a")
    assert venvs.look(tmp_path)["previous"] == "1+a"
    assert venvs.look(tmp_path / "none") == {"versions": [], "current": "", "previous": ""}


def test_the_previous_version_is_never_pruned(tmp_path: Path) -> None:
    for stamp, name in enumerate(("1+a", "2+b", "3+c", "4+d"), 1):
        version(tmp_path, name, stamp)
    (tmp_path / "current").symlink_to("4+d")
    (tmp_path / "previous").symlink_to("1+a")
    assert [path.name for path in prune.removable(tmp_path, 2)] == ["2+b", "3+c"]


# ---- the database's password

CONF = "AuthType=auth/munge\nStorageUser=slurm\nStoragePass = old pass 1\nStorageLoc=db\n"


def database(said: list[str], hosts: str = "localhost\n") -> Any:
    def sql(text: str) -> str:
        said.append(text)
        return hosts if text.startswith("SELECT") else ""

    return sql


def test_database_and_file_get_the_same_new_password(tmp_path: Path) -> None:
    path = tmp_path / "slurmdbd.conf"
    path.write_text(CONF)
    path.chmod(0o640)
    said: list[str] = []
    assert password.rotate(path, database(said, "localhost\n%\n"))
    new = password.settings(path.read_text())["storagepass"]
    assert len(new) == 48
    assert said[1] == "".join(f"ALTER USER 'slurm'@'{h}' IDENTIFIED BY '{new}';\n" for h in ("localhost", "%"))
    assert path.read_text() == CONF.replace("old pass 1", new)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_without_a_password_or_with_a_database_elsewhere_nothing_is_done(tmp_path: Path) -> None:
    path = tmp_path / "slurmdbd.conf"
    said: list[str] = []
    path.write_text("StorageUser=slurm\n")
    assert not password.rotate(path, database(said))
    for text, match in (
        (CONF + "StorageHost=db1\n", "runs on db1"),
        (CONF.replace("=slurm", "=sl'urm"), "not handled"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=match):
            password.rotate(path, database(said))
    assert said == []
    path.write_text(CONF)
    with pytest.raises(ValueError, match="no user slurm"):
        password.rotate(path, database(said, ""))
    assert path.read_text() == CONF


def test_a_file_that_cannot_be_written_gives_the_database_its_old_password_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "slurmdbd.conf"
    path.write_text(CONF)

    def full(*_: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr(password, "write", full)
    said: list[str] = []
    with pytest.raises(OSError, match="no space"):
        password.rotate(path, database(said))
    assert "IDENTIFIED BY 'old pass 1'" in said[-1]
    assert path.read_text() == CONF


# ---- the support bundle

HIDDEN = [
    "StoragePass=hunter2hunter2",
    "password: 's3cret value'",
    'KINEMILL_TOKEN="abcdef0123456789"',
    "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY",
    "Authorization: Bearer abcdefghijklmnop",
    "ALTER USER 'slurm'@'localhost' IDENTIFIED BY 'hunter2hunter2'",
    "postgresql://catalog:hunter2hunter2@db/catalog",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJyb290In0.c2lnbmF0dXJl",
    "MUNGE:AwQFAABUuB1c9mPp0bVh8Yd4f8g=:",
    "key AKIAIOSFODNN7EXAMPLE here",
    "ghp_abcdefghijklmnop1234",
    "munge.key " + "0123456789abcdef" * 16,
]
PARTS = [
    "hunter2",
    "s3cret",
    "abcdef0123456789",
    "wJalr",
    "abcdefghijklmnop",
    "b3Blbn",
    "eyJ",
    "AwQF",
    "AKIA",
    "0123456789abcdef",
]


@pytest.mark.parametrize("line", HIDDEN)
def test_whatever_looks_like_a_secret_goes(line: str) -> None:
    found = look.scrub(f"before\n{line}\nafter")
    assert not any(part in found for part in PARTS), found
    assert look.GONE in found
    assert found.startswith("before\n")
    assert found.endswith("\nafter")


def test_ordinary_lines_stay() -> None:
    text = (
        "slurmctld: Munge decode failed: Expired credential\n"
        "[2030-05-01T12:00:00] error: Node n1 has low real_memory size (1 < 2)\n"
        "Reason=kinemill1|gpu.ecc|T|ecc_vol_unc|9f31c2aa|gpu3 dram=1\n"
        "AuthType=auth/munge\nTokens of no meaning\nboot 07c42e75-774e-4c56-b56c-fb8d6ac27d04\n"
    )
    assert look.scrub(text) == text


def test_what_is_secret_on_the_host_goes_wherever_it_stands(tmp_path: Path) -> None:
    (tmp_path / "munge.key").write_text("zq9" * 30)
    (tmp_path / "slurmdbd.conf").write_text("StorageUser=slurm\nStoragePass=plainword\n")
    (tmp_path / "x.env").write_text("KINEMILL_THING='quietvalue'\nSHORT=on\n")
    known = look.secrets_here([tmp_path / "munge.key"], [tmp_path / "slurmdbd.conf"], [tmp_path / "x.env"])
    found = look.scrub(f"a {'zq9' * 30} b plainword c quietvalue d {('zq9' * 30)[:32]} on", known)
    assert found == f"a {look.GONE} b {look.GONE} c {look.GONE} d {look.GONE} on"


def test_links_and_what_is_not_there_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("1\n2\n3\n")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert [look.tail(tmp_path / name, 2) for name in ("real", "link", "none")] == ["2\n3", "", ""]


def test_no_key_password_or_environment_file_is_ever_collected(tmp_path: Path) -> None:
    places = {name: str(tmp_path) for name in ("log_dir", "config_dir", "state_dir", "etc_dir", "run_dir")}
    for name in ("slurmdbd.conf", "munge.key", "a.env", "agents.toml", "slurm.conf", "slurmctld.log"):
        (tmp_path / name).write_text("x")
    read = {path.name for path in look.files(places).values()}
    assert {"agents.toml", "slurm.conf", "slurmctld.log"} <= read
    assert not read & {"slurmdbd.conf", "munge.key", "a.env"}


def test_the_bundle_is_its_owners_alone_and_nothing_is_written_over(tmp_path: Path) -> None:
    path = pack.pack(tmp_path / "support", "sandbox", {"n1": {"logs/a.log": "text"}, "ctl": {"b": "x"}}, now=0)
    assert path.name == "sandbox-19700101T000000Z.tar.gz"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as tar:
        assert tar.getnames() == ["sandbox-19700101T000000Z/ctl/b", "sandbox-19700101T000000Z/n1/logs/a.log"]
    with pytest.raises(FileExistsError):
        pack.pack(tmp_path / "support", "sandbox", {}, now=0)
    with pytest.raises(ValueError, match="no name for a bundle"):
        pack.pack(tmp_path / "support", "evil", {"n1": {"../x": ""}}, now=0)
    assert [path.name for path in (tmp_path / "support").iterdir()] == ["sandbox-19700101T000000Z.tar.gz"]


# ---- uninstall


def site(tmp_path: Path) -> dict[str, Any]:
    names = ("config_dir", "opt_dir", "etc_dir", "state_dir", "run_dir", "units_dir", "tmpfiles_dir")
    for name in names:
        (tmp_path / name).mkdir()
    return {name: str(tmp_path / name) for name in names} | {"also": [], "include": ""}


def test_only_our_files_beside_a_vendors_hooks_go_and_its_include_stays(tmp_path: Path) -> None:
    asked = site(tmp_path)
    folder = tmp_path / "config_dir" / "prolog.d"
    folder.mkdir()
    (folder / "10-vendor").write_text("#!/bin/sh\necho '# Written by Ansible (role slurm_hooks).'\n")
    (folder / "50-kinemill").write_text("#!/bin/sh\n# Written by Ansible (role slurm_hooks). More.\nexit 0\n")
    (folder / "60-link").symlink_to(folder / "50-kinemill")
    include = tmp_path / "config_dir" / "site.conf"
    include.write_text("# Written by Ansible (role slurm_controller). More.\nProlog=/opt/kinemill/hooks/prolog\n")
    include.chmod(0o640)
    asked["include"] = str(include)
    assert uninstall.take_hooks(asked, dry=True) == [str(folder / "50-kinemill"), str(include)]
    assert uninstall.take_hooks(asked, dry=False) == [str(folder / "50-kinemill"), str(include)]
    assert sorted(path.name for path in folder.iterdir()) == ["10-vendor", "60-link"]
    assert include.read_text() == "# Written by Ansible (role slurm_controller). More.\n"
    assert stat.S_IMODE(include.stat().st_mode) == 0o640
    assert uninstall.take_hooks(asked, dry=False) == []


def test_an_included_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    asked = site(tmp_path)
    include = tmp_path / "config_dir" / "site.conf"
    include.write_text("Prolog=/theirs\n")
    assert uninstall.take_hooks({**asked, "include": str(include)}, dry=False) == []
    assert include.read_text() == "Prolog=/theirs\n"


def test_the_rest_goes_and_the_key_and_strangers_stay(tmp_path: Path) -> None:
    asked = site(tmp_path)
    (tmp_path / "opt_dir" / "agents" / "1+a").mkdir(parents=True)
    (tmp_path / "opt_dir" / "agents" / "current").symlink_to("1+a")
    (tmp_path / "state_dir" / "agents").mkdir()
    (tmp_path / "state_dir" / "munge.key").write_text("k")
    (tmp_path / "etc_dir" / "agents.toml").write_text("")
    for name in ("kinemill-node-check.service", "kinemill-node-check.timer", "slurmd.service"):
        (tmp_path / "units_dir" / name).write_text("")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("")
    (tmp_path / "run_dir").rmdir()
    (tmp_path / "run_dir").symlink_to(outside)
    said: list[list[str]] = []
    assert uninstall.take_rest(asked, said.append, dry=False)
    assert said[0] == ["disable", "--now", "kinemill-node-check.timer", "kinemill-node-check.service"]
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()) == [
        "outside/keep",
        "state_dir/munge.key",
        "units_dir/slurmd.service",
    ]
    assert not (tmp_path / "opt_dir").exists()
    assert uninstall.take_rest(asked, said.append, dry=False) == []


def test_a_place_that_cannot_be_ours_is_refused() -> None:
    places = dict.fromkeys(("opt_dir", "etc_dir", "state_dir", "units_dir", "tmpfiles_dir"), "/nowhere/x")
    with pytest.raises(ValueError, match="no place of ours"):
        uninstall.ours({**places, "run_dir": "/"})
