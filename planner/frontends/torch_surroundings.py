"""What surrounds operators while they are exported, which the exporter does not note, or takes for more than it is."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from planner.errors import UserError
from planner.frontends.torch_places import here
from planner.frontends.torch_stand_ins import in_place_of

LOWER = "leave autocast, half() and the like out of the module: the precision is the plan's (--precision bf16)"
"""What to do about operators of fewer bits."""


@contextmanager
def surroundings(torch: Any, module: Any) -> Iterator[None]:
    """Within it, inference mode is `no_grad`, which is noted. Autocast that changes nothing, as where it is not
    enabled, is not: within its blocks the exporter would forget what is detached, and where gradients are off. Neither
    is what moves a part of a module to where it is, whose parameters the exporter could not replace. A part whose call
    raises, and is called otherwise then, is left behind.

    SP1001: `module` computes under autocast that rounds."""
    devices = {t.device.type for t in (*module.parameters(), *module.buffers())} or {"cpu"}
    apply, called = torch.nn.Module._apply, torch.fx.Tracer.call_module

    def enter(self: Any) -> None:
        self._stand_in = torch.no_grad() if self.mode else torch.enable_grad()
        self._stand_in.__enter__()

    def leave(self: Any, *raised: Any) -> None:
        self._stand_in.__exit__(*raised)

    def enter_autocast(self: Any) -> Any:
        if self._enabled and self.device in devices:
            raise UserError("SP1001", f"the module computes in {self.fast_dtype} under torch.autocast{here()}", LOWER)
        return self

    def moved(self: Any, fn: Any, recurse: bool = True) -> Any:
        held = (*self.parameters(), *self.buffers())
        with torch.utils._python_dispatch._disable_current_modes(), torch._C.DisableTorchFunction():
            same = all(_is_like(fn(torch.empty(0, dtype=t.dtype, device=t.device)), t) for t in held)
        return self if same else apply(self, fn, recurse)

    def call_module(self: Any, *call: Any) -> Any:
        stack = dict(self.module_stack)
        try:
            return called(self, *call)
        except Exception:
            self.module_stack.clear()
            self.module_stack.update(stack)
            raise

    replaced: dict[tuple[Any, str], Any] = {
        (torch.inference_mode, "__enter__"): enter,
        (torch.inference_mode, "__exit__"): leave,
        (torch.autocast, "__enter__"): enter_autocast,
        (torch.autocast, "__exit__"): lambda self, *raised: None,
        (torch.nn.Module, "_apply"): moved,
        (torch.fx.Tracer, "call_module"): call_module,
    }
    with in_place_of(replaced):
        yield


def _is_like(moved: Any, tensor: Any) -> bool:
    return bool(moved.dtype is tensor.dtype and moved.device == tensor.device)
