#!/usr/bin/env python3
"""Write each role's README from its `meta/argument_specs.yml` and `defaults/main.yml`.

The part between the two markers is generated; what stands before and after it is kept. With `--check` nothing is
written and the exit status is 1 where a README would change.

Example:
    python tools/role_readme.py --check roles
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

BEGIN = "<!-- generated from meta/argument_specs.yml: begin -->"
END = "<!-- generated from meta/argument_specs.yml: end -->"


def render(role: str, spec: Mapping[str, Any], defaults: Mapping[str, Any], phases: Sequence[str]) -> str:
    """The generated part of a role's README."""
    lines = [BEGIN, "", str(spec["short_description"]).rstrip(".") + ".", ""]
    for sentence in _paragraphs(spec.get("description")):
        lines += [sentence, ""]
    if phases:
        lines += ["Phases, each a tag: " + ", ".join(f"`{role}_{phase}`" for phase in phases) + ".", ""]
    options = spec.get("options") or {}
    if options:
        lines += ["| variable | type | default | meaning |", "| --- | --- | --- | --- |"]
        for name, option in options.items():
            kind = str(option.get("type", "str"))
            if "elements" in option:
                kind += f" of {option['elements']}"
            meaning = " ".join(_paragraphs(option.get("description")))
            if "choices" in option:
                meaning += " One of: " + ", ".join(f"`{choice}`" for choice in option["choices"]) + "."
            lines.append(f"| `{name}` | {kind} | {_default(defaults.get(name))} | {_cell(meaning)} |")
        lines.append("")
    lines.append(END)
    return "\n".join(lines)


def readme(role_dir: Path) -> str:
    """The whole README that a role should have.

    Raises:
        SystemExit: The role has no spec.
    """
    specs_file = role_dir / "meta" / "argument_specs.yml"
    if not specs_file.is_file():
        raise SystemExit(f"{role_dir}: has no meta/argument_specs.yml")
    spec = yaml.safe_load(specs_file.read_text(encoding="utf-8"))["argument_specs"]["main"]
    defaults_file = role_dir / "defaults" / "main.yml"
    defaults = yaml.safe_load(defaults_file.read_text(encoding="utf-8")) if defaults_file.is_file() else {}
    order = ("preflight", "install", "configure", "verify")
    phases = [phase for phase in order if (role_dir / "tasks" / f"{phase}.yml").is_file()]
    generated = render(role_dir.name, spec, defaults or {}, phases)
    path = role_dir / "README.md"
    old = path.read_text(encoding="utf-8") if path.is_file() else ""
    if BEGIN in old and END in old:
        before, rest = old.split(BEGIN, 1)
        return before + generated + rest.split(END, 1)[1]
    return f"# {role_dir.name}\n\n{generated}\n"


def _paragraphs(text: Any) -> list[str]:
    if text is None:
        return []
    return [" ".join(str(part).split()) for part in (text if isinstance(text, list) else [text])]


def _default(value: Any) -> str:
    if value is None or value == "":
        return "empty"
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000).strip().removesuffix("...").strip()
    text = str(value) if isinstance(value, str) else text
    return f"`{_cell(' '.join(text.split()))}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("roles", type=Path, help="folder of roles")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a README would change")
    options = parser.parse_args(arguments)
    stale = 0
    for role_dir in sorted(path for path in options.roles.iterdir() if path.is_dir()):
        path, text = role_dir / "README.md", readme(role_dir)
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if options.check:
            print(f"{path}: differs from its specs; run: python tools/role_readme.py {options.roles}", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
            print(f"{path}: written")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
