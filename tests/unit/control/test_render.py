"""Templates of roles, rendered outside a playbook."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinemill.control.render import render_template, roles_dir
from kinemill.errors import ConfigError, NotFoundError


@pytest.fixture
def roles(tmp_path: Path) -> Path:
    written = {"platform_defaults": "kinemill_opt_dir: /opt\n", "demo": "demo_port: 1\ndemo_url: '{{ demo_port }}/x'\n"}
    for role, defaults in written.items():
        (tmp_path / role / "defaults").mkdir(parents=True)
        (tmp_path / role / "defaults" / "main.yml").write_text(defaults)
    (tmp_path / "demo" / "templates").mkdir()
    (tmp_path / "demo" / "templates" / "a.j2").write_text("{{ demo_url }} {{ kinemill_opt_dir }}\n")
    (tmp_path / "demo" / "templates" / "b.j2").write_text("{{ demo_nothing }}\n")
    return tmp_path


def test_defaults_apply_and_variables_win(roles: Path) -> None:
    assert render_template("demo", "a.j2", {}, roles=roles).strip() == "1/x /opt"
    assert render_template("demo", "a.j2", {"demo_port": 2}, roles=roles).strip() == "2/x /opt"


def test_a_misspelt_variable_is_refused(roles: Path) -> None:
    with pytest.raises(ConfigError, match="no variable demo_prot; did you mean demo_port"):
        render_template("demo", "a.j2", {"demo_prot": 2}, roles=roles)


def test_what_is_undefined_does_not_render_to_nothing(roles: Path) -> None:
    with pytest.raises(ConfigError, match=r"demo/b\.j2"):
        render_template("demo", "b.j2", {}, roles=roles)


def test_the_roles_are_found_or_asked_for(roles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (roles_dir() / "python_artifact").is_dir()
    monkeypatch.setenv("KINEMILL_ROLES", str(roles))
    assert roles_dir() == roles
    monkeypatch.setenv("KINEMILL_ROLES", str(roles / "demo"))
    with pytest.raises(NotFoundError, match="KINEMILL_ROLES"):
        roles_dir()
