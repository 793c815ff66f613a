"""What every op declares: shape rule, gradient, cost, slice rule, NumPy reference and samples, in one class.

A **mode** says how a node runs: which kernel, along which dimension it is sliced, in how many slices. A node runs
in one or more **stages**; within a stage every slice is independent, between stages all slices of the node meet.
Slice i of k of an extent n covers [n*i//k, n*(i+1)//k): the same rule as `split` in runtime/slices.hpp.
"""

from abc import ABC
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from planner.errors import UserError
from planner.graph.model import Attrs, DType, Layout, Node, TensorType
from planner.units import Bytes, align

if TYPE_CHECKING:
    from planner.graph.gradient import GradientContext

Array = np.ndarray[Any, np.dtype[Any]]


def split(extent: int, parts: int, index: int) -> tuple[int, int]:
    """The half-open range of slice `index` out of `parts`."""
    return (extent * index // parts, extent * (index + 1) // parts)


def split_channels(extent: int, parts: int, index: int) -> tuple[int, int]:
    """As `split`, but boundaries fall on multiples of 16 channels where there are enough (runtime/slices.hpp)."""
    if extent < 16 * parts:
        return split(extent, parts, index)
    lo, hi = split(-(-extent // 16), parts, index)
    return (lo * 16, min(extent, hi * 16))


def misfit(problem: str, fix: str) -> UserError:
    """SP1002: the operands' shapes do not fit the op."""
    return UserError("SP1002", problem, fix)


class Mode(NamedTuple):
    """How one node runs on the CPU."""

    kernel: str
    """`onednn` or `loops`; which implementation family computes the node."""
    dim: str
    """The dimension that is sliced, in the op's own words: batch, rows, columns, channels, elements, whole."""
    slices: int
    implementation: str = ""
    """The library's name of one of several implementations (`brgconv:avx512_core`), or how a loop's results are written
    (ops/streaming.py); empty: there is only one, or it is the plain one."""

    def text(self) -> str:
        name = f" {self.implementation}" if self.implementation else ""
        return f"{self.kernel}/{self.dim}x{self.slices}{name}"


class Access(NamedTuple):
    """One slice touches part of one operand: the rectangle rows x cols of the operand's elements, laid out in
    memory order as lines of `width` elements. A contiguous span is a rectangle of width 1.

    `operand` is in0.., out0.., up0.., or the name of a scratch part; a scratch part counts in shares of its own
    (usually one per slice), which are only ever compared with each other.
    """

    operand: str
    write: bool
    rows: tuple[int, int]
    cols: tuple[int, int] = (0, 1)
    width: int = 1

    @property
    def hull(self) -> tuple[int, int]:
        """The smallest contiguous span of elements that holds the rectangle."""
        if self.rows[0] >= self.rows[1] or self.cols[0] >= self.cols[1]:
            return (0, 0)
        return (self.rows[0] * self.width + self.cols[0], (self.rows[1] - 1) * self.width + self.cols[1])

    def overlaps(self, other: "Access") -> bool:
        """Whether both may touch the same element of the same operand; exact for equal widths, else by hulls."""
        a, b = self.hull, other.hull
        if a[0] >= b[1] or b[0] >= a[1] or a[0] == a[1] or b[0] == b[1]:
            return False
        if self.width == other.width and self.width > 1:
            return self.cols[0] < other.cols[1] and other.cols[0] < self.cols[1]
        return True


def reads(operand: str, lo: int, hi: int) -> Access:
    """Reads the contiguous elements [lo, hi)."""
    return Access(operand, False, (lo, hi))


def writes(operand: str, lo: int, hi: int) -> Access:
    """Writes the contiguous elements [lo, hi)."""
    return Access(operand, True, (lo, hi))


@dataclass(frozen=True)
class ScratchPart:
    """A named piece of a node's scratch block."""

    name: str
    bytes: Bytes


Facts = Mapping[str, int]
"""What only the kernel library knows of a (signature, mode): packed_bytes, scratch_bytes (per slice) and partial_bytes
(of all slices together); and how weights are stored (ops/stored.py)."""


@dataclass(frozen=True)
class Sample:
    """A test case that pytest collects: attributes and input types (inputs are drawn at random, see Op.draw)."""

    attrs: Attrs
    inputs: tuple[TensorType, ...]


@dataclass(frozen=True)
class Signature:
    """An op with its attributes and types: what a cost is keyed by."""

    op: str
    attrs: Attrs
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    updates: tuple[TensorType, ...] = ()
    text: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        types = ",".join(t.text() for t in self.inputs + self.updates)
        results = ",".join(t.text() for t in self.outputs)
        attrs = self.attrs.text()
        object.__setattr__(self, "text", f"{self.op}({types}{';' + attrs if attrs else ''})->({results})")

    def __hash__(self) -> int:
        return hash(self.text)


class Again(NamedTuple):
    """A node that makes the first `results` outputs of another one again, bit for bit."""

    op: str
    attrs: Attrs
    inputs: tuple[str, ...]
    """Values of the graph; they may be results of the original node."""
    results: int


EVERY = range(2**16)
"""For `Op.low_precision`: every input."""

FLOATING = frozenset({DType.FLOAT32, DType.BFLOAT16, DType.FLOAT64})


def accumulated(dtype: DType) -> DType:
    """What sums over operands of this type are kept in."""
    return DType.FLOAT32 if dtype is DType.BFLOAT16 else dtype


def round_bfloat16(x: Array) -> Array:
    """The nearest bfloat16 numbers, ties to even, in the array's own type."""
    words = np.asarray(x, np.float32, order="C").view(np.uint32)
    rounded = (words + (((words >> 16) & 1) + np.uint32(0x7FFF))) & np.uint32(0xFFFF0000)
    kept = np.where(np.isnan(x), np.float32(np.nan), rounded.view(np.float32))
    return kept.astype(x.dtype)


def _counts(allowed: tuple[int, ...]) -> str:
    return " or ".join(map(str, allowed)) or "any number of"


def common_layout(inputs: Sequence[TensorType]) -> tuple[Layout | None, ...]:
    """All rank-4 operands in the layout of the largest one (the first of these)."""
    rank4 = [t for t in inputs if len(t.shape) == 4]
    layout = max(rank4, key=lambda t: t.elements).layout if rank4 else None
    return (layout,) * len(inputs)


class Op(ABC):
    """An op. Subclasses are stateless; one instance each is registered under `name`."""

    name: ClassVar[str]
    family: ClassVar[str]
    """The template that renders it: templates/cpu/ops/<family>.cpp.j2."""
    attrs_type: ClassVar[type[Attrs]] = Attrs
    input_layout: ClassVar[Layout | None] = None
    """The layout that rank-4 inputs must have; None takes any. The builder inserts conversions."""
    output_names: ClassVar[tuple[str, ...]] = ("y",)
    """Suffixes of the output ids; ops with fewer results use the first ones."""
    saved_outputs: ClassVar[frozenset[str]] = frozenset()
    """Outputs that only the op's own backward node reads."""
    stages: ClassVar[int] = 1
    input_counts: ClassVar[tuple[int, ...]] = (1,)
    """How many inputs the op takes; empty: one or more."""
    update_counts: ClassVar[tuple[int, ...]] = (0,)
    integers: ClassVar[Mapping[int, DType]] = {}
    """Positions of inputs that are not floating point, with their dtype."""
    differentiable: ClassVar[bool] = True
    """False: the results do not change with the inputs wherever they have a gradient at all (comparisons)."""
    shares_weights: ClassVar[bool] = False
    """Whether y = x times weights, row by row: of nodes with the same weights, their gradient may be made at once."""
    constants: ClassVar[frozenset[int]] = frozenset()
    """Positions of inputs that the gradient rule leaves out; SP1002 where something needs their gradient."""
    any_dtype: ClassVar[bool] = False
    """Whether the op moves data of every dtype."""

    joint_launch: ClassVar[int] = 0
    """How many neighbours of this op one launch on a GPU computes at most; 0: every node has a launch of its own."""
    low_precision: ClassVar[Container[int] | None] = None
    """Positions of the inputs that may be bfloat16: all of them that are floating point, or none. The others are
    float32 then. None: the op computes on float32 alone (planner/graph/precision.py)."""
    leads: ClassVar[Container[int] | None] = None
    """Positions of the inputs among them of which one must be bfloat16 for all of them to become it; None: any."""

    # -- meaning -----------------------------------------------------------------------------------------------
    def layouts(self, attrs: Any, inputs: Sequence[TensorType]) -> tuple[Layout | None, ...]:
        """The layout that each rank-4 input must have (None: as it is)."""
        return (self.input_layout,) * len(inputs)

    def settle(self, attrs: Any, node: str, inputs: Sequence[TensorType]) -> Attrs:
        """The attributes with what only the builder knows filled in; `inputs` already have their layouts."""
        settled: Attrs = attrs
        return settled

    def check(self, attrs: Any, inputs: Sequence[TensorType], updates: Sequence[TensorType]) -> None:
        """SP1002 unless number and dtypes of the operands, and the types of the updates, fit. Called before `infer`,
        which checks the shapes of the inputs."""
        if len(inputs) not in (self.input_counts or (max(1, len(inputs)),)) or len(updates) not in self.update_counts:
            raise misfit(
                f"{self.name} takes {_counts(self.input_counts)} inputs and {_counts(self.update_counts)} updates, "
                f"not {len(inputs)} and {len(updates)}",
                "give it the operands that its documentation lists",
            )
        for position, type_ in enumerate(inputs):
            wanted = self.integers.get(position)
            if not self.any_dtype and (type_.dtype is not wanted if wanted else type_.dtype not in FLOATING):
                expected = wanted.value if wanted else "floating point"
                raise misfit(f"input {position} of {self.name} is {type_.text()}, not {expected}", "cast it first")
        self._check_precision(attrs, inputs)
        for type_ in updates:
            if type_.dtype not in FLOATING:
                raise misfit(f"{self.name} cannot update {type_.text()}", "update floating point values")

    def names(self, attrs: Any) -> tuple[str, ...]:
        """`output_names` under these attributes."""
        return self.output_names

    def low_inputs(self, attrs: Any) -> Container[int] | None:
        """`low_precision` under these attributes."""
        return self.low_precision

    def _check_precision(self, attrs: Any, inputs: Sequence[TensorType]) -> None:
        """SP1002 unless the inputs that are bfloat16 are those that the op takes so."""
        low = {i for i, t in enumerate(inputs) if t.dtype is DType.BFLOAT16}
        allowed = self.low_inputs(attrs) or ()
        able = {i for i, t in enumerate(inputs) if i in allowed and t.dtype in FLOATING}
        if low and low != able:
            wrong = min(low ^ able)
            raise misfit(
                f"input {wrong} of {self.name} is {inputs[wrong].text()} where "
                + ("other inputs are bfloat16" if wrong in able else "it takes no bfloat16"),
                "cast it first",
            )

    def infer(self, attrs: Any, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        """Output types from input types. Raises UserError SP1002 when the shapes do not fit the op."""
        raise NotImplementedError

    def gradient(self, context: "GradientContext") -> None:
        """Add backward nodes: read `context.grad_outputs`, call `context.give(input_index, gradient_value_id)`."""
        raise NotImplementedError

    def gradient_of_weights(self, context: "GradientContext", x: str, dy: str) -> None:
        """Where weights are shared: their part of the gradient, of rows that several nodes may have read."""
        raise NotImplementedError

    def gradient_of_data(self, context: "GradientContext") -> None:
        """Where weights are shared: the other part."""
        raise NotImplementedError

    def evaluation(self, node: Node, inputs: list[str]) -> tuple[str, Attrs, list[str]] | None:
        """(op, attrs, inputs) of this node in evaluation mode; None when it passes its first input through."""
        return (node.op, node.attrs, inputs)

    def again(self, node: Node) -> "Again | None":
        """How to make the node's results a second time with the same bits; None when that is impossible.

        By default the op itself; one with updates must say how it leaves them alone.
        """
        return None if node.updates else Again(node.op, node.attrs, node.inputs, len(node.outputs))

    def reference(self, attrs: Any, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """The op in NumPy, on logical shapes, in the inputs' precision. For an op with `updates`, those arrays
        follow the inputs and their new contents follow the outputs."""
        raise NotImplementedError

    # -- cost --------------------------------------------------------------------------------------------------
    def flops(self, signature: Signature) -> int:
        """Floating-point operations, multiply and add counted apart."""
        return sum(t.elements for t in signature.outputs)

    def bytes_moved(self, signature: Signature) -> Bytes:
        """Bytes read and written at least once."""
        return Bytes(
            sum(t.bytes for t in signature.inputs)
            + sum(t.bytes for t in signature.outputs)
            + 2 * sum(t.bytes for t in signature.updates)
        )

    def measured_with(self, signature: Signature) -> Mapping[int, Array]:
        """Inputs whose whole numbers decide how much there is to do -> those that the op is measured with."""
        return {}

    # -- slicing -----------------------------------------------------------------------------------------------
    def picked(self, signature: Signature) -> Mapping[str, Bytes]:
        """Operands (`in0`, `up0`) of which a run touches rows that its indices pick, and at most how many bytes."""
        return {}

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        """(kernel, dim) -> the largest useful number of slices. Must not be empty; every count up to it is valid."""
        raise NotImplementedError

    def redundant(self, signature: Signature, mode: Mode) -> bool:
        """Whether another dimension surely serves as well, so that there is no need to time this mode."""
        return False

    def schedules(self, signature: Signature) -> Sequence[str]:
        """Implementations that a generated loop has besides the plain one, the same bit for bit."""
        return ()

    def stage_count(self, signature: Signature, mode: Mode, facts: Facts) -> int:
        return self.stages

    def scratch(self, signature: Signature, mode: Mode, facts: Facts) -> tuple[ScratchPart, ...]:
        """The node's scratch block, part after part, each aligned to a cache line."""
        return ()

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        """Everything slice `index` of `stage` reads and writes. The checker and the sync pass live on this."""
        raise NotImplementedError

    def inplace(self, signature: Signature, mode: Mode) -> tuple[tuple[int, int], ...]:
        """(output, input) pairs that may be the same bytes: every slice touches only its own part of both,
        in every stage."""
        return ()

    def alias(self, signature: Signature) -> tuple[int, int] | None:
        """(output, input) when the op is only another view of the same bytes and nothing runs (reshape)."""
        return None

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        """Random inputs for a sample; ops with index inputs override it."""
        return tuple(rng.standard_normal(t.shape).astype(np.float64) for t in sample.inputs)

    def samples(self) -> Sequence[Sample]:
        return ()


_REGISTRY: dict[str, Op] = {}


def register(cls: type[Op]) -> type[Op]:
    """Class decorator: make an op known by its name."""
    _REGISTRY[cls.name] = cls()
    return cls


def find_op(name: str) -> Op | None:
    return _REGISTRY.get(name)


def op_named(name: str) -> Op:
    """The op; an unknown name in a graph file is SP1003 (the frontends report SP1001 themselves)."""
    import difflib

    op = _REGISTRY.get(name)
    if op is None:
        near = difflib.get_close_matches(name, _REGISTRY, 1, 0.0)
        raise UserError(
            "SP1003", f"unknown op {name[:80]!r}", f"the nearest supported op is {near[0] if near else 'none'}"
        )
    return op


def all_ops() -> Mapping[str, Op]:
    return dict(sorted(_REGISTRY.items()))


def scratch_bytes(parts: Sequence[ScratchPart]) -> Bytes:
    """Size of a scratch block: its parts one after the other, each rounded up to a cache line."""
    return Bytes(sum(align(p.bytes) for p in parts))


def scratch_offsets(parts: Sequence[ScratchPart]) -> dict[str, Bytes]:
    """Where each part starts within the block."""
    offsets, position = {}, 0
    for part in parts:
        offsets[part.name] = Bytes(position)
        position += align(part.bytes)
    return offsets
