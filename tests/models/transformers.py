"""BERT- and GPT-2-style transformers: embeddings, masks, GELU variants, tied weights."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models.parts import ADAM, Made


class SelfAttention(nn.Module):
    """BERT's, written out: an additive mask in front of the softmax."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.size()[:-1], self.heads, -1).permute(0, 2, 1, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (self.split(part(x)) for part in (self.query, self.key, self.value))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.size(-1))
        context = torch.matmul(nn.functional.softmax(scores + mask, dim=-1), v).permute(0, 2, 1, 3).contiguous()
        return self.out(context.view(*context.size()[:-2], -1))


class BertLayer(nn.Module):
    def __init__(self, width: int, heads: int, approximate: str) -> None:
        super().__init__()
        self.attention = SelfAttention(width, heads)
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.act = nn.GELU(approximate=approximate)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(self.attention(x, mask) + x)
        return self.norm2(self.down(self.act(self.up(x))) + x)


class Bert(nn.Module):
    """Masked language model with token types and an attention mask of 0 and 1 that the user gives as integers."""

    def __init__(self, vocabulary: int = 30, width: int = 16, depth: int = 2, heads: int = 2, length: int = 8) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=0)
        self.positions, self.types = nn.Embedding(length, width), nn.Embedding(2, width)
        self.register_buffer("position_ids", torch.arange(length).expand((1, -1)), persistent=False)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(BertLayer(width, heads, "none") for _ in range(depth))
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width, eps=1e-12))
        self.decoder = nn.Linear(width, vocabulary)
        self.decoder.weight = self.words.weight

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        length = input_ids.size(1)
        x = self.words(input_ids) + self.types(token_type_ids)
        x = self.norm(x + self.positions(self.position_ids[:, :length]))
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(torch.float32).min
        for layer in self.layers:
            x = layer(x, mask)
        return self.decoder(self.transform(x)).transpose(1, 2)


class BertClassifier(nn.Module):
    """Boolean masks (derived from the ids) for scaled_dot_product_attention, a pooler with tanh, GELU by tanh."""

    def __init__(self, vocabulary: int = 25, width: int = 24, heads: int = 3, classes: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(10, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 48), nn.GELU(approximate="tanh"), nn.Linear(48, width))
        self.pooler, self.classifier = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        n, length = ids.shape
        mask = ids.ne(0)
        x = self.words(ids) + self.positions(torch.arange(length, device=ids.device))
        q, k, v = (t.reshape(n, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        x = self.norm1(x + self.out(y.transpose(1, 2).reshape(n, length, -1)))
        x = self.norm2(x + self.mlp(x))
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


class NewGelu(nn.Module):
    """As GPT-2's code has it."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class GptBlock(nn.Module):
    def __init__(self, width: int, heads: int, act: nn.Module, dropout: float) -> None:
        super().__init__()
        self.heads, self.p = heads, dropout
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.act, self.down = nn.Linear(width, 4 * width), act, nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.size()
        parts = self.c_attn(self.ln_1(x)).split(width, dim=2)
        q, k, v = (p.view(n, length, self.heads, width // self.heads).transpose(1, 2) for p in parts)
        p = self.p if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=p, is_causal=True)
        x = x + self.drop(self.c_proj(y.transpose(1, 2).contiguous().view(n, length, width)))
        return x + self.drop(self.down(self.act(self.c_fc(self.ln_2(x)))))


class Gpt2(nn.Module):
    def __init__(
        self, vocabulary: int = 29, width: int = 16, depth: int = 2, heads: int = 2, length: int = 8,
        act: nn.Module | None = None, dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.wte, self.wpe, self.drop = (
            nn.Embedding(vocabulary, width),
            nn.Embedding(length, width),
            nn.Dropout(dropout),
        )
        self.h = nn.ModuleList(GptBlock(width, heads, act or NewGelu(), dropout) for _ in range(depth))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(0, ids.size(1), dtype=torch.long, device=ids.device)
        x = self.drop(self.wte(ids) + self.wpe(positions))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def next_token(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of every position with the token behind it."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def bert(batch: int = 3) -> Made:
    ids = torch.randint(1, 30, (batch, 8))
    mask = torch.ones(batch, 8, dtype=torch.long)
    mask[0, 5:] = 0
    return Bert(), (ids, mask, torch.randint(0, 2, (batch, 8))), ADAM


def bert_classifier(batch: int = 4) -> Made:
    return BertClassifier(), (torch.randint(0, 25, (batch, 10)),), ADAM


def gpt2(batch: int = 3) -> Made:
    ids = torch.randint(0, 29, (batch, 8))
    return Gpt2(), (ids,), {**ADAM, "loss": next_token, "labels": ids}


def gpt2_dropout(batch: int = 2) -> Made:
    ids = torch.randint(0, 29, (batch, 6))
    module = Gpt2(width=24, heads=3, length=12, act=nn.GELU(), dropout=0.1)
    return module, (ids,), {**ADAM, "loss": next_token, "labels": ids}


FACTORIES = (bert, bert_classifier, gpt2, gpt2_dropout)
