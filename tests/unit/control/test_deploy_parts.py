"""What kinemill deploy knows before it does anything: remedies, exit codes, places, versions, answers of nodes."""

from __future__ import annotations

import datetime
import stat
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kinemill.contracts import ExitCode
from kinemill.control.deploy import reach
from kinemill.control.deploy.lock import lock_name
from kinemill.control.deploy.places import RunFolder, find_inventory, find_repo, prune, work_folder
from kinemill.control.deploy.preflight import judge_versions, needed_collections
from kinemill.control.deploy.reach import Answers, deadline_s, families, parse_look
from kinemill.control.deploy.reading import Target, encrypted_files, judge_secrets
from kinemill.control.deploy.record import Failure, Finding, HostLine, RoleTime, RunRecord, exit_code
from kinemill.control.deploy.remedy import explain
from kinemill.control.deploy.report import bars, page
from kinemill.control.deploy.show import summary
from kinemill.control.settings import DeploySettings
from kinemill.errors import EnvironmentFault, UsageError
from kinemill.records import dumps, loads

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
NOW_S = 1_796_000_000.0


# ---- remedies


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Incorrect sudo password", "sudo"),
        ("Missing sudo password", "sudo"),
        ("sudo: a password is required", "sudo"),
        ("Timeout (12s) waiting for privilege escalation prompt: ", "sudo"),
        ("researcher is not in the sudoers file.", "sudo"),
        (
            "Failed to connect to the host via ssh: ssh: connect to host 10.0.0.9 port 22: Connection refused",
            "unreachable",
        ),
        ("Failed to connect to the host via ssh: ssh: connect to host a port 22: No route to host", "unreachable"),
        ("Failed to connect to the host via ssh: ssh: connect to host a port 22: Connection timed out", "unreachable"),
        ("Failed to connect to the host via ssh: Connection reset by 10.0.0.9 port 22", "unreachable"),
        ("Failed to connect to the host via ssh: mux_client_request_session: read from master failed", "unreachable"),
        (
            "Failed to connect to the host via ssh: ssh: Could not resolve hostname n2: Name or service not known",
            "name",
        ),
        ("Failed to connect to the host via ssh: root@n1: Permission denied (publickey,password).", "login"),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @ Host key verification failed.", "host-key"),
        ("E: Failed to fetch http://mirror.example/pool/x.deb  Connection failed [IP: 10.0.0.1 80]", "packages"),
        ("Failed to update apt cache: unknown reason", "packages"),
        ("Temporary failure resolving 'mirror.example'", "packages"),
        ("No package matching 'munge' is available", "no-package"),
        ("E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 812 (apt-get)", "packages-busy"),
        ("tar: write error: No space left on device", "disk"),
        ("OSError: [Errno 28] No space left on device: '/tmp/x'", "disk"),
        ("/bin/sh: 1: /usr/bin/python3: not found", "python"),
        ("Attempting to decrypt but no vault secrets found.", "vault"),
    ],
)
def test_a_known_message_has_its_remedy(message: str, kind: str) -> None:
    found = explain(message)
    assert found is not None
    assert found.kind == kind
    assert found.action


def test_an_unknown_message_has_none() -> None:
    assert explain("slurmctld did not come up") is None


# ---- exit codes


def failure(*, transient: bool = False, tolerated: bool = False) -> Failure:
    return Failure("n1", "base", "t", "f:1", "failed", "m", transient=transient, tolerated=tolerated)


@pytest.mark.parametrize(
    ("findings", "failures", "well", "code"),
    [
        ([], [], True, ExitCode.OK),
        ([Finding("secret", "f", "m", fatal=False)], [failure(tolerated=True)], True, ExitCode.OK),
        ([Finding("inventory", "f", "m"), Finding("reach", "n", "m", transient=True)], [], False, ExitCode.CONFIG),
        ([Finding("secret", "f", "m")], [], False, ExitCode.CONFIG),
        ([Finding("version", "f", "m")], [], False, ExitCode.CONFIG),
        ([Finding("reach", "n", "m", transient=True)], [], False, ExitCode.TRANSIENT),
        ([Finding("reach", "n", "m", transient=True), Finding("node", "n", "m")], [], False, ExitCode.FINDING),
        ([], [failure(transient=True), failure(tolerated=True)], False, ExitCode.TRANSIENT),
        ([], [failure(transient=True), failure()], False, ExitCode.FINDING),
        ([], [], False, ExitCode.FINDING),
    ],
)
def test_exit_codes(findings: list[Finding], failures: list[Failure], well: bool, code: ExitCode) -> None:
    assert exit_code(findings, failures, ended_well=well) == code


# ---- places


def a_repo(path: Path, *inventories: str) -> Path:
    (path / "roles").mkdir(parents=True)
    (path / "site.yml").write_text("[]\n")
    for name in inventories:
        (path / "inventories" / name).mkdir(parents=True)
        (path / "inventories" / name / "hosts.yml").write_text("all:\n")
    return path


def test_repo_and_inventory_are_found_from_below(tmp_path: Path) -> None:
    # given a repository with two inventories, and a folder inside it
    repo = a_repo(tmp_path / "repo", "acme", "sandbox")
    below = repo / "docs" / "deep"
    below.mkdir(parents=True)
    # then names and paths lead to the same place
    assert find_repo(below) == repo
    assert find_inventory("acme", repo, here=below) == repo / "inventories" / "acme"
    assert find_inventory("inventories/acme", repo, here=repo) == repo / "inventories" / "acme"


def test_a_wrong_inventory_is_told_the_nearest(tmp_path: Path) -> None:
    repo = a_repo(tmp_path / "repo", "acme", "sandbox")
    with pytest.raises(UsageError, match="did you mean sandbox"):
        find_inventory("sandbx", repo, here=tmp_path)
    with pytest.raises(UsageError, match="there are: acme, sandbox"):
        find_inventory("zzz", repo, here=tmp_path)
    with pytest.raises(UsageError, match="--repo"):
        find_repo(tmp_path)


def test_a_run_folder_is_private_and_two_in_one_second_differ(tmp_path: Path) -> None:
    # given two runs in the same second
    first = RunFolder.make(tmp_path / "runs", "acme", NOW)
    second = RunFolder.make(tmp_path / "runs", "acme", NOW)
    second.write("run.json", "{}")
    log = second.open("output.txt")
    log.add("one\n")
    log.add("two\n")
    log.close()
    second.point_latest()
    # then each has its folder, which only its owner can enter, and `latest` is the newer one
    assert first.path != second.path
    for path in (tmp_path / "runs", second.path.parent, second.path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in second.path.iterdir()} == {0o600}
    assert (second.path / "output.txt").read_text() == "one\ntwo\n"
    assert (second.path.parent / "latest").resolve() == second.path


def test_a_run_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(EnvironmentFault, match="runs"):
        RunFolder.make(tmp_path / "runs", "acme", NOW)


def test_only_the_newest_runs_stay(tmp_path: Path) -> None:
    # given five runs and a folder of somebody else's making
    runs = [RunFolder.make(tmp_path, "acme", NOW + datetime.timedelta(hours=hour)).path for hour in range(5)]
    (tmp_path / "acme" / "notes").mkdir()
    runs[-1].parent.joinpath("latest").symlink_to(runs[-1].name)
    # when two are to stay
    gone = prune(tmp_path, "acme", 2)
    # then the oldest are gone, and nothing else
    assert gone == [path.name for path in runs[:3]]
    assert [path.exists() for path in runs] == [False, False, False, True, True]
    assert (tmp_path / "acme" / "notes").is_dir()


def test_the_work_folder_is_private(tmp_path: Path) -> None:
    work = work_folder({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert work.parent == tmp_path
    assert stat.S_IMODE(work.stat().st_mode) == 0o700


def test_settings_refuse_nonsense() -> None:
    with pytest.raises(ValueError, match="keep_runs"):
        DeploySettings(keep_runs=0)


def test_the_lock_is_named_for_what_is_connected_to() -> None:
    assert lock_name("acme", ["a:22", "b:22"]) == lock_name("acme", ["b:22", "a:22", "a:22"])
    assert lock_name("acme", ["a:22"]) != lock_name("acme", ["b:22"])
    assert "/" not in lock_name("../../etc/passwd", ["a:22"])


# ---- versions


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"ansible-core": "2.18.9"}, "2.18.9"),
        ({"ansible-core": "2.20.0"}, "2.20.0"),
        ({"ansible-core": ""}, "not installed"),
        ({"ansible-runner": ""}, "not installed"),
        ({"python": "3.10.4"}, "too old"),
    ],
)
def test_versions_that_were_not_tested_are_refused(changed: dict[str, str], told: str) -> None:
    good = {"ansible-core": "2.19.14", "ansible-runner": "2.4.3", "python": "3.11.2"}
    assert judge_versions(good) == []
    assert [told in finding.message for finding in judge_versions({**good, **changed})] == [True]


def test_collections_are_found_where_tasks_name_them(tmp_path: Path) -> None:
    # given a role that uses a module of a collection, and a file that only looks so
    tasks = tmp_path / "roles" / "r" / "tasks"
    tasks.mkdir(parents=True)
    (tasks / "main.yml").write_text(
        "---\n- name: Mount\n  ansible.posix.mount:\n    path: /x\n- ansible.builtin.debug:\n"
    )
    (tmp_path / "roles" / "r" / "meta").mkdir()
    (tmp_path / "roles" / "r" / "meta" / "consumers.yml").write_text("consumers:\n  slurm.conf.j2: x\n")
    # then it is the only one that is needed
    assert needed_collections(tmp_path) == {"ansible.posix": "roles/r/tasks/main.yml:3"}


# ---- secrets


@pytest.mark.parametrize("value", ["changeme", "CHANGE_ME_please", "<password>", "TODO", "xxxx", "", "your-password"])
def test_a_placeholder_is_no_secret(value: str) -> None:
    found = judge_secrets("slurm_db_password", value, "vault.yml:3", encrypted=True)
    assert found is not None
    assert found.fatal
    assert "placeholder" in found.message


def test_a_secret_in_plain_text_is_warned_of_without_its_value() -> None:
    found = judge_secrets("ansible_become_password", "hunter2", "all.yml:1", encrypted=False)
    assert found is not None
    assert not found.fatal
    assert "hunter2" not in str(found)
    assert judge_secrets("ansible_become_password", "hunter2", "all.yml:1", encrypted=True) is None
    assert judge_secrets("base_ssh_passwords_allowed", "changeme", "all.yml:1", encrypted=False) is None
    assert judge_secrets("api_token", "{{ lookup('env', 'T') }}", "all.yml:1", encrypted=False) is None


def test_encrypted_files_are_found(tmp_path: Path) -> None:
    (tmp_path / "group_vars" / "all").mkdir(parents=True)
    whole = tmp_path / "group_vars" / "all" / "whole.yml"
    whole.write_text("$ANSIBLE_VAULT;1.1;AES256\n6162\n")
    inline = tmp_path / "group_vars" / "all" / "inline.yml"
    inline.write_text("a: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6162\n")
    sops = tmp_path / "group_vars" / "all" / "x.sops.yml"
    sops.write_text("a: ENC[AES256_GCM,data:x]\n")
    (tmp_path / "hosts.yml").write_text("all:\n")
    assert encrypted_files([tmp_path]) == ([inline, whole], [sops])


# ---- what nodes answer

LOOK = "kinemill_look=1\nhostname=n1\nclock_s=1796000003\nfree_kb=4096000\naddresses=10.0.0.11 fd00::11 \npython=3.11\n"


def event(kind: str, task: str, host: str = "n1", **result: Any) -> dict[str, Any]:
    return {"event": f"runner_on_{kind}", "event_data": {"host": host, "task": task, "res": result}}


@pytest.fixture
def answers() -> Answers:
    return Answers({name: Target(name, f"10.0.0.{index}") for index, name in enumerate(("n1", "n2"), 11)})


def test_a_sound_node_has_no_finding(answers: Answers) -> None:
    answers.feed(event("ok", "Log in", stdout=f"Welcome to n1!\r\nkey=value\r\n{LOOK}"), now_s=NOW_S)
    answers.feed(event("ok", "Become root", stdout="0"), now_s=NOW_S)
    assert answers.findings == []
    look = answers.looks["n1"]
    assert (look.hostname, look.free_mb, look.python) == ("n1", 4000, "3.11")
    assert look.addresses == ("10.0.0.11", "fd00::11")


@pytest.mark.parametrize(
    ("line", "instead", "told", "fatal"),
    [
        ("addresses=10.0.0.11 fd00::11 ", "addresses=fd00::11 fe80::1", "IPv6 addresses only", True),
        ("free_kb=4096000", "free_kb=0", "/ is full", True),
        ("python=3.11\n", "", "no python3", True),
        ("clock_s=1796000003", "clock_s=1795999000", "-1000 s off", False),
    ],
)
def test_a_node_in_trouble_is_told(answers: Answers, line: str, instead: str, told: str, fatal: bool) -> None:
    answers.feed(event("ok", "Log in", stdout=LOOK.replace(line, instead)), now_s=NOW_S)
    assert [(told in finding.message, finding.fatal) for finding in answers.findings] == [(True, fatal)]


def test_a_full_disk_is_told_once(answers: Answers) -> None:
    # given a node whose disk is full, on which no module can run for that reason
    answers.feed(event("ok", "Log in", stdout=LOOK.replace("free_kb=4096000", "free_kb=12")), now_s=NOW_S)
    answers.feed(event("failed", "Look at the node", msg="[Errno 28] No space left on device"), now_s=NOW_S)
    answers.feed(event("failed", "Refuse", msg=["n1: / has 0 MiB free, 1024 are needed"]), now_s=NOW_S)
    assert len(answers.findings) == 1


def test_a_wrong_sudo_password_is_told_in_words(answers: Answers) -> None:
    answers.feed(event("failed", "Become root", msg="Task failed: Incorrect sudo password"), now_s=NOW_S)
    (found,) = answers.findings
    assert found.message == "the sudo password is wrong"
    assert not found.transient


def test_contradictions_come_line_by_line(answers: Answers) -> None:
    said = ["n1: the node calls itself 'x', the inventory calls it 'n1'; rename one", "munge was here before us"]
    answers.feed(event("failed", "Refuse a node", msg=said), now_s=NOW_S)
    assert [finding.message for finding in answers.findings] == [said[0].removeprefix("n1: "), said[1]]


def test_unreachable_nodes_are_told_apart(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a node that refuses, and one that has only an IPv6 address to which there is no way
    monkeypatch.setattr(reach, "_resolve", lambda name: ["fd00::12"] if name == "10.0.0.12" else [name])
    answers.feed(event("unreachable", "Log in", msg="ssh: connect to host: Connection refused"), now_s=NOW_S)
    answers.feed(event("unreachable", "Log in", "n2", msg="connect to host: Network is unreachable"), now_s=NOW_S)
    first, second = answers.findings
    assert "nothing listens on the ssh port" in first.message
    assert "only an IPv6 address" in second.message
    assert first.transient
    # and nobody is said to be silent
    answers.unanswered(60)
    assert len(answers.findings) == 2


def test_silent_nodes_are_told(answers: Answers) -> None:
    answers.feed(event("ok", "Log in", stdout=LOOK), now_s=NOW_S)
    answers.unanswered(60)
    assert [(finding.where, finding.message) for finding in answers.findings] == [("n2", "did not answer within 60 s")]


def test_what_ansible_cannot_start_is_kept(answers: Answers) -> None:
    answers.feed({"event": "verbose", "stdout": "[ERROR]: Attempting to decrypt but no vault secrets found."}, now_s=0)
    assert "decrypt" in answers.complaint


def test_addresses_and_deadlines() -> None:
    assert families(["127.0.0.1", "fe80::1", "::1", "not one"]) == set()
    assert families(["10.0.0.1", "2001:db8::1"]) == {4, 6}
    assert (deadline_s(1, 60), deadline_s(50, 60), deadline_s(51, 60), deadline_s(1000, 60)) == (60, 60, 120, 1200)
    assert parse_look("Permission denied").python == ""


# ---- what a person reads


@pytest.fixture
def record() -> RunRecord:
    return RunRecord(
        inventory="acme<script>",
        playbook="site.yml",
        state="failed",
        exit_code=1,
        started=NOW.isoformat(),
        findings=(Finding("secret", "vault.yml:3", "x stands in plain text", fatal=False),),
        hosts={"n1": HostLine(ok=3, changed=1), "n2": HostLine(ok=1, failed=1), "n3": HostLine()},
        roles=(RoleTime("base", 12.5, 8, 2), RoleTime("munge", 0.0, 1)),
        failures=(Failure("n2", "base", "Do <it>", "f.yml:3", "failed", "a & b", "a disk is full", "make room"),),
        folder="/runs/acme/1",
    )


def test_the_page_is_whole_and_escapes_what_it_shows(record: RunRecord) -> None:
    # given a record with characters that mean something in HTML
    text = page(record)

    # then every tag is closed in order, nothing is loaded from elsewhere, and no script is in it
    class Checker(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []
            self.tags: list[str] = []
            self.links: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.tags.append(tag)
            self.links += [value or "" for name, value in attrs if name in ("src", "href")]
            if tag not in ("meta", "br"):
                self.open.append(tag)

        def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    assert checker.links == []
    assert "script" not in checker.tags
    assert checker.tags.count("rect") == 2
    assert "Do &lt;it&gt;" in text
    assert "make room" in text
    # and hosts in trouble come first
    assert text.index("<td>n2</td>") < text.index("<td>n3</td>") < text.index("<td>n1</td>")


def test_a_longer_role_has_a_longer_bar() -> None:
    picture = bars([RoleTime("a", 10.0), RoleTime("b", 5.0)])
    first, second = (float(part.split('"')[0]) for part in picture.split('width="')[1:3])
    assert first == pytest.approx(2 * second)


def test_the_summary_says_what_failed_and_where_the_report_is(record: RunRecord) -> None:
    text = summary(record)
    assert "n2: base: Do <it> (f.yml:3) failed" in text
    assert "that is: a disk is full; make room" in text
    assert "warning: secret" in text
    assert text.endswith("report: /runs/acme/1/report.html")


def test_a_record_survives_its_file(record: RunRecord) -> None:
    assert loads(RunRecord, dumps(record)) == record
