"""Renders a role's templates outside a playbook, with the role's own defaults: one home for each configuration file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinemill.errors import ConfigError, NotFoundError
from kinemill.records import nearest

__all__ = ["render_template", "roles_dir"]


def roles_dir() -> Path:
    """The folder of roles: `KINEMILL_ROLES`, else the one above the working folder or above this file.

    Raises:
        NotFoundError: There is none, as in a wheel that was installed alone.
    """
    own = os.environ.get("KINEMILL_ROLES")
    places = [Path(own)] if own else [p / "roles" for q in (Path.cwd(), Path(__file__)) for p in (q, *q.parents)]
    for place in places:
        if (place / "platform_defaults").is_dir():
            return place
    raise NotFoundError("the roles are not here: run this from a checkout, or set KINEMILL_ROLES")


def render_template(role: str, template: str, variables: Mapping[str, Any], *, roles: Path | None = None) -> str:
    """Render a template of a role.

    Args:
        role: The role.
        template: The file below its `templates`.
        variables: Win over the role's defaults and those of platform_defaults.
        roles: The folder of roles; found by `roles_dir` unless given.

    Returns:
        The text.

    Raises:
        ConfigError: It does not render, or the role has no such variable.
    """
    from ansible.errors import AnsibleError
    from ansible.parsing.dataloader import DataLoader
    from ansible.template import Templar, trust_as_template

    folder = roles or roles_dir()
    loader = DataLoader()
    merged: dict[str, Any] = {"groups": {}, "role_path": str(folder / role)}
    try:
        for one in ("platform_defaults", role):
            defaults = folder / one / "defaults" / "main.yml"
            merged |= loader.load_from_file(str(defaults), trusted_as_template=True) or {}
        for name in variables:
            if name not in merged:
                close = nearest(name, merged)
                raise ConfigError(f"role {role} has no variable {name}" + (f"; did you mean {close}?" if close else ""))
        source = trust_as_template((folder / role / "templates" / template).read_text(encoding="utf-8"))
        return str(Templar(loader=loader, variables={**merged, **variables}).template(source))
    except AnsibleError as error:
        raise ConfigError(f"{role}/{template}: {error}") from error
