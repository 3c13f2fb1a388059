"""The files that a repository has for people and services: workflows, templates, citation."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import keepthread
from tests.conftest import COLLECTED, nightly_tests

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"uses: [\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
BY_NAME = "pypa/gh-action-pypi-publish@release/v1"
"""The one action whose hash could not be verified."""


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_pinned_has_few_rights_and_ends(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 180
        assert all(("uses" in step) != ("run" in step) for step in job["steps"])
    for line in path.read_text("utf-8").splitlines():
        if "uses:" in line:
            assert PINNED.search(line) or BY_NAME in line, line
    assert "could not be tried" in path.read_text("utf-8") or "cannot\n# be tried" in (
        path.read_text("utf-8")
    )


def test_every_python_and_system_has_its_build() -> None:
    versions = [f"3.{minor}" for minor in range(11, 15)]
    jobs = {path.stem: read(path)["jobs"] for path in WORKFLOWS}
    assert jobs["ci"]["linux"]["strategy"]["matrix"]["python"] == versions
    portable = jobs["portable"]["core"]["strategy"]["matrix"]
    assert portable == {"os": ["windows-latest", "macos-latest"], "python": versions}
    assert jobs["ci"]["linux"]["steps"][-1]["run"] == "bash .ci/run"


def test_a_release_is_published_without_a_token() -> None:
    jobs = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text()
    inputs = [step["with"] for step in jobs["build"]["steps"] if "attest@" in step.get("uses", "")]
    assert [each["subject-path"] for each in inputs] == ["dist/*", "dist/*"]
    assert inputs[1]["sbom-path"] == "sbom.cdx.json"


def test_the_citation_names_this_version() -> None:
    cited = read(ROOT / "CITATION.cff")
    assert (cited["cff-version"], cited["version"]) == ("1.2.0", keepthread.__version__)
    assert {"title", "message", "authors", "license"} <= cited.keys()


def test_templates_hooks_and_updates_are_read_as_they_are_meant() -> None:
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = read(path)
        if path.stem != "config":
            assert {"name", "description", "body"} <= form.keys()
            assert all("label" in part["attributes"] for part in form["body"][1:])
    hooks = read(ROOT / ".pre-commit-config.yaml")["repos"][0]["hooks"]
    assert all((ROOT / hook["entry"].split()[-1]).exists() for hook in hooks[2:])
    updates = read(ROOT / ".github" / "dependabot.yml")["updates"]
    assert [each["package-ecosystem"] for each in updates] == ["github-actions", "pip"]


def test_every_test_that_is_left_to_the_night_exists(pytestconfig: pytest.Config) -> None:
    """One that was renamed would come back into the build unnoticed."""
    lines = nightly_tests()
    found = pytestconfig.stash[COLLECTED]
    files = {line.partition("::")[0] for line in lines}
    if not files <= {id.partition("::")[0] for id in found}:  # a run of some tests
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *sorted(files)]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        found = ran.stdout.splitlines()
    for line in lines:
        assert any(id.startswith(line) for id in found), f"{line} is not a test"
