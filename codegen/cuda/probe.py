"""The probe: a module built once per architecture that times what a GPU's libraries have for a shape."""

import functools
import hashlib
import importlib.machinery
import importlib.util
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

from codegen import toolchain
from codegen.cpu.shapes import CONV_KINDS, conv_shape, matmul_shape
from codegen.cuda.build import link_flags, probe_units
from codegen.cuda.facts import has_bias
from codegen.cuda.toolchain import load_nvrtc
from codegen.cuda.turns import turns_file
from planner.errors import InternalError
from planner.graph.model import DType
from planner.ops.base import Signature, op_named
from planner.ops.matmul import MatmulAttrs

KINDS = ("forward", "backward_data", "backward_weights")

WORKSPACE = 2**30
"""Bytes of workspace that algorithms may ask for."""


class Algorithm(NamedTuple):
    """One way of a library to compute a signature."""

    name: str
    workspace: int
    ns: float


def algorithms(
    signature: Signature, arch: str, *, tf32: bool, device: int = 0, null_device: bool = False, brief: bool = False
) -> tuple[Algorithm, ...]:
    """Every algorithm of a convolution or matrix product, the fastest first; none for other ops. `tf32`: also those
    that round to it, unless the signature says that they may not. `brief`: two of them, timed roughly."""
    tf32 = tf32 and not is_exact(signature)
    module, turns = probe(arch, null_device), str(turns_file(device))
    if signature.op in CONV_KINDS:
        shape, kind = conv_fields(signature), KINDS[CONV_KINDS[signature.op]]
        low = signature.inputs[0].dtype is DType.BFLOAT16
        found: Sequence[Any] = module.convolution(
            device, kind, shape, tf32, low, has_bias(signature), WORKSPACE, brief, turns
        )
    elif op_named(signature.op).family == "matmul":
        shape = matmul_shape(signature)
        sizes = _operand_sizes(signature)
        halves = tuple(t.dtype is DType.BFLOAT16 for t in (signature.inputs[0], signature.outputs[0]))
        found = module.product(device, shape[:13], bool(shape[13]), sizes, tf32, *halves, WORKSPACE, brief, turns)
    else:
        return ()
    if not found:
        raise InternalError(f"the GPU's library computes no {signature.text}")
    return tuple(Algorithm(*each) for each in found)


def conv_fields(signature: Signature) -> tuple[int, ...]:
    """The fields of Conv (runtime/cuda/library.hpp) that are numbers: 16 and the 6 of Depth."""
    fields = conv_shape(signature)
    return (*fields[:16], *fields[18:])


def is_exact(signature: Signature) -> bool:
    """Whether a product is to be computed in float32."""
    return isinstance(signature.attrs, MatmulAttrs) and signature.attrs.exact


def _operand_sizes(signature: Signature) -> tuple[int, int, int]:
    """Elements of a, b and c."""
    product = op_named(signature.op).product(signature)  # type: ignore[attr-defined]
    types = {f"in{i}": t for i, t in enumerate(signature.inputs)} | {
        f"out{i}": t for i, t in enumerate(signature.outputs)
    }
    a, b, c = (types[m.operand].elements for m in (product.a, product.b, product.c))
    return (a, b, c)


@functools.cache
def probe(arch: str, null_device: bool = False) -> ModuleType:
    """The module, built when first asked for."""

    from codegen.build import compile_all

    objects = compile_all(probe_units(arch, null_device))
    flags = link_flags(null_device)  # where the libraries lie, which this one remembers
    key = hashlib.sha256("\n".join([*(o.name for o in objects), *flags]).encode()).hexdigest()[:24]
    library = toolchain.cache_folder() / "objects" / f"_probe-{key}.so"
    if not library.exists():
        command = [toolchain.compiler().path, "-shared", "-pthread", *map(str, objects), *flags]
        toolchain.run_compiler(command, library)
    if not null_device:
        load_nvrtc()
    loader = importlib.machinery.ExtensionFileLoader("_probe", str(library))
    spec = importlib.util.spec_from_file_location("_probe", library, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
