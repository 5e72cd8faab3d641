"""What the role leaves on a node, seen from outside."""

from __future__ import annotations

import json

ROOT = "/opt/kinemill/agents"


def test_the_current_link_leads_to_a_version(host) -> None:
    link = host.file(f"{ROOT}/current")
    assert link.is_symlink
    assert "+" in link.linked_to
    assert host.file(f"{ROOT}/current/.kinemill-venv.json").is_file


def test_the_command_starts(host) -> None:
    done = host.run(f"{ROOT}/current/bin/kinemill-node --help")
    assert done.rc == 0, done.stderr
    assert "Usage" in done.stdout


def test_it_runs_on_the_nodes_own_python(host) -> None:
    code = "import json, sys; print(json.dumps([sys.version_info[:2], sys.base_prefix]))"
    version, prefix = json.loads(host.check_output(f"{ROOT}/current/bin/python -c '{code}'"))
    assert tuple(version) in {(3, 11), (3, 13)}
    assert prefix == "/usr"


def test_there_is_no_pip_and_nobody_but_root_can_write(host) -> None:
    assert host.file(f"{ROOT}/current/bin/python").exists
    done = host.run(f"find {ROOT}/ ! -type l '(' -perm -o+w -o ! -user root ')' -print")
    assert done.rc == 0
    assert done.stdout == ""
    assert not host.file(f"{ROOT}/current/bin/pip").exists
