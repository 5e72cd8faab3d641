"""READMEs of roles follow from their specs."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.ansible import REPO, ROLES, load_module

tool = load_module(REPO / "tools" / "role_readme.py")


def test_no_readme_has_drifted() -> None:
    assert tool.main(["--check", str(ROLES)]) == 0


def test_drift_is_found_and_own_words_are_kept(tmp_path: Path) -> None:
    # given a role whose README has words of its own and an old table
    roles = tmp_path / "roles"
    shutil.copytree(ROLES / "python_artifact", roles / "python_artifact")
    path = roles / "python_artifact" / "README.md"
    text = path.read_text().replace("`python_artifact_keep`", "`python_artifact_kept`")
    path.write_text(text + "\n## Notes\n\nOurs.\n")
    # when it is checked, written, and checked again
    assert tool.main(["--check", str(roles)]) == 1
    assert tool.main([str(roles)]) == 0
    assert tool.main(["--check", str(roles)]) == 0
    # then the table is right and the words are there
    assert "`python_artifact_keep`" in path.read_text()
    assert path.read_text().endswith("## Notes\n\nOurs.\n")
