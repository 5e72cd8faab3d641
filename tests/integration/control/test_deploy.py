"""`kinemill deploy` on hosts that are this machine: what it refuses, what it keeps, what it survives."""

from __future__ import annotations

import base64
import contextlib
import html
import json
import os
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.deploy_command import SECRET, Site, vaulted

MARK = """\
- name: Leave a mark
  ansible.builtin.copy:
    content: "{{ inventory_hostname }}\\n"
    dest: "{{ chore_marks }}/{{ inventory_hostname }}"
    mode: "0600"
"""
WAIT = """\
- name: Say that it waits
  ansible.builtin.copy: {content: "x", dest: "{{ chore_marks }}/waiting", mode: "0600"}
- name: Wait
  ansible.builtin.wait_for: {path: "{{ chore_marks }}/go", timeout: 600, sleep: 1}
- name: Say that it goes on
  ansible.builtin.copy: {content: "x", dest: "{{ chore_marks }}/done", mode: "0600"}
"""


def until(what: str, ready: Callable[[], bool], deadline_s: float = 120) -> None:
    """Wait; nothing here is about speed."""
    end_s = time.monotonic() + deadline_s
    while not ready():
        assert time.monotonic() < end_s, what
        time.sleep(0.1)


def processes_of(site: Site) -> list[str]:
    """Command lines of processes that work for a site."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(site.root.parent) in line:
                found.append(line)
    return found


@pytest.fixture
def ended() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that a test starts; none is left behind."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=300)


def test_no_secret_gets_out(tmp_path: Path) -> None:
    # given a vaulted secret, one in a file that is vaulted as a whole, and tasks that print, write and repeat them
    site = Site.make(
        tmp_path,
        """\
        - name: Print it
          ansible.builtin.debug: {msg: "it is {{ chore_password }} and {{ chore_list }}"}
        - name: Print it in base64
          ansible.builtin.debug: {msg: "{{ ('user:' ~ chore_password) | b64encode }}"}
        - name: Write it, with a difference
          ansible.builtin.copy: {content: "password={{ chore_password }}\\n", dest: "{{ chore_marks }}/c", mode: "0600"}
          diff: true
        - name: Note which commands run
          ansible.builtin.shell: ps -ww -eo args > {{ chore_marks }}/commands
        - name: Repeat it in an error
          ansible.builtin.command: {argv: [ls, "/{{ chore_password }}"]}
        """,
    )
    password = site.root.parent / "vault-password"
    password.write_text("the-vaults-own-password\n")
    site.write("inventories/acme/group_vars/all/vault.yml", vaulted(site, "chore_password", SECRET, password))
    whole = site.write("inventories/acme/group_vars/all/whole.yml", "chore_list: [second-secret-1, second-secret-2]\n")
    tool = Path(sys.executable).parent / "ansible-vault"
    subprocess.run([tool, "encrypt", "--vault-password-file", password, whole], check=True, capture_output=True)
    # when it runs, and the last task fails with the secret in its message
    code, out, err = site.run("--vault-password-file", str(password))
    # then that is told, without it
    assert code == 1, (out, err)
    assert "Repeat it in an error" in out
    assert (site.marks / "c").read_text() == f"password={SECRET}\n"
    kept = site.kept()
    forms = {
        SECRET,
        html.escape(SECRET),
        json.dumps(SECRET)[1:-1],
        SECRET.replace("'", "''"),
        shlex.quote(SECRET)[1:-1],
        base64.b64encode(f"user:{SECRET}".encode()).decode(),
        "horse",
        "second-secret",
        "the-vaults-own-password",
    }
    for place in (out, err, kept, (site.marks / "commands").read_text()):
        assert [form for form in forms if form in place] == []
    assert "[hidden]" in kept
    # and what is kept can be read by its owner only, and nothing is left in memory
    assert {path.name for path in site.latest.iterdir()} == {"run.json", "report.html", "output.txt", "events.jsonl"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in site.latest.iterdir()} == {0o600}
    assert stat.S_IMODE(site.latest.stat().st_mode) == 0o700
    assert list(site.work.iterdir()) == []


def test_every_fault_is_told_at_once_and_nothing_is_touched(tmp_path: Path) -> None:
    # given an inventory with faults of every kind, a host where nothing listens, and one with a wrong sudo password
    site = Site.make(
        tmp_path,
        MARK,
        hosts={
            "n1": {},
            "n2": {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1},
            "n3": {"kinemill_become": True, "ansible_become_exe": str(tmp_path / "sudo")},
        },
    )
    sudo = tmp_path / "sudo"
    sudo.write_text(
        "#!/bin/bash\nwhile [[ $# -gt 0 ]]; do [[ $1 == -p ]] && printf '%s' \"$2\" >&2; shift; done\n"
        "read -r word\n[[ $word == right ]] || { echo 'Sorry, try again.' >&2; exit 1; }\n"
    )
    sudo.chmod(0o755)
    # Else root, who runs the tests here and there, would not ask sudo at all.
    site.environment["ANSIBLE_BECOME_ALLOW_SAME_USER"] = "True"
    become = tmp_path / "become"
    become.write_text("wrong-sudo-password\n")
    become.chmod(0o600)
    site.write("roles/chore/tasks/other.yml", "- name: Foreign\n  nobody.knows.thing: {}\n")
    site.write(
        "inventories/acme/group_vars/all/vars.yml",
        """\
        chore_wrod: misspelt
        chore_count: "three"
        chore_password: changeme
        """,
    )
    site.write(
        "inventories/acme/group_vars/all/vault.yml", "chore_list: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6162\n"
    )
    # when it is deployed
    code, out, err = site.run("--become-password-file", str(become), "--json")
    # then all of them are told, each with its place and what to do
    assert code == 78, (out, err)
    record = json.loads(out)
    told = {(finding["kind"], finding["where"]): finding for finding in record["findings"]}
    vars_yml = "inventories/acme/group_vars/all/vars.yml"
    assert "did you mean chore_word" in told["inventory", f"{vars_yml}:1"]["message"]
    assert "whole number" in told["inventory", f"{vars_yml}:2"]["message"]
    assert "placeholder" in told["secret", f"{vars_yml}:3"]["message"]
    assert "vault password" in told["secret", "inventories/acme/group_vars/all/vault.yml"]["message"]
    assert "nobody.knows" in told["version", "roles/chore/tasks/other.yml:2"]["message"]
    assert "nothing listens on the ssh port" in told["reach", "n2"]["message"]
    assert "sudo password is wrong" in told["reach", "n3"]["message"]
    assert len(told) == len(record["findings"]) == 7
    assert record["state"] == "refused"
    # and no task ran, the report is there, and the password that was given is nowhere
    assert list(site.marks.iterdir()) == []
    assert "Refused before anything was touched" in (site.latest / "report.html").read_text()
    assert "wrong-sudo-password" not in out + err + site.kept()


def test_a_host_that_goes_away_does_not_stop_the_others(tmp_path: Path) -> None:
    # given three hosts, of which one goes away after the first task
    go_away = """\
- name: Go away
  ansible.builtin.file: {path: "{{ lookup('ansible.builtin.env', 'SITE_GONE') }}", state: touch, mode: "0600"}
  when: inventory_hostname == 'n1'
"""
    site = Site.make(
        tmp_path,
        go_away + MARK,
        hosts={"n1": {}, "n2": {"ansible_connection": "fragile"}, "n3": {}},
    )
    # when it is deployed
    code, out, err = site.run("--json")
    # then the others are done, the report says who is not, and that trying again may help
    assert code == 75, (out, err)
    record = json.loads(out)
    assert {path.name for path in site.marks.iterdir()} == {"n1", "n3"}
    assert {host: line["unreachable"] for host, line in record["hosts"].items()} == {"n1": 0, "n2": 1, "n3": 0}
    (failure,) = record["failures"]
    assert (failure["host"], failure["kind"], failure["task"]) == ("n2", "unreachable", "Leave a mark")
    assert "no way to it" in failure["meaning"]
    assert [role["role"] for role in record["roles"]] == ["chore"]
    report = (site.latest / "report.html").read_text()
    assert "unreachable" in report
    assert "<rect" in report
    # and with the host back, or left out, it is done; a limit that names nobody is refused
    (tmp_path / "gone").unlink()
    site.write("roles/chore/tasks/main.yml", MARK)
    code, out, err = site.run("--limit", "!n1:!n3")
    assert code == 0, (out, err)
    assert {path.name for path in site.marks.iterdir()} == {"n1", "n2", "n3"}
    code, _, err = site.run("--limit", "n9")
    assert code == 2
    assert "n9" in err


def test_a_check_shows_the_difference_and_changes_nothing(tmp_path: Path) -> None:
    # given a host that lacks a file
    site = Site.make(tmp_path, MARK)
    # when it is checked
    code, out, err = site.run("--check")
    # then the difference is shown, and the file is still not there
    assert code == 0, (out, err)
    assert "+n1" in (site.latest / "output.txt").read_text()
    assert list(site.marks.iterdir()) == []
    assert json.loads((site.latest / "run.json").read_text())["state"] == "checked"


def test_a_second_operator_is_kept_out_and_an_interrupted_run_goes_on(
    tmp_path: Path, ended: list[subprocess.Popen[str]]
) -> None:
    # given a run that waits in the middle
    site = Site.make(tmp_path, WAIT)
    first = site.start()
    ended.append(first)
    until("the first run waits", lambda: (site.marks / "waiting").exists() or first.poll() is not None)
    assert first.poll() is None, first.communicate()
    # when somebody else deploys the same cluster, they are told who does
    code, _, err = site.run()
    assert code == 75
    assert f"process {first.pid}, since " in err
    assert "a deploy of this cluster is running" in err
    # when the first is interrupted, Ansible ends, and that is said
    first.send_signal(signal.SIGINT)
    out, err = first.communicate(timeout=300)
    assert first.returncode == 130, (out, err)
    assert "the same command goes on" in out
    until("Ansible is gone", lambda: processes_of(site) == [])
    assert json.loads((site.latest / "run.json").read_text())["state"] == "interrupted"
    assert list(site.work.iterdir()) == []
    # then the same command goes on
    (site.marks / "go").touch()
    code, out, err = site.run()
    assert code == 0, (out, err)
    assert (site.marks / "done").exists()


def test_a_killed_run_leaves_no_ansible_and_its_lock_is_taken_over(
    tmp_path: Path, ended: list[subprocess.Popen[str]]
) -> None:
    # given a run that waits in the middle
    site = Site.make(tmp_path, WAIT)
    first = site.start()
    ended.append(first)
    until("the first run waits", lambda: (site.marks / "waiting").exists() or first.poll() is not None)
    assert first.poll() is None, first.communicate()
    # when it is killed without a chance to clean up
    first.kill()
    first.wait(timeout=300)
    # then Ansible ends by itself, instead of working on beside the next run
    until("Ansible is gone", lambda: processes_of(site) == [])
    assert not (site.marks / "done").exists()
    assert list(site.work.iterdir()) != []
    # and the next run takes the lock, says so, and removes what the dead one left in memory
    (site.marks / "go").touch()
    code, _, err = site.run()
    assert code == 0, err
    assert f"process {first.pid}" in err
    assert (site.marks / "done").exists()
    assert list(site.work.iterdir()) == []


def test_files_of_sops_need_sops_and_are_then_read(tmp_path: Path) -> None:
    # given a file that SOPS encrypted, and no program sops
    site = Site.make(tmp_path, "- ansible.builtin.debug: {msg: 'it is {{ chore_password }}'}\n")
    site.write(
        "inventories/acme/group_vars/all/secrets.sops.yml",
        """\
        chore_password: ENC[AES256_GCM,data:abc,iv:x,tag:y,type:str]
        sops: {version: 3.9.0}
        """,
    )
    tools = tmp_path / "tools"
    tools.mkdir()
    # when it is deployed, what is missing is told
    code, out, err = site.run()
    assert code == 78, (out, err)
    assert "the program sops is not installed" in out
    # when sops is there, the secret is read, used, and kept out of what is kept
    sops = tools / "sops"
    sops.write_text(
        "#!/bin/sh\ncase \"$*\" in *--version*) echo 'sops 3.9.0';; "
        "*) printf 'chore_password: out-of-sops-secret\\n';; esac\n"
    )
    sops.chmod(0o755)
    site.environment["PATH"] = f"{tools}:{os.environ['PATH']}"
    code, out, err = site.run()
    assert code == 0, (out, err)
    assert "it is [hidden]" in (site.latest / "output.txt").read_text()
    assert "out-of-sops-secret" not in out + err + site.kept()


def test_nothing_heavy_is_loaded_for_the_command_itself() -> None:
    code = (
        "import sys, kinemill.control.deploy.cli; "
        "sys.exit(' '.join({'ansible', 'ansible_runner', 'rich', 'yaml'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_a_wrong_name_is_told_the_right_one(tmp_path: Path) -> None:
    site = Site.make(tmp_path, MARK)
    command = [sys.executable, "-c", "from kinemill.cli import main; main()", "deploy", "acne"]
    environment = {**os.environ, **site.environment}
    done = subprocess.run(
        command, cwd=site.root, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 2
    assert "did you mean acme" in done.stderr
