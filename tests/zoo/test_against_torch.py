"""dcgan, gpt2, lstm and wide_deep against what a PyTorch user would write, two steps in float64."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from codegen.initial import draw
from planner import zoo
from planner.graph.builder import GraphBuilder
from planner.graph.model import PERSISTENT, Graph
from planner.graph.optimizer import Optimizer
from planner.ops.base import Array
from planner.zoo.network import Network, Sizes
from tests.interpreter import run_program


def start(graph: Graph, module: nn.Module) -> dict[str, Array]:
    """The graph's own initial values, put into the module, too."""
    values = {v.name: draw(v, 5).astype(np.float64) for v in graph.values if v.role in PERSISTENT}
    owned = {k: torch.from_numpy(values[k]) for k in module.state_dict() if not k.endswith("num_batches_tracked")}
    module.double().train().load_state_dict(owned, strict=False)
    return values


def agree(values: Mapping[str, Array], module: nn.Module) -> None:
    for name, tensor in module.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            np.testing.assert_allclose(values[name], tensor.numpy(), rtol=1e-7, atol=1e-10, err_msg=name)


def step(graph: Graph, values: dict[str, Array], inputs: Mapping[str, Array]) -> tuple[dict[str, Array], list[float]]:
    """The persistent values after a step, and its losses."""
    held = run_program(graph, "train_step", {**values, **inputs})
    return {k: held[k] for k in values}, [float(held[o]) for o in graph.program["train_step"].outputs]


class Sequence(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.main = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.main(x)


class Dcgan(nn.Module):
    """pytorch/examples/dcgan, without the discriminator's sigmoid."""

    def __init__(self, nz: int = 100, ngf: int = 64, ndf: int = 64) -> None:
        super().__init__()
        up: list[nn.Module] = []
        for before, after, stride, padding in ((nz, 8 * ngf, 1, 0), (8 * ngf, 4 * ngf, 2, 1), (4 * ngf, 2 * ngf, 2, 1),
                                               (2 * ngf, ngf, 2, 1)):  # fmt: skip
            up += [nn.ConvTranspose2d(before, after, 4, stride, padding, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.generator = Sequence(*up, nn.ConvTranspose2d(ngf, 3, 4, 2, 1, bias=False), nn.Tanh())
        down: list[nn.Module] = [nn.Conv2d(3, ndf, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
        for before, after in ((ndf, 2 * ndf), (2 * ndf, 4 * ndf), (4 * ndf, 8 * ndf)):
            down += [nn.Conv2d(before, after, 4, 2, 1, bias=False), nn.BatchNorm2d(after), nn.LeakyReLU(0.2)]
        self.discriminator = Sequence(*down, nn.Conv2d(8 * ndf, 1, 4, bias=False))


def adversarial(verdict: Tensor, label: float) -> Tensor:
    return F.binary_cross_entropy_with_logits(verdict.flatten(), torch.full((verdict.shape[0],), label).double())


def test_dcgan_trains_both_networks_like_the_example() -> None:
    torch.manual_seed(0)
    graph, module = zoo.build("dcgan", 3), Dcgan()
    values = start(graph, module)
    G, D = module.generator, module.discriminator
    optimizers = [torch.optim.Adam(m.parameters(), lr=2e-4, betas=(0.5, 0.999)) for m in (D, G)]
    rng = np.random.default_rng(0)
    images, noise = rng.standard_normal((3, 3, 64, 64)), rng.standard_normal((3, 100, 1, 1))
    fake = G(torch.from_numpy(noise))
    real = adversarial(D(torch.from_numpy(images)), 1)
    losses = [real + adversarial(D(fake.detach()), 0)]
    optimizers[0].zero_grad()
    losses[0].backward()
    optimizers[0].step()
    losses.append(adversarial(D(fake), 1))
    optimizers[1].zero_grad()
    losses[1].backward()
    optimizers[1].step()
    values, found = step(graph, values, {"images": images, "noise": noise})
    assert found == pytest.approx([float(loss.detach()) for loss in losses], rel=1e-9)
    agree(values, module)


@pytest.mark.parametrize("name", ["dcgan_generator", "dcgan_discriminator"])
def test_dcgan_halves(name: str) -> None:
    """With learning rate 1, a parameter moves by its gradient; the other network's stay."""
    graph = zoo.build(name, 2, optimizer=Optimizer(lr=1.0))
    module = Dcgan()
    rng = np.random.default_rng(0)
    inputs = {i: rng.standard_normal(graph.value[i].type.shape) for i in graph.program["train_step"].inputs}
    first = {v.name: draw(v, 5).astype(np.float64) for v in graph.values if v.role in PERSISTENT}
    module.double().load_state_dict({k: torch.from_numpy(v) for k, v in first.items()}, strict=False)
    G, D = module.generator, module.discriminator
    given = {k: torch.from_numpy(v) for k, v in inputs.items()}
    if name == "dcgan_generator":
        trained, loss = G, adversarial(D(G(given["noise"])), 1)
    else:
        trained, loss = D, adversarial(D(given["images"]), 1) + adversarial(D(given["fakes"]), 0)
    loss.backward()
    values, found = step(graph, first, inputs)
    assert found == pytest.approx([float(loss.detach())], rel=1e-9)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter -= parameter.grad
    prefix = name.removeprefix("dcgan_")
    for key, tensor in getattr(module, prefix).state_dict().items():
        if not key.endswith("num_batches_tracked"):
            np.testing.assert_allclose(values[f"{prefix}.{key}"], tensor.numpy(), rtol=1e-7, atol=1e-10, err_msg=key)
    untouched = [k for k in values if not k.startswith(prefix) and k.endswith("weight")]
    assert all((values[k] == first[k]).all() for k in untouched)


def speak(
    graph: Graph,
    values: dict[str, Array],
    tokens: Array,
    targets: Array,
    logits: Tensor,
    optimizer: torch.optim.Optimizer,
) -> dict[str, Array]:
    """A step of a language model, in PyTorch from its logits on, which agrees; the values after it."""
    loss = F.cross_entropy(logits, torch.from_numpy(targets).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    predicted = run_program(graph, "predict", {**values, "tokens": tokens})[graph.program["predict"].outputs[0]]
    np.testing.assert_allclose(predicted, logits.detach().numpy(), rtol=1e-8, atol=1e-10)
    values, found = step(graph, values, {"tokens": tokens, "targets": targets})
    assert found == pytest.approx([float(loss.detach())], rel=1e-9)
    return values


class LanguageModel(nn.Module):
    def __init__(self, words: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, hidden)
        self.lstm = nn.LSTM(hidden, hidden, 2)
        self.decoder = nn.Linear(hidden, words)

    def forward(self, tokens: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        said, state = self.lstm(self.embedding(tokens), state)
        return self.decoder(said).flatten(0, 1), state


def made(network: Network, sizes: Sizes) -> Graph:
    b = GraphBuilder("net")
    ends = network.model(b, sizes)
    return b.finish(ends.loss, ends.prediction, network.optimizer)


def test_lstm_carries_its_state_like_truncated_back_propagation() -> None:
    words, hidden, batch, steps = 30, 12, 3, 5
    network = Network(zoo.lstm(steps, 2, hidden), Sizes(batch, classes=words), Optimizer(lr=1.0))
    graph, module = made(network, network.sizes), LanguageModel(words, hidden)
    values = start(graph, module)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    state = (torch.zeros(2, batch, hidden).double(), torch.zeros(2, batch, hidden).double())
    rng = np.random.default_rng(0)
    for _ in range(3):
        tokens, targets = rng.integers(0, words, (2, steps, batch))
        logits, state = module(torch.from_numpy(tokens), tuple(s.detach() for s in state))
        values = speak(graph, values, tokens, targets, logits, optimizer)
    agree(values, module)
    for layer in range(2):
        for kind, tensor in zip("hc", state, strict=True):
            np.testing.assert_allclose(values[f"lstm.{kind}_l{layer}"], tensor[layer].detach().numpy(), rtol=1e-8)


class SelfAttention(nn.Module):
    """nanoGPT's."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        q, k, v = (part.view(n, t, self.heads, -1).transpose(1, 2) for part in self.c_attn(x).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(n, t, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(width), SelfAttention(width, heads), nn.LayerNorm(width)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, words: int, length: int, depth: int, width: int, heads: int) -> None:
        super().__init__()
        parts = {"wte": nn.Embedding(words, width), "wpe": nn.Embedding(length, width), "ln_f": nn.LayerNorm(width)}
        blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.transformer = nn.ModuleDict({**parts, "h": blocks})

    def forward(self, tokens: Tensor) -> Tensor:
        t = self.transformer
        x = t["wte"](tokens) + t["wpe"](torch.arange(tokens.shape[1]))
        for block in t["h"]:  # type: ignore[union-attr]
            x = block(x)
        return F.linear(t["ln_f"](x), t["wte"].weight).flatten(0, 1)  # type: ignore[arg-type]


def test_gpt2_without_dropout() -> None:
    words, length, batch = 30, 7, 3
    model, sizes = zoo.gpt2(length, depth=2, width=12, heads=3, dropout=0.0), Sizes(batch, classes=words)
    graph, module = made(Network(model, sizes, Optimizer(lr=1.0)), sizes), Gpt2(words, length, 2, 12, 3)
    values = start(graph, module)
    assert {v.name for v in graph.values if v.name} == set(module.state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    rng = np.random.default_rng(0)
    for _ in range(2):
        tokens, targets = rng.integers(0, words, (2, batch, length))
        logits = module(torch.from_numpy(tokens))
        values = speak(graph, values, tokens, targets, logits, optimizer)
    agree(values, module)


def test_gpt2_drops_where_nanogpt_does() -> None:
    graph = zoo.build("gpt2", 1)
    ops = {p.name: [n.op for n in p.nodes] for p in graph.programs}
    assert ops["train_step"].count("dropout") == 1 + 2 * 12
    (dropped,) = {n.attrs.dropout for n in graph.program["train_step"].nodes if n.op == "attention"}  # type: ignore[attr-defined]
    assert dropped == 0.1
    assert "dropout" not in ops["predict"]


class WideDeep(nn.Module):
    def __init__(self, rows: list[int], wide: int) -> None:
        super().__init__()
        self.wide = nn.ModuleDict({"weights": nn.Embedding(wide, 1)})
        self.embeddings = nn.ModuleList(nn.Embedding(n, 32) for n in rows)
        sizes = (32 * len(rows) + 13, 1024, 512, 256)
        hidden = [[nn.Linear(n, m), nn.ReLU()] for n, m in pairwise(sizes)]
        self.deep = nn.Sequential(*(layer for pair in hidden for layer in pair), nn.Linear(256, 1))

    def forward(self, wide: Tensor, categories: Tensor, dense: Tensor) -> Tensor:
        found = [table(ids) for table, ids in zip(self.embeddings, categories.T, strict=True)]
        return self.deep(torch.cat([*found, dense], 1)) + self.wide["weights"](wide).sum(1)


def test_wide_deep_updates_only_the_rows_it_picked() -> None:
    rows = [10 + i for i in range(26)]
    network = Network(zoo.wide_deep(rows, 50), Sizes(4), Optimizer(lr=0.1))
    graph, module = made(network, network.sizes), WideDeep(rows, 50)
    assert {n.op for n in graph.program["train_step"].nodes if "embeddings" in n.id} >= {"embedding_sgd_update"}
    assert not [n for n in graph.program["train_step"].nodes if n.op == "embedding_backward"]
    values = start(graph, module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    rng = np.random.default_rng(0)
    for _ in range(2):
        inputs = {
            "wide": rng.integers(0, 50, (4, 26)),
            "categories": rng.integers(0, rows, (4, 26)),
            "dense": rng.standard_normal((4, 13)),
            "labels": rng.integers(0, 2, (4, 1)).astype(np.float64),
        }
        tensors = {k: torch.from_numpy(v) for k, v in inputs.items()}
        logits = module(tensors["wide"], tensors["categories"], tensors["dense"])
        loss = F.binary_cross_entropy_with_logits(logits, tensors["labels"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values, found = step(graph, values, inputs)
        assert found == pytest.approx([float(loss.detach())], rel=1e-9)
    agree(values, module)
