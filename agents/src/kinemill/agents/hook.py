"""Entry of Slurm's hooks and the timers: `python -I -m kinemill.agents.hook prolog`.

Without click, whose import alone is a tenth of what a prolog may cost. A person uses `kinemill-node`.
"""

from __future__ import annotations

import sys

from kinemill.agents.hooks import REFUSE

__all__ = ["CONTEXTS", "main", "run_hook"]

CONTEXTS = ("prolog", "epilog", "periodic", "boot", "injob")


def run_hook(name: str) -> int:
    """Check, write the verdict, log on stderr what a person should see.

    Args:
        name: One of `CONTEXTS`.

    Returns:
        0 lets the job through, `REFUSE` refuses it. Any other code means that the agent is broken.
    """
    from kinemill.agents.lines import logger
    from kinemill.agents.node import describe, run_node
    from kinemill.agents.settings import AgentsSettings
    from kinemill.contracts.checks import CheckContext, CheckStatus
    from kinemill.errors import KinemillError
    from kinemill.settings import load_settings

    context = CheckContext(name)
    try:
        settings = load_settings(AgentsSettings, plane="agents").value
        outcome = run_node(context, settings)
    except KinemillError as exc:
        sys.stderr.write(f"kinemill-node: {exc}\n")
        return exc.exit_code if exc.exit_code != REFUSE else 1
    for result in outcome.verdict.report:
        watched = " (observe-only)" if result.check in outcome.observed else ""
        log = logger("kinemill.agents.hook")  # run as a program, this module is called __main__
        say = log.error if result.status is CheckStatus.FAIL else log.warning
        say("%s%s", describe(result), watched, extra={"check": result.check, "status": result.status.value})
    return REFUSE if outcome.verdict.refuse else 0


def main(argv: list[str] | None = None) -> int:
    """Run the hook that the one argument names."""
    words = sys.argv[1:] if argv is None else argv
    if len(words) != 1 or words[0] not in CONTEXTS:
        sys.stderr.write(f"usage: python -I -m kinemill.agents.hook {'|'.join(CONTEXTS)}\n")
        return 2
    return run_hook(words[0])


if __name__ == "__main__":
    sys.exit(main())
