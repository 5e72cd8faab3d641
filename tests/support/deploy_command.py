"""A small repository with a site, roles and an inventory of this machine, and `kinemill deploy` run on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["SECRET", "Site", "vaulted"]

SECRET = 'c0rrect\'horse "battery" staple&<9>'  # with every character that some form would write differently

_CONFIG = "[defaults]\nroles_path = ./roles\ngathering = explicit\ninject_facts_as_vars = False\n"
# A connection like `local` that breaks as soon as a file is there: a node that goes away half-way.
_FRAGILE = '''\
from __future__ import annotations

import os

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection.local import Connection as Local

DOCUMENTATION = """
name: fragile
short_description: local until a file says otherwise
description: for tests
author: kinemill
extends_documentation_fragment: [connection_pipelining]
"""


class Connection(Local):
    transport = "fragile"

    def exec_command(self, cmd, in_data=None, sudoable=True):
        if os.path.exists(os.environ["SITE_GONE"]):
            raise AnsibleConnectionFailure("ssh: connect to host n2 port 22: No route to host")
        return super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
'''


@dataclass
class Site:
    """The repository below `root`; `marks` is where its tasks leave traces.

    Attributes:
        root: The repository.
        environment: Variables beside the machine's own.
    """

    root: Path
    environment: dict[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls, path: Path, tasks: str, *, hosts: Mapping[str, Mapping[str, Any]] | None = None) -> Site:
        """Write it.

        Args:
            path: An empty folder.
            tasks: The tasks of role `chore`, which runs on all hosts.
            hosts: Variables by host; one host `n1` of this machine unless given.
        """
        site = cls(path / "repo")
        site.write("ansible.cfg", _CONFIG + "connection_plugins = ./connection_plugins\n")
        site.write("connection_plugins/fragile.py", _FRAGILE)
        site.write(
            "site.yml",
            """\
            - name: Work
              hosts: all
              gather_facts: false
              roles: [chore]
            """,
        )
        site.write("roles/chore/tasks/main.yml", tasks)
        site.write(
            "roles/chore/meta/argument_specs.yml",
            """\
            argument_specs:
              main:
                options:
                  chore_word: {type: str}
                  chore_count: {type: int}
                  chore_password: {type: str}
                  chore_list: {type: list, elements: str}
                  kinemill_become: {type: bool}
            """,
        )
        site.write("roles/chore/defaults/main.yml", f"chore_marks: {path / 'marks'}\nchore_word: none\n")
        local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "kinemill_become": False}
        chosen = hosts if hosts is not None else {"n1": {}}
        inventory = {"all": {"hosts": {name: {**local, **extra} for name, extra in chosen.items()}}}
        site.write("inventories/acme/hosts.yml", json.dumps(inventory))
        (path / "marks").mkdir()
        site.environment = {
            "SITE_GONE": str(path / "gone"),
            "KINEMILL_DEPLOY_RUNS": str(path / "runs"),
            "KINEMILL_DEPLOY_LOCKS": str(path / "locks"),
            "KINEMILL_CONFIG_DIR": str(path / "etc"),
            "XDG_RUNTIME_DIR": str(path / "work"),
            "HOME": str(path / "home"),
        }
        (path / "work").mkdir()
        (path / "home").mkdir()
        return site

    @property
    def marks(self) -> Path:
        """Where tasks leave traces."""
        return self.root.parent / "marks"

    @property
    def work(self) -> Path:
        """Where runs keep what must not outlive them."""
        return self.root.parent / "work"

    @property
    def latest(self) -> Path:
        """The folder of the newest run."""
        return (self.root.parent / "runs" / "acme" / "latest").resolve()

    def write(self, name: str, text: str) -> Path:
        """Write a file of the repository."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """`kinemill deploy acme` with further arguments, as another process in a session of its own."""
        command = [sys.executable, "-c", "from kinemill.cli import main; main()", "deploy", "acme", *arguments]
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        return subprocess.Popen(
            command,
            cwd=self.root,
            env={**kept, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, deadline_s: float = 600) -> tuple[int, str, str]:
        """The same, waited for: exit code, standard output, standard error."""
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return process.returncode, out, err

    def kept(self) -> str:
        """Everything that the runs keep, in one text."""
        files = [path for path in (self.root.parent / "runs").rglob("*") if path.is_file() and not path.is_symlink()]
        return "\n".join(f"{path}\n{path.read_text(errors='replace')}" for path in files)


def vaulted(site: Site, name: str, text: str, password: Path) -> str:
    """`name: !vault ...`, a line and its continuation for an inventory."""
    command = [str(Path(sys.executable).parent / "ansible-vault"), "encrypt_string", "--stdin-name", name]
    command += ["--vault-password-file", str(password)]
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=120, check=True, cwd=site.root,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
    )  # fmt: skip
    return done.stdout
