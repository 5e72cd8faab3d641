"""Modules of the roles, on real files."""

from __future__ import annotations

import grp
import json
import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.ansible import ROLES, load_module

FILES = ROLES / "platform_defaults" / "library" / "kinemill_files.py"
KEY = ROLES / "munge" / "library" / "kinemill_munge_key.py"
ME = {"owner": pwd.getpwuid(os.geteuid()).pw_name, "group": grp.getgrgid(os.getegid()).gr_name}


def run(module: Path, *, check: bool = False, **arguments: Any) -> dict[str, Any]:
    """A module's answer, as Ansible gets it: arguments on standard input."""
    text = json.dumps({"ANSIBLE_MODULE_ARGS": {**arguments, "_ansible_check_mode": check, "_ansible_no_log": True}})
    code = "import runpy, sys; from ansible.module_utils.testing import patch_module_args\n"
    code += "import json; args = json.load(sys.stdin)['ANSIBLE_MODULE_ARGS']\n"
    code += f"with patch_module_args(args): runpy.run_path({str(module)!r}, run_name='__main__')\n"
    done = subprocess.run(
        [sys.executable, "-c", code], input=text, capture_output=True, text=True, timeout=300, check=False
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_files_come_to_their_content_and_rights_once(tmp_path: Path) -> None:
    wanted = {
        "folders": [{"path": str(tmp_path / "etc"), "mode": "0750", **ME}],
        "files": [{"path": str(tmp_path / "etc" / "a"), "content": "x\n", "mode": "0640", **ME}],
    }
    # when it is only looked at, nothing is made
    assert run(FILES, check=True, **wanted)["changed"] is True
    assert not (tmp_path / "etc").exists()
    # when it runs, both are there, and a second run touches nothing
    assert run(FILES, **wanted)["written"] == [str(tmp_path / "etc"), str(tmp_path / "etc" / "a")]
    inode = (tmp_path / "etc" / "a").stat().st_ino
    assert run(FILES, **wanted)["changed"] is False
    assert (tmp_path / "etc" / "a").stat().st_ino == inode
    # when somebody changed the rights, they come back
    (tmp_path / "etc" / "a").chmod(0o666)
    assert run(FILES, **wanted)["written"] == [str(tmp_path / "etc" / "a")]
    assert stat.S_IMODE((tmp_path / "etc" / "a").stat().st_mode) == 0o640
    assert [path.name for path in (tmp_path / "etc").iterdir()] == ["a"]


def test_a_link_is_refused_and_what_it_points_at_is_untouched(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine\n")
    (tmp_path / "a").symlink_to("precious")
    answer = run(FILES, files=[{"path": str(tmp_path / "a"), "content": "x", **ME}])
    assert answer["failed"] is True
    assert "no ordinary file" in answer["msg"]
    assert (tmp_path / "precious").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("change", "words"), [({"mode": "0666"}, "lets everybody write"), ({"owner": "nobody-here"}, "nobody-here")]
)
def test_bad_rights_are_refused(tmp_path: Path, change: dict[str, str], words: str) -> None:
    answer = run(FILES, files=[{"path": str(tmp_path / "a"), "content": "x", **ME, **change}])
    assert words in answer["msg"]
    assert not (tmp_path / "a").exists()


def test_a_munge_key_is_made_once_and_differs_from_the_next(tmp_path: Path) -> None:
    module = load_module(KEY)
    first, second = tmp_path / "first", tmp_path / "second"
    module.make(str(first))
    module.make(str(second))
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    assert len(first.read_text()) == 256
    assert first.read_text() != second.read_text()
    assert module.read(str(first)) == first.read_text()
    assert module.read(str(tmp_path / "none")) is None


def test_a_munge_key_that_others_can_read_or_that_is_short_is_refused(tmp_path: Path) -> None:
    module = load_module(KEY)
    path = tmp_path / "key"
    path.write_text("a" * 100)
    path.chmod(0o644)
    with pytest.raises(ValueError, match="others than its owner"):
        module.read(str(path))
    path.write_text("short")
    path.chmod(0o600)
    with pytest.raises(ValueError, match="too short"):
        module.read(str(path))


def test_a_file_of_the_node_is_copied_and_its_folder_made(tmp_path: Path) -> None:
    (tmp_path / "brought").write_bytes(b"\xff\n")
    wanted = {
        "folders": [{"path": str(tmp_path / "a" / "b"), "parents": True}],
        "files": [{"path": str(tmp_path / "a" / "b" / "c"), "source": str(tmp_path / "brought"), "mode": "0755"}],
    }
    assert run(FILES, **wanted)["changed"] is True
    found = tmp_path / "a" / "b" / "c"
    assert (found.read_bytes(), found.stat().st_uid, stat.S_IMODE(found.stat().st_mode)) == (
        b"\xff\n",
        os.geteuid(),
        0o755,
    )
    assert run(FILES, **wanted)["changed"] is False
    # when what was brought changes, the copy follows
    (tmp_path / "brought").write_bytes(b"new\n")
    assert run(FILES, **wanted)["written"] == [str(found)]


@pytest.mark.parametrize("kind", ["link", "fifo", "none", "both"])
def test_a_source_that_is_no_ordinary_file_is_refused(tmp_path: Path, kind: str) -> None:
    source = tmp_path / "source"
    one = {"path": str(tmp_path / "a"), "source": str(source)}
    if kind == "link":
        source.symlink_to("/etc/hostname")
    elif kind == "fifo":
        os.mkfifo(source)
    elif kind == "both":
        one["content"] = "x"
    answer = run(FILES, files=[one])
    assert answer["failed"] is True
    assert not (tmp_path / "a").exists()
