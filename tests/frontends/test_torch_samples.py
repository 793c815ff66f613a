"""Operators compute what PyTorch computes with the samples that PyTorch tests itself with."""

from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
import pytest

from planner.errors import UserError
from tests.frontends.torch_samples import Sampled, differs, samples

pytestmark = pytest.mark.filterwarnings("ignore")  # of what PyTorch deprecates

SUPPORTED = (
    "addbmm", "amax", "angle", "as_strided", "atan2", "clamp", "cummax", "cummin", "cumprod", "cumsum",
    "diag_embed", "diagonal", "diagonal_scatter", "dist", "fmax", "fmin", "gather", "index_add", "index_copy",
    "index_fill", "index_put", "index_reduce", "index_select", "kthvalue", "ldexp", "linalg.vector_norm",
    "logcumsumexp", "logsumexp", "masked_scatter", "nn.functional.bilinear", "nn.functional.conv_transpose2d",
    "nn.functional.ctc_loss", "nn.functional.embedding_bag", "nn.functional.grid_sample",
    "nn.functional.group_norm", "nn.functional.interpolate", "nn.functional.layer_norm", "nn.functional.max_pool1d",
    "nn.functional.max_pool2d", "nn.functional.nll_loss", "permute_copy", "prod", "scatter", "scatter_add",
    "scatter_reduce", "searchsorted", "sort", "take_along_dim", "topk", "unbind_copy", "unfold", "var_mean",
    "where",
)  # fmt: skip
MOST = 24
"""Samples of an operator that one is drawn from."""


def test_supported_operators() -> None:
    """Another sample of another half of them each time; of some, PyTorch has samples that are refused."""
    rng = np.random.default_rng()
    chosen = frozenset(rng.choice(sorted(SUPPORTED), len(SUPPORTED) // 2, replace=False).tolist())
    compared = set()
    for name, modules in samples(chosen):
        for module in drawn(modules, rng, 1):
            if agreement(name, module) == "agrees":
                compared.add(name.partition(" ")[0])
    assert len(compared) > len(chosen) * 0.8


def test_any_operator() -> None:
    """Equal, or refused with a code, whatever it is."""
    rng = np.random.default_rng()
    every = list(samples())
    outcomes = [
        agreement(name, module)
        for name, modules in (every[i] for i in rng.choice(len(every), 24, replace=False))
        for module in drawn(modules, rng, 1)
    ]
    assert {"agrees", "refused"} <= set(outcomes)


def drawn(modules: Callable[[], Iterator[Sampled]], rng: np.random.Generator, count: int) -> list[Sampled]:
    found = list(islice(modules(), MOST))
    return [found[i] for i in rng.choice(len(found), min(count, len(found)), replace=False)]


def agreement(name: str, module: Sampled) -> str:
    try:
        difference = differs(module)
    except UserError:
        return "refused"
    except ValueError:
        return "not comparable"
    except Exception as error:
        pytest.fail(f"{name} of {module.told()}: {error!r}")
    assert difference is None, f"{name} of {module.told()}: {difference}"
    return "agrees"
