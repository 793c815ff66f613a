"""Workspaces that several test modules share."""

import shutil
from pathlib import Path

import pytest
from hypothesis import settings

from tests.cli import Files, workspace

# A busy machine is not a defect: examples have no time limit of their own.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(scope="session")
def made_workspace(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return workspace(tmp_path_factory.mktemp("workspace"))


@pytest.fixture
def files(made_workspace: Files, tmp_path: Path) -> Files:
    """A workspace of the test's own: graph.json, target.toml, costs.json and plan/ of a small net."""
    shutil.copytree(made_workspace.folder, tmp_path, dirs_exist_ok=True)
    return Files(tmp_path, *(tmp_path / p.name for p in made_workspace[1:]))
