"""A run as one HTML page that needs nothing else: no script, no network."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from kinemill.control.deploy.record import Failure, Finding, HostLine, RoleTime, RunRecord
from kinemill.control.deploy.together import same_failures, same_findings

__all__ = ["bars", "page"]

_STATES = {
    "deployed": ("good", "Deployed"),
    "checked": ("good", "Checked, nothing was changed"),
    "refused": ("bad", "Refused before anything was touched"),
    "failed": ("bad", "Failed"),
    "interrupted": ("warn", "Interrupted"),
    "running": ("warn", "Running, or ended without a word"),
}
_KINDS = {
    "inventory": "The inventory",
    "secret": "Secrets",
    "version": "This machine",
    "reach": "Reaching the nodes",
    "node": "The nodes",
}
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:64rem;padding:0 1rem;color:#1b1f24;background:#fff}
h1{font-size:1.5rem;margin:0 0 .25rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}
.state{display:inline-block;padding:.1rem .6rem;border-radius:.3rem;font-weight:600}
.good{background:#dff3e3;color:#14532d}.bad{background:#fbe1e1;color:#7f1d1d}.warn{background:#fdf0cf;color:#713f12}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid #e3e6ea;
vertical-align:top}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
pre{background:#f5f6f8;padding:.6rem;overflow:auto;white-space:pre-wrap;margin:.3rem 0}
.failure{border-left:4px solid #b91c1c;padding-left:.8rem;margin:1rem 0}.tolerated{border-color:#a3a3a3}
.do{font-weight:600}.key{display:inline-block;width:.8em;height:.8em;border-radius:2px}.small{color:#57606a;font-size:.9rem}svg{width:100%;height:auto}
"""
_BESIDE = "Beside this page: run.json, this page as data"
_BESIDE_RUN = f"{_BESIDE}; output.txt, what Ansible printed; events.jsonl, one line for each result"
_ROW, _LEFT, _RIGHT, _WIDE = 24, 190, 230, 900
_CHANGED, _UNCHANGED = "#d29922", "#4c8bd6"
_STATES_OF_HOSTS = ("failed", "unreachable", "untouched", "changed", "ok")


def page(record: RunRecord) -> str:
    """Draw it.

    Args:
        record: The run; what it says must be free of secrets already.
    """
    css, word = _STATES.get(record.state, ("warn", record.state))
    note = "" if record.state == "refused" else record.note
    if record.state == "failed" and not note and not record.check:
        note = "When what failed is mended, the same command goes on from what is there."
    parts = [
        f"<h1>{_e(record.inventory)}{' (check)' if record.check else ''}</h1>",
        f'<p><span class="state {css}">{_e(word)}</span> {_e(note)}</p>',
        f'<p class="small">{"<br>".join(_e(line) for line in _about(record))}</p>',
        _findings(record.findings),
        _failures(record.failures),
        _hosts(record),
        _roles(record.roles),
        _nodes(record),
        f'<p class="small">Exit code {record.exit_code}. {_BESIDE_RUN if record.hosts else _BESIDE}.</p>',
    ]
    body = "\n".join(part for part in parts if part)
    title = f"{_e(record.inventory)}: {_e(word)}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def bars(roles: Sequence[RoleTime]) -> str:
    """Time per role as an SVG picture, in the order in which they ran."""
    most = max((role.seconds for role in roles), default=0.0) or 1.0
    height = _ROW * len(roles) + 4
    rows: list[str] = []
    for index, role in enumerate(roles):
        top = index * _ROW
        long = max(1.0, (_WIDE - _LEFT - _RIGHT) * role.seconds / most)
        colour = _CHANGED if role.changed else _UNCHANGED
        label = f"{role.seconds:.1f} s, {role.tasks} tasks" + (f", {role.changed} changed" if role.changed else "")
        rows.append(
            f'<text x="{_LEFT - 8}" y="{top + 16}" text-anchor="end">{_e(role.role[:30])}</text>'
            f'<rect x="{_LEFT}" y="{top + 4}" width="{long:.1f}" height="{_ROW - 8}" rx="2" fill="{colour}"/>'
            f'<text x="{_LEFT + long + 6:.1f}" y="{top + 16}">{_e(label)}</text>'
        )
    return (
        f'<svg viewBox="0 0 {_WIDE} {height}" role="img" aria-label="time of each role" '
        f'font-family="system-ui,sans-serif" font-size="12">{"".join(rows)}</svg>'
    )


def _about(record: RunRecord) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    what = f"{record.playbook}" + (f", limited to {record.limit}" if record.limit else "")
    commit = record.revision.removesuffix("+") or "unknown"
    when = f"{_when(record.started)} to {_when(record.ended)}, {record.seconds:.0f} s"
    return [
        f"{what}, by {record.operator} on {record.host}; {when}",
        f"commit {commit}{' with changes beside it' if record.revision.endswith('+') else ''}; {versions}",
    ]


def _when(stamp: str) -> str:
    try:
        return f"{datetime.fromisoformat(stamp):%Y-%m-%d %H:%M:%S} UTC"
    except ValueError:
        return stamp or "?"


def _findings(findings: Sequence[Finding]) -> str:
    parts: list[str] = []
    for kind, title in _KINDS.items():
        rows = [finding for finding in findings if finding.kind == kind]
        if rows:
            parts.append(
                f"<h2>{_e(title)}: {len(rows)} found</h2><table><tr><th>Where</th><th>What</th><th>Do</th></tr>"
            )
            for finding in same_findings(rows):
                what = finding.message if finding.fatal else f"Warning: {finding.message}"
                parts.append(f"<tr><td>{_e(finding.where)}</td><td>{_e(what)}</td><td>{_e(finding.action)}</td></tr>")
            parts.append("</table>")
    return "\n".join(parts)


def _failures(failures: Sequence[Failure]) -> str:
    if not failures:
        return ""
    parts = ["<h2>What failed</h2>"]
    for failure in sorted(same_failures(failures), key=lambda one: one.tolerated):
        css = "failure tolerated" if failure.tolerated else "failure"
        said = " (the playbook went on by its own rules)" if failure.tolerated else ""
        parts.append(
            f'<div class="{css}"><p><b>{_e(failure.host)}</b>, {_e(failure.role)}: {_e(failure.task)}{said}<br>'
            f'<span class="small">{_e(failure.where)}, {_e(failure.kind)}</span></p><pre>{_e(failure.message)}</pre>'
        )
        if failure.meaning:
            meaning = failure.meaning[0].upper() + failure.meaning[1:]
            parts.append(f'<p>{_e(meaning)}. <span class="do">{_e(failure.action)}</span></p>')
        parts.append("</div>")
    return "\n".join(parts)


def _hosts(record: RunRecord) -> str:
    if not record.hosts:
        return ""
    heads = ("ok", "changed", "skipped", "rescued", "ignored", "failed", "unreachable")
    head = "".join(f'<th class="n">{name}</th>' for name in heads)
    rows = "".join(_host(host, line, heads) for host, line in sorted(record.hosts.items(), key=_trouble_first))
    counts = Counter(line.state for line in record.hosts.values())
    counted = ", ".join(f"{counts[state]} {state}" for state in _STATES_OF_HOSTS if counts[state])
    return f"<h2>Hosts: {counted}</h2><table><tr><th>Host</th><th>State</th>{head}</tr>{rows}</table>"


def _trouble_first(row: tuple[str, HostLine]) -> tuple[int, str]:
    return _STATES_OF_HOSTS.index(row[1].state), row[0]


def _host(host: str, line: HostLine, heads: tuple[str, ...]) -> str:
    css = {"failed": "bad", "unreachable": "bad", "untouched": "warn"}.get(line.state, "good")
    counts = "".join(f'<td class="n">{getattr(line, name) or ""}</td>' for name in heads)
    return f'<tr><td>{_e(host)}</td><td><span class="state {css}">{_e(line.state)}</span></td>{counts}</tr>'


def _roles(roles: Sequence[RoleTime]) -> str:
    if not roles:
        return ""
    colours = ((_CHANGED, "changed something"), (_UNCHANGED, "changed nothing"))
    keys = " ".join(f'<span class="key" style="background:{colour}"></span> {text}' for colour, text in colours)
    return f'<h2>Time of each role</h2><p class="small">{keys}</p>{bars(roles)}'


def _nodes(record: RunRecord) -> str:
    if not record.nodes:
        return ""
    rows = "".join(
        f"<tr><td>{_e(host)}</td><td>{_e(look.hostname)}</td><td>{_e(', '.join(look.addresses))}</td>"
        f'<td>{_e(look.python)}</td><td class="n">{look.free_mb if look.free_mb >= 0 else ""}</td></tr>'
        for host, look in sorted(record.nodes.items())
    )
    head = (
        '<tr><th>Host</th><th>Calls itself</th><th>Addresses</th><th>Python</th><th class="n">MiB free on /</th></tr>'
    )
    return f"<h2>What the nodes said</h2><table>{head}{rows}</table>"


def _e(text: object) -> str:
    return html.escape(str(text))
