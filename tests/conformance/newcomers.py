"""Attentions as a newcomer writes them in torch, each with another bug, and one without."""

import math

import pytest

torch = pytest.importorskip("torch")  # the folder is collected where torch is not
nn = torch.nn


class Right(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def split(self, x):
        batch, length, _ = x.shape
        return x.view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, x, mask=None):
        batch, length, d_model = x.shape
        q, k, v = (self.split(f(x)) for f in (self.q_proj, self.k_proj, self.v_proj))
        scores = self.scores(q, k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        weights = self.dropout(scores.softmax(dim=-1))
        return self.out_proj((weights @ v).transpose(1, 2).reshape(batch, length, d_model))

    def scores(self, q, k):
        return q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)


class MixedHeads(Right):
    """The split lacks the transpose."""

    def split(self, x):
        batch, length, _ = x.shape
        return x.view(batch, self.num_heads, length, self.head_dim)


class WrongAxis(nn.Module):
    """A fused projection, and a softmax over the queries."""

    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        batch, length, width = x.size()
        q, k, v = self.c_attn(x).split(width, dim=2)
        k = k.view(batch, length, self.n_head, width // self.n_head).transpose(1, 2)
        q = q.view(batch, length, self.n_head, width // self.n_head).transpose(1, 2)
        v = v.view(batch, length, self.n_head, width // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:length, :length] == 0, float("-inf"))
        att = torch.softmax(att, dim=2)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(batch, length, width)
        return self.c_proj(y)


class Leaking(nn.Module):
    """A model of two layers of which the second has no causal mask."""

    def __init__(self, vocabulary=64, width=32):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            [nn.MultiheadAttention(width, 4, 0.1, batch_first=True) for _ in "12"]
        )
        self.logits = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embedding(tokens)
        ahead = torch.triu(torch.ones(tokens.shape[1], tokens.shape[1]), 1).bool()
        for layer, mask in zip(self.layers, (ahead, None), strict=True):
            x = x + layer(x, x, x, attn_mask=mask, need_weights=False)[0]
        return self.logits(x)
