"""GPT-2 (Radford et al., 2019) on sequences of one length: 12 layers of width 768 with 12 heads, 1024 tokens.

Names, initial weights and dropout are nanoGPT's, whose weights are `nn.Linear`'s; the embedding of tokens is the last
layer's weight, too. Layer norms come first, the activation is gelu by tanh. The loss is the mean over all tokens.
"""

from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Init, TensorType
from planner.graph.optimizer import Optimizer
from planner.ops.attention_base import AttentionAttrs
from planner.zoo.network import Ends, Model, Sizes

ADAMW = Optimizer(kind="adamw", lr=6e-4, beta2=0.95, weight_decay=0.1)
STD = 0.02


def gpt2(length: int = 1024, depth: int = 12, width: int = 768, heads: int = 12, dropout: float = 0.1) -> Model:
    """A model of these sizes; `sizes.classes` is the number of tokens that it knows."""

    def model(b: GraphBuilder, sizes: Sizes) -> Ends:
        """Inputs: tokens and targets, int64 (N, length). The prediction is (N x length, tokens), before the softmax."""
        shape = TensorType(shape=(sizes.batch, length), dtype=DType.INT64)
        tokens, targets = b.input("tokens", shape), b.input("targets", shape)
        table = b.parameter("transformer.wte.weight", (sizes.classes, width), Init(kind="normal", value=STD))
        places = b.parameter("transformer.wpe.weight", (length, width), Init(kind="normal", value=STD))
        words = b.op("embedding", [table, tokens], name="transformer.wte")[0]
        x = _drop(b, layers.add(b, words, places, name="transformer.placed"), dropout, "transformer.drop")
        for layer in range(depth):
            x = _block(b, x, heads, dropout, STD * (2 * depth) ** -0.5, f"transformer.h.{layer}")
        x = layers.reshape(b, layers.layer_norm(b, x, name="transformer.ln_f"), (-1, width), name="rows")
        logits = b.op("linear", [x, table], name="lm_head")[0]
        flat = layers.reshape(b, targets, (-1,), name="flat_targets")
        return Ends(layers.cross_entropy(b, logits, flat), logits)

    return model


def _block(b: GraphBuilder, x: str, heads: int, dropout: float, last_std: float, name: str) -> str:
    """(N, length, width) -> the same. `last_std`: of the weights whose results are added to x."""
    n, length, width = b.shape(x)
    qkv = _linear(b, layers.layer_norm(b, x, name=f"{name}.ln_1"), 3 * width, STD, f"{name}.attn.c_attn")
    parts = []
    for part, rows in zip("qkv", layers.split(b, qkv, (width,) * 3, 2, name=f"{name}.attn.split"), strict=True):
        apart = layers.reshape(b, rows, (n, length, heads, width // heads), name=f"{name}.attn.{part}_heads")
        parts.append(layers.transpose(b, apart, 1, 2, name=f"{name}.attn.{part}"))
    attrs = AttentionAttrs(scale=(width // heads) ** -0.5, causal=True, dropout=dropout)
    seen = b.op("attention", parts, attrs, name=f"{name}.attn")[0]
    seen = layers.transpose(b, seen, 1, 2, name=f"{name}.attn.turned")
    seen = layers.reshape(b, seen, (n, length, width), name=f"{name}.attn.rows")
    seen = _linear(b, seen, width, last_std, f"{name}.attn.c_proj")
    x = layers.add(b, x, _drop(b, seen, dropout, f"{name}.attn.resid_dropout"), name=f"{name}.seen")
    wide = _linear(b, layers.layer_norm(b, x, name=f"{name}.ln_2"), 4 * width, STD, f"{name}.mlp.c_fc")
    bent = layers.gelu(b, wide, "tanh", name=f"{name}.mlp.gelu")
    narrow = _linear(b, bent, width, last_std, f"{name}.mlp.c_proj")
    return layers.add(b, x, _drop(b, narrow, dropout, f"{name}.mlp.dropout"), name=name)


def _linear(b: GraphBuilder, x: str, features: int, std: float, name: str) -> str:
    weight = b.parameter(f"{name}.weight", (features, b.shape(x)[-1]), Init(kind="normal", value=std))
    return b.op("linear", [x, weight, b.parameter(f"{name}.bias", (features,), Init(kind="zeros"))], name=name)[0]


def _drop(b: GraphBuilder, x: str, p: float, name: str) -> str:
    return layers.dropout(b, x, p, name=name) if p else x
