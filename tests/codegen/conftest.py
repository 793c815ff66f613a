"""Executors that several tests share, built once per session."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from codegen.executor import Executor
from planner.capturing import capture
from tests.codegen.plans import make
from tests.graphs import small_net


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("generated") / "small_net"


@pytest.fixture(scope="session")
def small_class(small_folder: Path) -> type[Executor]:
    """The executor class of tests.graphs.small_net on two lanes."""
    return make(small_net(), small_folder)


@pytest.fixture(scope="session")
def network_class(tmp_path_factory: pytest.TempPathFactory) -> type[Executor]:
    """Of tests.codegen.planned.network, on batches of two, with gradients of its inputs."""
    torch = pytest.importorskip("torch")
    from tests.codegen.planned import network

    captured = capture(network(), torch.randn(2, 3, 6, 6), loss="caller")
    folder = tmp_path_factory.mktemp("planned") / "net"
    made = make(captured.graph, folder)
    captured.write_weights(folder / "weights.npz")
    return made


@pytest.fixture
def small(small_class: type[Executor]) -> Iterator[Executor]:
    with small_class(seed=1, pin=False, poison=True) as executor:
        yield executor
