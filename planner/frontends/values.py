"""The values that a frontend adds to a graph: inputs, parameters, states and constants, with their data."""

from collections.abc import Sequence
from hashlib import sha256

import numpy as np

from planner.errors import UserError
from planner.frontends.naming import fresh_id, identifier, safe_name
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Init, Layout, Node, Role, TensorType, Value
from planner.ops.base import Array
from planner.ops.heads import is_causal
from planner.ops.shape import FillAttrs


class Values:
    """`weights` collects the data of parameters, states and constants; `name`: of the layer that nodes belong to."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.b = builder
        self.name = ""
        self.weights: dict[str, Array] = {}
        self.aliases: dict[str, tuple[str, ...]] = {}
        """Framework's name -> its other names for the same tensor."""
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        """Type, shape and contents of constants without a name of their own -> the value."""

    def fresh(self, name: str) -> str:
        """A value id made from a framework's name: `0.weight` becomes `_0.weight`."""
        return fresh_id(name, self.b.values)

    def input(self, name: str, shape: Sequence[int], dtype: DType = DType.FLOAT32) -> str:
        """A model input; images (rank 4) are channels-last."""
        image = len(shape) == 4 and dtype is DType.FLOAT32
        layout = Layout.CHANNELS_LAST if image else Layout.ROW_MAJOR
        return self.b.input(self.fresh(name), TensorType(shape=tuple(shape), dtype=dtype, layout=layout))

    def stored(
        self,
        name: str,
        data: Array,
        role: Role,
        trainable: bool = True,
        constant: bool = False,
        pairs: bool = False,
    ) -> str:
        """A parameter or state that starts from `data`, under the framework's name; `pairs`: of complex numbers.
        SP1011: it has no element."""
        if not data.size:
            what = f"the model's {role.value} {name!r} has the shape {data.shape}, which no element fits"
            raise UserError("SP1011", what, "leave out what is empty")
        kinds = {"float32": DType.FLOAT32, "int64": DType.INT64}
        type_ = TensorType(shape=data.shape, dtype=kinds[data.dtype.name])
        safe = safe_name(name)
        value = Value(
            id=self.fresh(name),
            type=type_,
            role=role,
            name=safe,
            aliases=tuple(map(safe_name, self.aliases.get(name, ()))),
            constant=constant,
            pairs=pairs,
            init=Init(kind="data"),
        )
        if role is Role.PARAMETER and not trainable:
            self.b.frozen.add(value.id)
        self.weights[safe] = data
        return self.b.add_value(value)

    def constant(self, data: Array, name: str = "", in_state: bool = False) -> str:
        """A constant as a value: a filled tensor where all elements are equal, else a state.

        name: the framework's, of a buffer; in_state: the framework saves it with the model's state. Without a name,
        equal constants are one value.
        """
        if data.dtype != np.int64:
            data = np.asarray(data, np.float32)
            first = float(data.flat[0]) if data.size else 0.0
            if not name and np.isfinite(first) and bool((data == data.flat[0]).all()):
                return self.fill(data.shape, first)
        if not name:
            key = (data.dtype.name, data.shape, sha256(data.tobytes()).digest())
            if key not in self._constants:
                self._constants[key] = self._state_of(self._constant_name(), data, in_state)
            return self._constants[key]
        return self._state_of(name, data, in_state)

    def _state_of(self, name: str, data: Array, in_state: bool) -> str:
        value = self.stored(name, data, Role.STATE, constant=not in_state)
        if not in_state and data.dtype == np.float32 and is_causal(data):
            self.b.causal.add(value)
        return value

    def _constant_name(self) -> str:
        count = sum(1 for w in self.weights if w.startswith("constant_"))
        return f"constant_{count}"

    def fill(self, shape: Sequence[int], value: float) -> str:
        return self.b.op("ones", [], FillAttrs(shape=tuple(shape), value=value), name=identifier(self.name) or "fill")[
            0
        ]

    def shape(self, value: str) -> tuple[int, ...]:
        return self.b.shape(value)

    def rank(self, value: str) -> int:
        return len(self.b.shape(value))

    def maker(self, value: str) -> Node | None:
        """The node that the value is a result of; found from the end, as it is often one of the last."""
        return next((n for n in reversed(self.b.nodes) if value in n.outputs), None)

    def behind_views(self, value: str, *ops: str) -> str:
        """What the value is a view of, if it is one by such ops (default: reshape)."""
        while (maker := self.maker(value)) is not None and maker.op in (ops or ("reshape",)):
            value = maker.inputs[0]
        return value
