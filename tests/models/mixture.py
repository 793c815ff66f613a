"""A transformer whose feed-forward part is a mixture of experts, as Mixtral has it: each token goes to the two experts
that its router prefers, tokens sorted by expert, and one grouped product for all experts."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models.parts import ADAM, Made
from tests.models.transformers import GptBlock, next_token


@torch.library.custom_op("transformers::grouped_mm_fallback", mutates_args=())
def grouped_product(input: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """As transformers declares it for where PyTorch's grouped_mm takes bfloat16 alone, which is under export."""
    return torch.cat([rows @ matrix for rows, matrix in zip(_groups(input, offs), weight, strict=True)])


def _groups(rows: Tensor, ends: Tensor) -> list[Tensor]:
    bounds = [0, *ends.tolist()]
    return [rows[begin:end] for begin, end in pairwise(bounds)]


@torch.library.custom_op("transformers::grouped_mm_fallback_backward", mutates_args=())
def _gradients(input: Tensor, weight: Tensor, offs: Tensor, grad_output: Tensor) -> tuple[Tensor, Tensor]:
    pairs = list(zip(_groups(input, offs), _groups(grad_output, offs), weight, strict=True))
    return torch.cat([dy @ w.T for _, dy, w in pairs]), torch.stack([x.T @ dy for x, dy, _ in pairs])


grouped_product.register_fake(lambda input, weight, offs: input.new_empty(len(input), weight.size(2)))
grouped_product.register_autograd(
    lambda ctx, dy: (*_gradients(*ctx.saved_tensors, dy), None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


class Experts(nn.Module):
    """Gated: down(silu(gate x) up x)."""

    def __init__(self, width: int, hidden: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.experts, self.chosen = experts, chosen
        self.router = nn.Linear(width, experts, bias=False)
        self.gate_up = nn.Parameter(torch.randn(experts, 2 * hidden, width) * 0.2)
        self.down = nn.Parameter(torch.randn(experts, width, hidden) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.view(-1, x.size(-1))
        weights, chosen = self.router(tokens).softmax(-1).topk(self.chosen, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        experts, order = chosen.view(-1).sort()
        counts = torch.histc(experts.to(torch.float32), self.experts, 0, self.experts - 1)
        ends = counts.cumsum(0, dtype=torch.int32)
        gate, up = grouped_product(tokens[order // self.chosen], self.gate_up.transpose(1, 2), ends).chunk(2, -1)
        y = grouped_product(F.silu(gate) * up, self.down.transpose(1, 2), ends) * weights.view(-1)[order].unsqueeze(-1)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return y[back].view(len(tokens), self.chosen, -1).sum(1).view_as(x)


class Block(GptBlock):
    def __init__(self, width: int, heads: int, experts: int) -> None:
        super().__init__(width, heads, nn.SiLU(), 0.0)
        self.experts = Experts(width, 2 * width, experts, 2)
        del self.c_fc, self.down

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.size()
        q, k, v = self.c_attn(self.ln_1(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind()
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(seen.transpose(1, 2).reshape(n, length, width))
        return x + self.experts(self.ln_2(x))


class Mixture(nn.Module):
    def __init__(self, vocabulary: int = 29, width: int = 16, depth: int = 2, experts: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(Block(width, 2, experts) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.words(ids))))


def mixture(batch: int = 3) -> Made:
    ids = torch.randint(0, 29, (batch, 8))
    return Mixture(), (ids,), {**ADAM, "loss": next_token, "labels": ids}


FACTORIES = (mixture,)
