"""What the kernel library is asked."""

from codegen.facts import facts, implementations
from planner.ops.base import Mode, op_named
from planner.ops.signature import signatures_of
from tests.graphs import small_net


def test_every_implementation_is_listed_once() -> None:
    """Also when the library has made kernels of them, which then come twice in its own list."""
    modes = [
        (signature, Mode(kernel, dim, min(limit, 2)))
        for signature in signatures_of([small_net()])
        for (kernel, dim), limit in op_named(signature.op).dims(signature).items()
        if kernel == "onednn"
    ]
    for signature, mode in modes:
        for name in implementations(signature, mode):
            facts(signature, mode._replace(implementation=name))
    for listed in (implementations(*asked) for asked in modes):
        assert listed and len(set(listed)) == len(listed)
