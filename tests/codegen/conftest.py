"""Executors that several tests share, built once per session."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from codegen.executor import Executor
from tests.codegen.plans import make
from tests.graphs import small_net


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("generated") / "small_net"


@pytest.fixture(scope="session")
def small_class(small_folder: Path) -> type[Executor]:
    """The executor class of tests.graphs.small_net on two lanes."""
    return make(small_net(), small_folder)


@pytest.fixture
def small(small_class: type[Executor]) -> Iterator[Executor]:
    with small_class(seed=1, pin=False, poison=True) as executor:
        yield executor
