"""Filter `kinemill_package_sources`: files of apt for further sources of packages, each with the key that signs it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError

_ARMOUR = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
_WORD = re.compile(r"[!-~]+")


def source_files(sources: Sequence[Mapping[str, Any]], inventory_dir: str = "") -> list[dict[str, str]]:
    """The files, as module `kinemill_files` takes them.

    Args:
        sources: See `base_package_sources`.
        inventory_dir: Folder that a relative path of a key starts from.

    Raises:
        AnsibleFilterError: A key is no public key as text, or a field would break the file.
    """
    files: list[dict[str, str]] = []
    for source in sources:
        name = source["name"]
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
            raise AnsibleFilterError(
                f"base_package_sources: {name!r} is not a name of small letters, digits and dashes"
            )
        fields = {"URIs": source["uris"], "Suites": source["suites"], "Components": source.get("components") or []}
        for key, words in fields.items():
            bad = [word for word in words if not _WORD.fullmatch(word)]
            if bad:
                raise AnsibleFilterError(f"base_package_sources: {name}: {key} has {bad[0]!r}, which is not one word")
        path = Path(inventory_dir, source["key"])
        try:
            armour = path.read_text(encoding="ascii")
        except (OSError, ValueError) as error:
            raise AnsibleFilterError(f"base_package_sources: {name}: key {path}: {error}") from error
        if not armour.lstrip().startswith(_ARMOUR):
            raise AnsibleFilterError(f"base_package_sources: {name}: {path} is not an ASCII-armoured public key")
        keyring = f"/etc/apt/keyrings/kinemill-{name}.asc"
        lines = ["# Written by Ansible (role base).", "Types: deb"]
        lines += [f"{key}: {' '.join(words)}" for key, words in fields.items() if words]
        lines += [f"Signed-By: {keyring}", ""]
        files.append({"path": keyring, "content": armour})
        files.append({"path": f"/etc/apt/sources.list.d/kinemill-{name}.sources", "content": "\n".join(lines)})
    return files


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> dict[str, Callable[..., list[dict[str, str]]]]:
        """Filters by name."""
        return {"kinemill_package_sources": source_files}
