"""examples/gpu_parts/tuners.py: PyTorch's kernels are tuned by other processes. Here without a GPU and with none."""

from functools import partial
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


def kernel_of(folder: Path, source: str, kind: Any = None) -> Any:
    from torch._inductor.runtime.hints import HeuristicType

    (folder / source).write_text(source)
    config = SimpleNamespace(kwargs={"XBLOCK": 1}, num_warps=4, num_stages=1)
    kind = HeuristicType.POINTWISE if kind is None else kind
    made = SimpleNamespace(heuristic_type=kind, filename=str(folder / source), fn=SimpleNamespace(fn=None))
    made._reload_kernel = lambda: SimpleNamespace(fn=SimpleNamespace(fn=source))
    made._precompile_config = lambda c: SimpleNamespace(make_launcher=lambda: SimpleNamespace(config=c))
    made.launchers = [SimpleNamespace(config=config)]
    return made


def test_kernels_become_what_was_found_before_the_second_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime.hints import HeuristicType
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from gpu_parts import tuners

    monkeypatch.setattr(tuners, "_descended", found_elsewhere)
    told: list[str] = []

    def descend(kernel: Any, launcher: Any, *arguments: Any, **named: Any) -> str:
        return f"descent of {launcher.config.num_warps}"

    def launch(kernel: Any) -> Any:
        return CachingAutotuner.coordinate_descent_tuning(kernel, kernel.launchers[0], torch.ones(3, 4), 5, n=None)

    kernel = partial(kernel_of, tmp_path)
    right, wrong, template = kernel("right"), kernel("wrong"), kernel("template", HeuristicType.TEMPLATE)
    monkeypatch.setattr(CachingAutotuner, "coordinate_descent_tuning", descend)
    parameter = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    with tuners.tuned_side_by_side(0, 2, 100.0, told.append):
        for each in (right, right, wrong, template):
            assert launch(each) is each.launchers[0]
        optimizer.step()
        config = right.launchers[0].config
        assert (config.kwargs, config.num_warps, config.num_stages) == ({"XBLOCK": 32}, 8, 5)
        assert config.found_by_coordesc and right.fn.fn == "right"
        assert (
            wrong.launchers[0].config.num_warps == 4
            and wrong.launchers[0].config.found_by_coordesc
            and told == ["1 kernels tuned, 1 not: ['ValueError: no such block']"]
        )
        assert launch(right) == "descent of 8"  # what the first step did not have
        optimizer.step()
        assert len(told) == 1
    assert CachingAutotuner.coordinate_descent_tuning is descend


def test_kernels_stay_as_they_are_where_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from gpu_parts import tuners

    monkeypatch.setattr(tuners, "_descended", found_elsewhere)
    late, told = kernel_of(tmp_path, "late"), []
    before = late.launchers[0]
    parameter = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    with tuners.tuned_side_by_side(0, 1, 0.0, told.append):
        CachingAutotuner.coordinate_descent_tuning(late, before, torch.ones(3, 4), 5, n=None)
        optimizer.step()
        assert late.launchers == [before] and before.config.num_warps == 4 and before.config.found_by_coordesc
    assert told == ["0 kernels tuned, 1 not: ['TimeoutError: ']"]
