"""A network that uses every op family, forward and backward: a small vision and text mixture with attention."""

from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Graph, Init, Layout, TensorType
from planner.graph.optimizer import Optimizer
from planner.ops.activation import ClampAttrs
from planner.ops.attention_base import AttentionAttrs
from planner.ops.embedding import EmbeddingAttrs
from planner.ops.entries import SortEntriesAttrs
from planner.ops.grouped import GroupedAttrs
from planner.ops.interpolate import InterpolateAttrs
from planner.ops.masks import CastAttrs, CompareAttrs
from planner.ops.matmul import MatmulAttrs
from planner.ops.order import ArgsortAttrs, CumsumAttrs
from planner.ops.pad import PadAttrs
from planner.ops.random import RandomAttrs, RandomWholeAttrs
from planner.ops.rectifier import EluAttrs, SoftplusAttrs
from planner.ops.scalar import ScalarAttrs
from planner.ops.segment import SegmentAttrs
from planner.ops.shape import FillAttrs
from planner.ops.sparse import SpmmAttrs
from planner.ops.split import SplitAttrs

BATCH, CLASSES, WORDS, WIDTH = 4, 6, 7, 24


def every_op_net(optimizer: Optimizer) -> Graph:
    """Inputs: images (4, 6, 13, 11), words (4, 7) int64, target (4, 24), labels (4,) int64."""
    b = GraphBuilder("every_op_net")
    images = b.input("images", TensorType(shape=(BATCH, 6, 13, 11), layout=Layout.CHANNELS_LAST))
    words = b.input("words", TensorType(shape=(BATCH, WORDS), dtype=DType.INT64))
    target = b.input("target", TensorType(shape=(BATCH, WIDTH)))
    labels = b.input("labels", TensorType(shape=(BATCH,), dtype=DType.INT64))
    tokens = [picture(b, images), chosen(b, words, layers.embedding(b, words, 50, WIDTH, name="words.table"))]
    mixed = attention(b, layers.concat(b, tokens, 1, name="tokens"))
    pooled = layers.mean(b, mixed, (1,), name="pooled")
    (noise,) = b.op("random", [], RandomAttrs(distribution="normal", shape=(BATCH, WIDTH)), name="noise")
    mixed = recurrent(b, layers.add(b, pooled, noise, name="noisy"))
    bent = unaries(b, factored(b, aligned(b, ordered(b, routed(b, mixed)))))
    logits = layers.linear(b, layers.dropout(b, bent, 0.3, name="drop"), CLASSES, name="head")
    log_probs = layers.log_softmax(b, logits, name="log_probs")
    parts = [
        layers.nll_loss(b, log_probs, labels, name="nll"),
        layers.mse(b, pooled, target, name="mse"),
        layers.bce_with_logits(b, bent, layers.unary(b, "sigmoid", target, name="soft"), name="bce"),
        layers.cross_entropy(b, logits, labels, label_smoothing=0.1, name="smooth"),
    ]
    loss = parts[0]
    for index, part in enumerate(parts[1:]):
        loss = layers.add(b, loss, part, name=f"loss{index}")
    return b.finish(loss, log_probs, optimizer)


def chosen(b: GraphBuilder, words: str, x: str) -> str:
    """x (N, WORDS, WIDTH) of the words below about 25, half of it of the others."""
    (numbers,) = b.op("cast", [words], CastAttrs(dtype="float32"), name="numbers")
    (drawn,) = b.op("random_whole", [], RandomWholeAttrs(low=20, high=30, shape=(BATCH, 1)), name="drawn_word")
    (middle,) = b.op("cast", [drawn], CastAttrs(dtype="float32"), name="middle_word")
    (low,) = b.op("compare", [numbers, middle], CompareAttrs(relation="lt"), name="low")
    (half,) = b.op("scale", [x], ScalarAttrs(value=0.5), name="half")
    mask = layers.reshape(b, low, (BATCH, WORDS, 1), name="mask")
    return str(b.op("where", [mask, x, half], name="chosen")[0])


def picture(b: GraphBuilder, images: str) -> str:
    """Grouped, dilated, depthwise and strided convolutions, norms and pools: (N, 6, 13, 11) -> (N, tokens, WIDTH)."""
    x = layers.conv2d(b, images, 12, 3, padding=1, groups=3, name="grouped")
    x = layers.leaky_relu(b, x, 0.1, name="leaky")
    x = layers.relu(b, layers.group_norm(b, x, 3, name="gn"), name="gn_relu")
    y = layers.conv2d(b, x, 12, 3, padding=2, dilation=2, bias=False, name="dilated")
    y = layers.batch_norm(b, y, name="bn1")
    x = layers.relu(b, layers.add(b, y, x, name="join"), name="relu1")
    x = layers.lrn(b, x, 5, alpha=1e-2, name="lrn")
    (x,) = b.op("pad", [x], PadAttrs(pads=((0, 0), (0, 0), (1, 0), (0, 2))), name="frame")
    x = layers.conv2d(b, x, 12, (3, 5), (2, 1), (1, 2), groups=12, bias=False, name="depthwise")
    x = layers.clamp(b, layers.batch_norm(b, x, name="bn2"), 0, 6, name="relu6")
    pools = [
        layers.max_pool(b, x, 3, 2, 1, ceil_mode=True, name="max"),
        layers.avg_pool(b, x, 3, 2, 1, ceil_mode=True, count_include_pad=False, name="avg"),
    ]
    x = layers.concat(b, pools, 1, name="pools")
    first, second = layers.split(b, x, (8, 16), 1, name="halves")
    second = layers.dropout(b, second, 0.2, name="drop_rows")
    x = layers.concat(b, (second, layers.unary(b, "tanh", first, name="bend")), 1, name="turned")
    x = layers.adaptive_avg_pool(b, x, (2, 2), name="grid")
    attrs = InterpolateAttrs(size=(3, 2), scales=(2 / 3, 1.0))
    (x,) = b.op("interpolate", [x], attrs, name="finer")
    return layers.reshape(b, layers.permute(b, x, (0, 2, 3, 1), name="last"), (BATCH, -1, WIDTH), name="cells")


def attention(b: GraphBuilder, x: str) -> str:
    """One head over (N, tokens, WIDTH), op by op because its mask is learned, and one that looks back alone, with layer
    norms, and a feed-forward part with gelu and silu."""
    normed = layers.layer_norm(b, x, name="ln1")
    q, k, v = layers.split(b, layers.linear(b, normed, 3 * WIDTH, bias=False, name="qkv"), (WIDTH,) * 3, 2, name="cut")
    (scores,) = b.op("matmul", [q, k], MatmulAttrs(transpose_b=True), name="scores")
    (scores,) = b.op("scale", [scores], ScalarAttrs(value=WIDTH**-0.5), name="scaled")
    places = b.parameter("places", (b.shape(scores)[-1],), Init(kind="uniform", value=0.5))
    scores = layers.add(b, scores, places, name="placed")
    (seen,) = b.op("matmul", [layers.softmax(b, scores, name="weights"), v], MatmulAttrs(), name="seen")
    back = b.op("attention", [q, k, v], AttentionAttrs(scale=WIDTH**-0.5, causal=True, dropout=0.2), name="back")[0]
    seen = layers.add(b, seen, back, name="both")
    x = layers.add(b, x, layers.linear(b, seen, WIDTH, name="out"), name="with_seen")
    wide = layers.linear(b, layers.layer_norm(b, x, name="ln2"), 40, name="wide")
    wide = layers.clamp(b, wide, -1.1, 0.9, name="bounded")
    left = layers.gelu(b, wide, name="gelu")
    right = layers.gelu(b, layers.unary(b, "silu", wide, name="silu"), "tanh", name="gelu_tanh")
    return layers.add(b, x, layers.linear(b, layers.mul(b, left, right, name="gate"), WIDTH, name="narrow"), name="y")


def recurrent(b: GraphBuilder, x: str) -> str:
    """Three steps of one LSTM cell over parts of x (N, WIDTH), whose last cell state is carried to the next batch, and
    one of a GRU cell."""
    third = WIDTH // 3
    c = b.state("remembered", (BATCH, third), Init(kind="zeros"))
    h, found = b.op("scale", [c], ScalarAttrs(value=0.5), name="cell.start")[0], []
    for part in b.op("split", [x], SplitAttrs(axis=1, sizes=(third,) * 3), name="thirds"):
        with b.sharing():
            gates = [layers.linear(b, v, 4 * third, name=f"cell.{n}") for n, v in (("input", part), ("hidden", h))]
        h, c, _ = b.op("lstm_cell", [*gates, c], name="cell")
        found.append(h)
    with b.sharing():
        gates = [layers.linear(b, v, 3 * third, name=f"gru.{n}") for n, v in (("input", h), ("hidden", found[0]))]
    h, _ = b.op("gru_cell", [*gates, found[0]], name="gru")
    found[1] = h
    b.carry("remembered", c)
    grown = layers.reshape(b, layers.concat(b, found, 1, name="said"), (BATCH, third, 1, 3), name="grid_of_said")
    grown = layers.conv_transpose2d(b, grown, 4, (2, 4), (1, 2), (0, 1), bias=True, name="grow")
    return layers.add(
        b, x, layers.linear(b, layers.flatten(b, grown, name="flat"), WIDTH, name="back"), name="recalled"
    )


def routed(b: GraphBuilder, x: str) -> str:
    """x (N, WIDTH) and its rows times one matrix of three each, which one is drawn."""
    (ends,) = b.op("random_whole", [], RandomWholeAttrs(low=0, high=BATCH + 2, shape=(3,)), name="ends")
    matrices = b.parameter("experts", (3, WIDTH, WIDTH), Init(kind="uniform", value=0.3))
    (y,) = b.op("grouped_matmul", [x, matrices, ends], GroupedAttrs(transpose_b=True), name="routed")
    return sent(b, layers.add(b, x, y, name="with_routed"))


def sent(b: GraphBuilder, x: str) -> str:
    """x (N, WIDTH) and what its rows send each other along drawn edges: sums, with a weight for either half, and the
    largest."""
    ends = [
        b.op("random_whole", [], RandomWholeAttrs(low=0, high=BATCH, shape=(6,)), name=name)[0]
        for name in ("sources", "targets")
    ]
    weights = b.parameter("edge_weights", (6, 2), Init(kind="uniform", value=0.1))
    (y,) = b.op("spmm", [x, *ends, weights], SpmmAttrs(rows=BATCH), name="sent")
    x = layers.add(b, x, y, name="with_sent")
    rows = SortEntriesAttrs(source_rows=BATCH, target_rows=BATCH)
    sources, targets, *_ = b.op("sort_entries", ends, rows, name="sort")
    attrs = SegmentAttrs(rows=BATCH, ordered=True)
    largest, share = b.op("segment_max", [x, sources, targets], attrs, name="largest_sent")
    (known,) = b.op("where", [share, largest, x], name="largest_or_own")
    return layers.add(b, x, known, name="with_largest")


def ordered(b: GraphBuilder, x: str) -> str:
    """x (N, WIDTH) summed up along its rows, rows of a table that are near, and one of which is drawn which."""
    (found,) = b.op("cumsum", [x], CumsumAttrs(axis=1), name="so_far")
    (drawn,) = b.op("random", [], RandomAttrs(distribution="uniform", shape=(5,)), name="scores")
    (best,) = b.op("argsort", [drawn], ArgsortAttrs(count=1, descending=True), name="best")
    rows = b.parameter("rows", (5, WIDTH), Init(kind="uniform", value=0.5))
    (apart,) = b.op("distances", [x, rows], name="apart")
    (close,) = b.op("scale", [apart], ScalarAttrs(value=-1 / WIDTH), name="close")
    (near,) = b.op("softmax", [close], name="near")
    (nearest,) = b.op("matmul", [near, rows], MatmulAttrs(), name="nearest")
    x = layers.add(b, x, nearest, name="with_nearest")
    (row,) = b.op("embedding", [rows, best], EmbeddingAttrs(), name="best_row")
    (found,) = b.op("scale", [found], ScalarAttrs(value=1 / WIDTH), name="part_so_far")
    return layers.add(b, layers.add(b, x, row, name="with_best"), found, name="with_sums")


def aligned(b: GraphBuilder, x: str) -> str:
    """x (N, WIDTH), and how likely it is as frames of three states; how many of them, and of which, is drawn."""
    scores = layers.reshape(b, x, (BATCH, WIDTH // 3, 3), name="frames_of_x")
    (skips,) = b.op("ones", [], FillAttrs(shape=(BATCH, 3), value=0.0), name="no_skips")
    (frames,) = b.op("random_whole", [], RandomWholeAttrs(low=1, high=WIDTH // 3 + 1, shape=(BATCH,)), name="lengths")
    (labels,) = b.op("random_whole", [], RandomWholeAttrs(low=0, high=2, shape=(BATCH,)), name="labels")
    each = b.op("ctc_loss", [layers.log_softmax(b, scores, name="of_states"), skips, frames, labels], name="aligned")[0]
    each = layers.reshape(b, each, (BATCH, 1), name="column_of_losses")
    (each,) = b.op("scale", [each], ScalarAttrs(value=0.01), name="small_losses")
    return layers.add(b, x, each, name="with_losses")


def factored(b: GraphBuilder, x: str) -> str:
    """x (N, WIDTH), and for every row what an inverse, a determinant and a factor of a definite matrix give."""
    rows = b.parameter("rows_of_factors", (BATCH, 3, 8), Init(kind="uniform", value=1.0))
    (definite,) = b.op("matmul", [rows, rows], MatmulAttrs(transpose_b=True), name="definite")
    (inverse,) = b.op("inverse", [definite], name="inverse")
    (factor,) = b.op("cholesky", [definite], name="factor")
    (product,) = b.op("matmul", [inverse, factor], MatmulAttrs(), name="inverse_and_factor")
    logarithm = b.op("log_determinant", [definite], name="logarithm_of_det")[0]
    both = layers.add(b, layers.mean(b, product, (1, 2), name="mean_of_factors"), logarithm, name="of_factors")
    (small,) = b.op("scale", [layers.reshape(b, both, (BATCH, 1), name="column_of_factors")], ScalarAttrs(value=0.1))
    return layers.add(b, x, small, name="with_factors")


def unaries(b: GraphBuilder, x: str) -> str:
    """The other unary, binary and scalar ops, and broadcasting, on (N, WIDTH)."""
    offset = b.parameter("offset", (WIDTH,), Init(kind="uniform", value=0.5))
    x = layers.add(b, x, offset, name="shifted")
    (positive,) = b.op("add_scalar", [layers.unary(b, "square", x, name="squared")], ScalarAttrs(value=0.5), name="up")
    root = layers.unary(b, "sqrt", positive, name="root")
    logarithm = layers.unary(b, "log", positive, name="logarithm")
    (power,) = b.op("pow_scalar", [positive], ScalarAttrs(value=-0.7), name="power")
    minus = layers.unary(b, "neg", layers.unary(b, "abs", x, name="size"), name="minus")
    found = layers.unary(b, "exp", minus, name="falling")
    bounded = b.op("clip", [x], ClampAttrs(low=-0.8, high=0.9), name="clipped")[0]
    curved = b.op("elu", [x], EluAttrs(alpha=1.5, input_scale=0.7), name="curved")[0]
    soft = b.op("softplus", [x], SoftplusAttrs(beta=2.0, threshold=1.0), name="softened")[0]
    near = layers.add(b, layers.unary(b, "log1p", positive, name="near_one"), bounded, name="with_clipped")
    small = layers.unary(b, "expm1", minus, name="near_zero")
    for op, other in (("add", root), ("sub", logarithm), ("mul", power), ("maximum", x), ("minimum", root)):
        (found,) = b.op(op, [found, other], name=f"then_{op}")
    for op, other in (("add", near), ("sub", curved), ("add", soft), ("mul", small)):
        (found,) = b.op(op, [found, other], name=f"behind_{op}")
    (found,) = b.op("div", [found, layers.unary(b, "reciprocal", positive, name="inverse")], name="then_div")
    total = layers.sum_over(b, found, (1,), keepdims=True, name="total")
    (total,) = b.op("scale", [total], ScalarAttrs(value=1 / WIDTH), name="middle")
    (found,) = b.op("sub", [found, total], name="centred")
    return found
