"""Make LeRobot 0.6.1, written for Python 3.12, import on 3.11: PEP 695 syntax into its older form.

Only declarations of types change (`type X = Y`, `class C[T]`, `def f[T]`); nothing on the data path does.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ALIAS = re.compile(r"^(\s*)type (\w+) = ", re.MULTILINE)
GENERIC_CLASS = re.compile(r"^class (\w+)\[([\w, ]+)\](\((.*)\))?:", re.MULTILINE)
BOUND_CLASS = re.compile(r"^class (\w+)\[(\w+): ([^\]]+)\](\((.*)\))?:", re.MULTILINE)
GENERIC_DEF = re.compile(r"^(\s*(?:async )?def \w+)\[(\w+)(?:: ([^\]]+))?\]\(", re.MULTILINE)


def rewrite(text: str) -> str:
    """The source with PEP 695 declarations in their 3.11 form; other text unchanged."""
    names: dict[str, str] = {}

    def klass(match: re.Match[str]) -> str:
        names.update(dict.fromkeys(n.strip() for n in match[2].split(",")))
        bases = f"{match[4]}, " if match[4] else ""
        return f"class {match[1]}({bases}_kt.Generic[{match[2]}]):"

    def bound(match: re.Match[str]) -> str:
        names[match[2]] = match[3]
        bases = f"{match[5]}, " if match[5] else ""
        return f"class {match[1]}({bases}_kt.Generic[{match[2]}]):"

    def func(match: re.Match[str]) -> str:
        names[match[2]] = match[3]
        return f"{match[1]}("

    out = ALIAS.sub(r"\1\2 = ", text)
    out = GENERIC_CLASS.sub(klass, out)
    out = BOUND_CLASS.sub(bound, out)
    out = GENERIC_DEF.sub(func, out)
    if out == text or not names:
        return out
    lines = ["import typing as _kt", *(f'{name} = _kt.TypeVar("{name}")' for name in names), ""]
    parts = re.split(r"^(from __future__ import .*\n)", out, maxsplit=1, flags=re.MULTILINE)
    if len(parts) == 3:
        return parts[0] + parts[1] + "\n".join(lines) + parts[2]
    first = re.search(r"^(import|from) ", out, re.MULTILINE)
    at = first.start() if first else 0
    return out[:at] + "\n".join(lines) + out[at:]


def main(env: Path) -> None:
    """Patch the virtual environment at `env`."""
    count = 0
    for path in env.glob("lib/python3*/site-packages/lerobot/**/*.py"):
        text = path.read_text(encoding="utf-8")
        new = rewrite(text)
        if new != text:
            path.write_text(new, encoding="utf-8")
            count += 1
            sys.stderr.write(f"patched: {path.name} (PEP 695 declarations)\n")
    from patch_torchvision import main as patch_torchvision

    patch_torchvision(env)
    sys.stderr.write(f"{count} files of lerobot patched\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
