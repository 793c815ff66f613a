"""Graph attention network (Velickovic et al., 2018), as PyTorch Geometric spells it: scores along the edges, a softmax
over those that end at a node, messages of several heads."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models.parts import ADAM, Made


class GraphAttention(nn.Module):
    def __init__(self, width: int, out: int, heads: int) -> None:
        super().__init__()
        self.heads, self.out = heads, out
        self.linear = nn.Linear(width, heads * out, bias=False)
        self.source, self.target = (nn.Parameter(torch.randn(1, heads, out) * 0.5) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(heads * out))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        nodes, (sources, targets) = len(x), edges
        h = self.linear(x).view(nodes, self.heads, self.out)
        scores = (h * self.source).sum(-1)[sources] + (h * self.target).sum(-1)[targets]
        scores = F.leaky_relu(scores, 0.2)
        wide = targets[:, None].expand_as(scores)
        largest = x.new_zeros(nodes, self.heads).scatter_reduce(0, wide, scores.detach(), "amax", include_self=False)
        weights = (scores - largest[targets]).exp()
        weights = weights / (x.new_zeros(nodes, self.heads).scatter_add(0, wide, weights)[targets] + 1e-16)
        messages = (weights[..., None] * h[sources]).flatten(1)
        place = targets[:, None].expand_as(messages)
        return x.new_zeros(nodes, self.heads * self.out).scatter_add(0, place, messages) + self.bias


class GraphAttentionNetwork(nn.Module):
    """Classes of the nodes of one graph with random edges, and one from every node to itself."""

    def __init__(self, nodes: int, edges: int, width: int, classes: int) -> None:
        super().__init__()
        loops = torch.arange(nodes).expand(2, nodes)
        self.register_buffer("edges", torch.cat((torch.randint(0, nodes, (2, edges)), loops), 1))
        self.first, self.last = GraphAttention(width, 8, 4), GraphAttention(32, classes, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.elu(self.first(x, self.edges))
        return self.last(y, self.edges)


def graph_attention(nodes: int = 40) -> Made:
    return GraphAttentionNetwork(nodes, 4 * nodes, 12, 5), torch.randn(nodes, 12), ADAM


FACTORIES = (graph_attention,)
