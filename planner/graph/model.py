"""The training graph: values, nodes and programs, as frozen models.

Shapes are the framework's logical shapes (images are N, C, H, W); `layout` says how the elements lie in memory.
Nodes are listed in a valid execution order; a node that modifies a value in place names it in `updates`, and
everything listed before it that reads that value must run before it.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from math import prod
from typing import Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)

from planner.errors import UserError
from planner.graph.results import Structure, tensors
from planner.units import Bytes

ID_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,199}")


class Frozen(BaseModel):
    """Base of all artefact models: immutable, unknown fields are errors, NaN and infinity are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """As pydantic's, but without the cached properties of the original, which the update may contradict."""
        copy = super().model_copy(update=update, deep=deep)
        for name in set(copy.__dict__) - set(type(self).model_fields):
            del copy.__dict__[name]
        return copy


class Settings(Frozen):
    """Base of what callers fill in themselves: a field that is unknown, or whose value it cannot have, is a UserError
    with the class's code."""

    code: ClassVar[str]

    @model_validator(mode="wrap")
    @classmethod
    def _told(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(given)
        except ValidationError as error:
            told = [".".join((cls.__name__, *map(str, e["loc"]))) + f": {e['msg']}" for e in error.errors()]
            raise UserError(cls.code, "; ".join(told), "correct what is named") from None


class DType(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    INT64 = "int64"
    INT32 = "int32"
    UINT8 = "uint8"
    FLOAT64 = "float64"

    @property
    def itemsize(self) -> int:
        return _ITEMSIZE[self]

    @property
    def short(self) -> str:
        return {
            "float32": "f32",
            "bfloat16": "bf16",
            "int64": "i64",
            "int32": "i32",
            "uint8": "u8",
            "float64": "f64",
        }[self.value]


_ITEMSIZE: Mapping[DType, int] = {
    DType.FLOAT32: 4,
    DType.BFLOAT16: 2,
    DType.INT64: 8,
    DType.INT32: 4,
    DType.UINT8: 1,
    DType.FLOAT64: 8,
}


class Layout(StrEnum):
    ROW_MAJOR = "row_major"
    CHANNELS_LAST = "channels_last"
    """Only for rank 4: N, C, H, W lie in memory as N, H, W, C."""


class TensorType(Frozen):
    shape: tuple[int, ...]
    dtype: DType = DType.FLOAT32
    layout: Layout = Layout.ROW_MAJOR

    @field_validator("shape")
    @classmethod
    def _positive(cls, shape: tuple[int, ...]) -> tuple[int, ...]:
        if any(d < 1 for d in shape):
            raise ValueError(f"every dimension must be at least 1, not {shape}")
        return shape

    @cached_property
    def elements(self) -> int:
        return prod(self.shape)

    @cached_property
    def bytes(self) -> Bytes:
        return Bytes(self.elements * self.dtype.itemsize)

    @cached_property
    def physical_shape(self) -> tuple[int, ...]:
        """The dimensions in memory order, outermost first."""
        if self.layout is Layout.CHANNELS_LAST:
            n, c, h, w = self.shape
            return (n, h, w, c)
        return self.shape

    def text(self) -> str:
        """`f32[16,64,56,56]cl`: how signatures and comments spell a type."""
        return self._text

    @cached_property
    def _text(self) -> str:
        suffix = "cl" if self.layout is Layout.CHANNELS_LAST else ""
        return f"{self.dtype.short}[{','.join(map(str, self.shape))}]{suffix}"


class Role(StrEnum):
    INPUT = "input"
    PARAMETER = "parameter"
    STATE = "state"
    """Lives across steps without being trained: running statistics, momentum."""
    ACTIVATION = "activation"
    SAVED = "saved"
    """Kept by a forward node for its backward node only: masks, argmax, batch statistics."""
    GRADIENT = "gradient"
    OUTPUT = "output"


PERSISTENT = frozenset({Role.PARAMETER, Role.STATE})


class Init(Frozen):
    """How a persistent value starts: uniform(-bound, bound), normal(0, std), data (a captured module's weights)."""

    kind: Literal["zeros", "ones", "constant", "uniform", "normal", "data"]
    value: float = 0.0


class Value(Frozen):
    id: str
    type: TensorType
    role: Role
    name: str = ""
    """The framework's name of a parameter or state (`layer1.0.conv1.weight`); empty otherwise."""
    aliases: tuple[str, ...] = ()
    """The framework's further names of the same tensor: tied parameters."""
    constant: bool = False
    """Fixed by the model's code, no part of the framework's state."""
    pairs: bool = False
    """Complex numbers of the framework's, their real and imaginary parts in a last dimension of two."""
    gradient_of: str = ""
    init: Init | None = None

    @field_validator("id")
    @classmethod
    def _valid_id(cls, text: str) -> str:
        return valid_id(text)

    @field_validator("name")
    @classmethod
    def _valid_name(cls, text: str) -> str:
        if not text.isprintable():
            raise ValueError(f"name {text[:80]!r} may hold only what can be printed")
        return text

    @field_validator("aliases")
    @classmethod
    def _valid_aliases(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(cls._valid_name(name) for name in names)


class Attrs(Frozen):
    """An op's attributes; every op family declares its own subclass."""

    costless: ClassVar[frozenset[str]] = frozenset()
    """Fields that change results but not what it takes to compute them."""
    optional: ClassVar[frozenset[str]] = frozenset()
    """Fields that are told only where they are not the default: cost tables know the op without them."""

    def text(self) -> str:
        """`stride=(1,1) padding=(0,0)`: sorted, without spaces inside a value, without what is costless; part of the
        signature."""
        return self._text

    @cached_property
    def _text(self) -> str:
        fields = type(self).model_fields
        quiet = {name for name in self.optional if getattr(self, name) == fields[name].default}
        pairs = sorted(self.model_dump(mode="json", exclude=quiet | self.costless).items())
        return " ".join(f"{k}={_attr_text(v)}" for k, v in pairs)


def _attr_text(value: object) -> str:
    if isinstance(value, list | tuple):
        return "(" + ",".join(_attr_text(v) for v in value) + ")"
    return repr(value) if isinstance(value, float) else str(value)


class Node(Frozen):
    id: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    updates: tuple[str, ...] = ()
    """Values read and modified in place (parameters, momentum, running statistics)."""
    attrs: SerializeAsAny[Attrs] = Attrs()
    phase: str = "forward"
    """forward, backward or update."""
    origin: str = ""
    """Where the node came from: the layer or source line, for comments and error messages."""

    @field_validator("id")
    @classmethod
    def _valid_id(cls, text: str) -> str:
        return valid_id(text)

    @property
    def reads(self) -> tuple[str, ...]:
        return self.inputs + self.updates

    @property
    def writes(self) -> tuple[str, ...]:
        return self.outputs + self.updates


Constant = bool | int | float | str | dict[Literal["text"], str] | None
"""An argument that is no tensor; as text what JSON has no name for."""


class Program(Frozen):
    """One runnable sequence over the graph's values: `train_step` or `predict`."""

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    results: Structure = None
    """What the module returns in place of its tensors alone (planner/graph/results.py); None: one, or a tuple."""
    arguments: Mapping[str, Constant] | None = None
    """What the module was called with beside tensors (planner/frontends/torch_arguments.py); None: it is not told."""

    @field_validator("name")
    @classmethod
    def _valid_name(cls, text: str) -> str:
        return valid_id(text)

    @field_validator("results")
    @classmethod
    def _valid_results(cls, structure: Structure) -> Structure:
        if structure is not None:
            list(tensors(structure))
        return structure

    @cached_property
    def node(self) -> Mapping[str, Node]:
        return {n.id: n for n in self.nodes}


class Graph(Frozen):
    name: str
    values: tuple[Value, ...]
    programs: tuple[Program, ...]
    lr: float | None = Field(default=None, gt=0, allow_inf_nan=False, strict=True)
    """The optimizer's learning rate, to which those of all updates are in proportion; None: the first update's."""
    loss_prefix: str = ""
    """What begins the framework's names of a loss's parameters and buffers, and no others; empty: it has none."""

    @field_validator("name")
    @classmethod
    def _valid_name(cls, text: str) -> str:
        return valid_id(text)

    @cached_property
    def value(self) -> Mapping[str, Value]:
        return {v.id: v for v in self.values}

    @cached_property
    def program(self) -> Mapping[str, Program]:
        return {p.name: p for p in self.programs}

    @cached_property
    def memo(self) -> dict[object, Any]:
        """What others work out of this graph once and keep with it: its hash, the signatures of its nodes."""
        return {}

    def types(self, ids: tuple[str, ...]) -> tuple[TensorType, ...]:
        return tuple(self.value[i].type for i in ids)


def valid_id(text: str) -> str:
    """Ids become identifiers and comments of emitted code, so nothing else than these characters may pass."""
    if not ID_PATTERN.fullmatch(text):
        raise ValueError(f"id {text[:80]!r} must start with a letter and hold only letters, digits, '.' and '_'")
    return text


def unsupported(node: str, op: str, nearest: str, where: str = "") -> UserError:
    """The error for an op that stepplan lacks: names node, op, source line where known, and the nearest op."""
    place = f" ({where})" if where else ""
    return UserError(
        "SP1001", f"node {node!r}{place} uses unsupported op {op!r}", f"the nearest supported op is {nearest}"
    )
