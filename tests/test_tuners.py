"""examples/gpu_parts/tuners.py: PyTorch's kernels are tuned by other processes. Here without a GPU and with none."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]


def found_elsewhere(source: str, arguments: list[Any], named: dict[str, Any], device: int) -> Any:
    assert (arguments[1:], named) == ([5], {"n": None}), (arguments, named)
    if source == "wrong":
        raise ValueError("no such block")
    return {"XBLOCK": 8 * arguments[0].shape[1]}, 8, len(source)


def test_kernels_become_what_was_found_before_the_second_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime.hints import HeuristicType
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from gpu_parts import tuners

    monkeypatch.setattr(tuners, "_descended", found_elsewhere)
    told: list[str] = []

    def descend(kernel: Any, launcher: Any, *arguments: Any, **named: Any) -> str:
        return f"descent of {launcher.config.num_warps}"

    def kernel(source: str, kind: Any = HeuristicType.POINTWISE) -> Any:
        (tmp_path / source).write_text(source)
        config = SimpleNamespace(kwargs={"XBLOCK": 1}, num_warps=4, num_stages=1)
        made = SimpleNamespace(heuristic_type=kind, filename=str(tmp_path / source), fn=SimpleNamespace(fn=None))
        made._reload_kernel = lambda: SimpleNamespace(fn=SimpleNamespace(fn=source))
        made._precompile_config = lambda c: SimpleNamespace(make_launcher=lambda: SimpleNamespace(config=c))
        made.launchers = [SimpleNamespace(config=config)]
        return made

    def launch(kernel: Any) -> Any:
        return CachingAutotuner.coordinate_descent_tuning(kernel, kernel.launchers[0], torch.ones(3, 4), 5, n=None)

    right, wrong, template = kernel("right"), kernel("wrong"), kernel("template", HeuristicType.TEMPLATE)
    monkeypatch.setattr(CachingAutotuner, "coordinate_descent_tuning", descend)
    parameter = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    with tuners.tuned_side_by_side(0, 2, told.append):
        for each in (right, right, wrong, template):
            assert launch(each) is each.launchers[0]
        optimizer.step()
        config = right.launchers[0].config
        assert (config.kwargs, config.num_warps, config.num_stages) == ({"XBLOCK": 32}, 8, 5)
        assert config.found_by_coordesc and right.fn.fn == "right"
        assert wrong.launchers[0].config.num_warps == 4 and told == [
            "2 kernels tuned, 1 not: ['ValueError: no such block']"
        ]
        assert launch(right) == "descent of 8"  # what the first step did not have
        optimizer.step()
        assert len(told) == 1
    assert CachingAutotuner.coordinate_descent_tuning is descend
