"""Takes secrets out of text before it is kept or shown.

Ansible hides what a task marks `no_log`. A secret still gets out where a task forgets the mark, a template's difference
is shown, or a command repeats its input in an error. So what the inventory keeps encrypted is looked for in everything
that leaves a run, in the forms in which it may stand there.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["HIDDEN", "SHORTEST", "Redactor"]

HIDDEN = "[hidden]"
SHORTEST = 4
"""Shorter text is found everywhere by chance; it is no secret."""

# A line of a secret of many lines stands alone in a difference; shorter lines are found by chance.
_SHORTEST_LINE = 8
# Ansible wraps warnings at the terminal's width, in the middle of words too.
_BREAK = r"(?:\r?\n)?"
# What stands before a sign in text that was escaped again and again; bounded, so that searching stays quick.
_ESC = r"\\{0,8}"
_ESC1 = r"\\{1,8}"
_SPACE = rf"(?:\s|{_ESC1}[nrt]|\+|%20|%0[AD]|&nbsp;)+"
# Signs that HTML spells otherwise.
_NAMED = {"&": ("&amp;",), "<": ("&lt;",), ">": ("&gt;",)}
# Quotes and backslashes: any mixture of their spellings, for shells, YAML, JSON and HTML, one inside the other, make
# many of one; taking that apart sign by sign could take for ever. A backslash of the next sign's code stays.
_QUOTES = (
    r"(?:&(?:quot|apos|#34|#39|#x27);|%(?:27|22|5[Cc])|\\u00(?:27|22|5[Cc])|['\"]"
    r"|\\(?!u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|[0-7]{3}))"
)


class Redactor:
    """Replaces secrets by `[hidden]`.

    Args:
        secrets: Text that must not be kept; shorter than `SHORTEST` characters is left alone.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        plain: set[str] = set()
        for secret in secrets:
            lines = (line.strip() for line in secret.splitlines())
            plain |= {secret.strip(), *(line for line in lines if len(line) >= _SHORTEST_LINE)}
        patterns: list[tuple[int, str]] = []
        for text in plain:
            if len(text) >= SHORTEST:
                patterns.append((len(text), _pattern(text)))
                patterns += [(len(form), _BREAK.join(map(re.escape, form))) for form in _base64_forms(text.encode())]
        # Longest first: where one secret holds another, the whole of it must go.
        ordered = [pattern for _, pattern in sorted(patterns, reverse=True)]
        self._found = re.compile("|".join(ordered)) if ordered else None

    def text(self, text: str) -> str:
        """`text` without secrets."""
        return self._found.sub(HIDDEN, text) if self._found is not None else text

    def value(self, value: Any) -> Any:
        """Plain data without secrets, in keys too."""
        if self._found is None:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        if isinstance(value, int | float) and self.text(str(value)) != str(value):
            return HIDDEN
        return value


def _pattern(text: str) -> str:
    """A pattern that finds a text however it was quoted, escaped, wrapped or folded."""
    return _SPACE.join(_word(word) for word in re.split(r"\s+", text) if word)


def _word(word: str) -> str:
    parts: list[str] = []
    for part in re.findall(r"['\"\\]+|.", word):
        parts.append(f"(?:{_QUOTES}{_BREAK})++" if part[0] in "'\"\\" else _sign(part))
    return _BREAK.join(parts)


def _sign(sign: str) -> str:
    """A pattern for one character in all its spellings."""
    if sign.isascii() and sign.isalnum():
        return sign
    codes = sign.encode("utf-8", "surrogatepass")
    spellings = [
        *_NAMED.get(sign, ()),
        _ESC + re.escape(sign),
        "".join(f"%(?i:{code:02x})" for code in codes),
        rf"{_ESC1}u(?i:{ord(sign):04x})" if ord(sign) < 0x10000 else rf"{_ESC1}U(?i:{ord(sign):08x})",
        rf"{_ESC1}x(?i:{ord(sign):02x})",
        "".join(rf"{_ESC1}{code:03o}" for code in codes),
    ]
    return f"(?:{'|'.join(spellings)})"


def _base64_forms(data: bytes) -> set[str]:
    """What is common to every base64 text whose content holds `data`, for each of the three ways it may be aligned."""
    forms: set[str] = set()
    for lead in range(3):
        encoded = base64.b64encode(b"\0" * lead + data).decode()
        # The first characters mix with what stands before, the last with what comes after.
        inner = encoded[(0, 2, 3)[lead] :].rstrip("=")
        inner = inner[: len(inner) - (1 if (lead + len(data)) % 3 else 0)]
        if len(inner) >= _SHORTEST_LINE:
            forms |= {inner, inner.replace("+", "-").replace("/", "_")}
    return forms
