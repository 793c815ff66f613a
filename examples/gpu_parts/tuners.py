"""PyTorch's coordinate descent (max-autotune), in several processes.

For every kernel that it generates, PyTorch 2.11's compiler compiles and times a dozen or more neighbours of its best
configuration, in turn, in the process that is about to launch it: ten minutes for a step of ResNet-50, by reckoning, as
one processor compiles them. Here the first step runs on what was best before the descent, and says what it launched;
processes of their own do the same descent for these kernels side by side, and before the second step, the first that is
recorded, every kernel becomes what its descent found; those whose descent is not over in time stay as they are. Not run
on a GPU yet: read from PyTorch's sources.
"""

import copy
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from codegen.cuda.turns import compilers_turns

Found = tuple[dict[str, int], int, int]
"""A configuration: blocks, warps, stages."""
Told = Callable[[str], None]


class Operand(NamedTuple):
    """What stands for a tensor in another process."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@contextmanager
def tuned_side_by_side(device: int, processes: int, patience_s: float, say: Told = print) -> Iterator[None]:
    """Meanwhile kernels are tuned so, from the end of the first step of any optimizer on, for so long at most."""
    from torch._inductor.runtime.hints import HeuristicType
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from torch.optim.optimizer import register_optimizer_step_post_hook

    untuned = (HeuristicType.TEMPLATE, HeuristicType.USER_AUTOTUNE, HeuristicType.FIXED)
    descend = CachingAutotuner.coordinate_descent_tuning
    asked: dict[int, tuple[Any, Future[Found]]] = {}
    first_step = True

    def ask(kernel: Any, launcher: Any, *arguments: Any, **named: Any) -> Any:
        if kernel.heuristic_type in untuned:
            return launcher
        if not first_step:
            return descend(kernel, launcher, *arguments, **named)
        if id(kernel) not in asked:
            operands = [_operand(a) for a in arguments], {k: _operand(a) for k, a in named.items()}
            asked[id(kernel)] = kernel, pool.submit(_descended, Path(kernel.filename).read_text(), *operands, device)
        return launcher

    def adopt(*_: Any) -> None:
        nonlocal first_step
        if first_step and asked:
            wait((answer for _, answer in asked.values()), patience_s)
            failed = [e for kernel, answer in asked.values() if (e := _adopted(kernel, answer))]
            say(f"{len(asked) - len(failed)} kernels tuned, {len(failed)} not: {failed[:3]}")
            pool.shutdown(wait=False, cancel_futures=True)
            first_step = False

    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        hook = register_optimizer_step_post_hook(adopt)
        CachingAutotuner.coordinate_descent_tuning = ask
        try:
            yield
        finally:
            CachingAutotuner.coordinate_descent_tuning = descend
            hook.remove()


def _operand(value: Any) -> Any:
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    return Operand(str(value.dtype).removeprefix("torch."), tuple(value.shape), value.stride())


def _descended(source: str, arguments: list[Any], named: dict[str, Any], device: int) -> Found:
    """In another process: what PyTorch's own descent finds for a kernel on random operands."""
    import torch
    from torch._inductor.codecache import PyCodeCache

    torch.cuda.set_device(device)
    match = re.search(r"^def (triton_\w+)\(", source, re.MULTILINE)
    assert match, source[:500]
    kernel = getattr(PyCodeCache.load(source), match[1])
    with compilers_turns(device):
        stream = torch.cuda.current_stream().cuda_stream
        kernel.run(*map(_made, arguments), stream=stream, **{k: _made(v) for k, v in named.items()})
    found = kernel.launchers[0].config
    return dict(found.kwargs), found.num_warps, found.num_stages


def _made(value: Any) -> Any:
    import torch

    if not isinstance(value, Operand):
        return value
    made = torch.empty_strided(value.shape, value.strides, dtype=getattr(torch, value.dtype), device="cuda")
    return made.normal_() if made.is_floating_point() else made.zero_()


def _adopted(kernel: Any, answer: "Future[Found]") -> str:
    """The kernel launches what was found; '', or why not."""
    try:
        blocks, warps, stages = answer.result(timeout=0)
        config = copy.deepcopy(kernel.launchers[0].config)
        config.kwargs, config.num_warps, config.num_stages, config.found_by_coordesc = blocks, warps, stages, True
        if kernel.fn.fn is None:  # it was compiled elsewhere
            kernel.fn = kernel._reload_kernel().fn
        kernel.launchers = [kernel._precompile_config(config).make_launcher()]
    except Exception as error:
        kernel.launchers[0].config.found_by_coordesc = True  # else it is asked for before every launch
        return f"{type(error).__name__}: {error}"[:200]
    return ""
