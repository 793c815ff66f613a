"""How much scratch the kernels need that stepplan wrote itself, as facts of a (signature, mode) on a GPU.

The kernels divide rows into as many chunks as their scratch has room for (`chunks_of`), so the sizes are decisions of
the plan: more chunks occupy more of a GPU and are added up more slowly.
"""

from math import prod

from codegen.cpu.shapes import CONV_KINDS
from planner.errors import InternalError
from planner.graph.model import DType
from planner.ops.attention_base import Attention
from planner.ops.base import Facts, Mode, Op, Signature, op_named
from planner.ops.matrices import OfMatrices
from planner.ops.sparse import ByTarget, ByTargetAttrs
from planner.ops.stored import FILTERS, PLAIN, PLAIN_WEIGHTS, WEIGHTS, stored_as, unpacked, weights_of

BLOCKS = 132 * 4
"""Blocks of 256 threads that keep the GPUs at hand busy: each adds up one chunk of rows for some channels."""
COLUMNS = 128
"""Columns that a block adds up, four to a thread."""
LEAST_ROWS = 128
"""Rows of a chunk: fewer are not worth a partial sum. A batch norm of 6272 rows of 1024 channels in bfloat16 takes
20 us in 33 chunks and 22 in 66 (an H200)."""

DOUBLE = 8
WORKSPACE_SLACK = 192
"""Bytes beside a library's workspace, which begins at a multiple of 256 where plans place at multiples of 64."""


GROUP_NORMS = ("group_norm", "group_norm_backward")
NORMS = ("batch_norm", "batch_norm_backward", *GROUP_NORMS)
"""Of channels."""

CONV_GRADIENTS = tuple(op for op, kind in CONV_KINDS.items() if kind == 2)
"""Of weights, and of a bias."""

PRODUCTS_WORKSPACE = 2**22 + WORKSPACE_SLACK
"""Of the products within an attention, whose algorithms are the library's first choice."""


def facts(signature: Signature, mode: Mode) -> Facts:
    """Of plain weights: packed_bytes (a copy in the kernels' order), packs_o where they may be stored in that order
    (ops/stored.py); and partial_bytes. The workspace of a library's algorithm is measured on the GPU and stands in the
    cost table."""
    op = op_named(signature.op)
    if op.family == "attention":
        return {"scratch_bytes": PRODUCTS_WORKSPACE, "partial_bytes": _attention_bytes(op, signature)}
    packed = _packed(signature) if signature.op in WEIGHTS or signature.op in PLAIN_WEIGHTS else {}
    size = _partial_bytes(op, signature)
    return {**packed, "partial_bytes": size} if size else packed


def differing(signature: Signature, mode: Mode, stated: Facts) -> list[tuple[str, int, int]]:
    """Of the sizes that follow from the kernels alone, those that a table, or a plan, which also says how weights are
    stored, has otherwise: which, stated, needed."""
    sizes = facts(signature, mode)
    if stored_as(stated) != PLAIN:
        sizes = unpacked(sizes)
    pairs = [(fact, stated.get(fact, 0), sizes.get(fact, 0)) for fact in ("packed_bytes", "partial_bytes")]
    return [(fact, one, other) for fact, one, other in pairs if one != other]


def chunks(rows: int, columns: int, beside: int = 1) -> int:
    """Into how many chunks `rows` rows of `columns` columns are divided, each of which is added up by itself. `beside`:
    how many such groups of rows there are."""
    return max(1, min(rows // LEAST_ROWS, -(-BLOCKS // (-(-columns // COLUMNS) * beside))))


def chunks_of(signature: Signature, partial_bytes: int) -> int:
    """How many chunks a node's kernels have room for. InternalError: not one, which `facts` rules out."""
    found = partial_bytes // (DOUBLE * _sums_per_chunk(op_named(signature.op), signature))
    if found < 1:
        raise InternalError(f"{partial_bytes} bytes of partial sums are too few for {signature.text}")
    return found


def has_bias(signature: Signature) -> bool:
    """Whether a convolution adds one to its result."""
    return CONV_KINDS.get(signature.op) == 0 and len(signature.inputs) > 2


def _packed(signature: Signature) -> Facts:
    """Weights, or their gradients, change their order, unless the two orders are one. In bfloat16 convolutions get
    weights as they want them, and round a bias."""
    weights = weights_of(signature)
    if weights.dtype is DType.BFLOAT16 and signature.op not in CONV_GRADIENTS:
        return {"packed_bytes": DType.BFLOAT16.itemsize * signature.inputs[2].elements} if has_bias(signature) else {}
    if len(weights.shape) != 4 or weights.shape[1] == 1 or weights.shape[2:] == (1, 1):
        return {}
    order = {"packs_o": FILTERS.o_block} if signature.op in WEIGHTS else {}
    return order if signature.op == "round_weights" else {"packed_bytes": weights.bytes, **order}


def _attention_bytes(op: Op, signature: Signature) -> int:
    """Of all queries and keys (runtime/cuda/attention.cu): their products in float, and the weights where those are
    narrower; in the gradient two of each. And copies of the operands and results whose matrices lie apart."""
    assert isinstance(op, Attention)
    heads, item = op.heads(signature), signature.inputs[0].dtype.itemsize
    room = -(-heads.units * heads.rows * heads.keys // 32) * 32
    each = DType.FLOAT32.itemsize + (DType.BFLOAT16.itemsize if signature.inputs[0].dtype is DType.BFLOAT16 else 0)
    forward = signature.op == "attention"
    views = {name: view for name, view in op.views(signature).items() if not view.in_order}
    copies = {name: -(-prod(view.shape) * item // 128) * 128 for name, view in views.items()}
    copied = sum(copies.values()) + (0 if forward else sum(size for name, size in copies.items() if name != "y"))
    return (1 if forward else 2) * room * each + copied


def _partial_bytes(op: Op, signature: Signature) -> int:
    if signature.op in ("cross_entropy", "nll_loss"):
        return 2 * DOUBLE * signature.inputs[0].shape[0]
    if signature.op in ("embedding_backward", "embedding_sgd_update"):
        return signature.inputs[1].bytes  # positions in the order of their ids
    if isinstance(op, ByTarget) and isinstance(signature.attrs, ByTargetAttrs):  # entries in the order of their rows
        return 0 if signature.attrs.ordered else signature.inputs[op.first_entries + 1].bytes
    if isinstance(op, OfMatrices):
        return op.sizes(signature)[0] * op.room(signature)
    if signature.op == "ctc_loss_backward":  # two frames' backward variables of every sequence
        return 2 * signature.inputs[2].bytes
    each = _sums_per_chunk(op, signature)
    if not each:
        return 0
    columns = 1 if each == 1 else _columns(signature)
    if signature.op in GROUP_NORMS:
        images = signature.inputs[0].shape[0]
        return DOUBLE * each * images * chunks(_rows(signature) // images, columns, images)
    return DOUBLE * each * chunks(_rows(signature), columns)


def _rows(signature: Signature) -> int:
    if signature.op in ("mse_loss", "bce_with_logits"):
        return signature.inputs[0].elements // 256
    data = signature.inputs[1] if signature.op.endswith(("_backward", "_backward_weights")) else signature.inputs[0]
    return data.elements // _columns(signature)


def _columns(signature: Signature) -> int:
    if signature.op in NORMS:
        return signature.inputs[signature.op.endswith("_backward")].shape[1]
    if signature.op == "layer_norm_backward":
        _, columns = op_named(signature.op).rows(signature)  # type: ignore[attr-defined]
        return int(columns)
    return prod(signature.outputs[1].shape)  # the bias


def _sums_per_chunk(op: Op, signature: Signature) -> int:
    """Doubles that one chunk leaves; 0: the node adds nothing up over rows."""
    name = signature.op
    if name in NORMS or (name == "layer_norm_backward" and len(signature.outputs) > 1):
        return 2 * _columns(signature)
    if name in ("mse_loss", "bce_with_logits"):
        return 1
    biased = name in ("linear_backward_weights", *CONV_GRADIENTS) and len(signature.outputs) > 1
    return _columns(signature) if biased else 0
