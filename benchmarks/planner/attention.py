"""Transformers in plain torch: encoders, decoders, both, and those that denoise."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Several heads; keys and values come from `context` where one is given."""

    def __init__(self, width, heads, *, is_causal=False, dropout=0.0, bias=True):
        super().__init__()
        self.heads, self.is_causal, self.dropout = heads, is_causal, dropout
        self.query = nn.Linear(width, width, bias=bias)
        self.key_value = nn.Linear(width, 2 * width, bias=bias)
        self.last = nn.Linear(width, width, bias=bias)

    def forward(self, x, context=None, mask=None):
        context = x if context is None else context
        q, (k, v) = self.query(x), self.key_value(context).chunk(2, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        dropout = self.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=self.is_causal
        )
        return self.last(seen.transpose(1, 2).flatten(2))


class FusedAttention(nn.Module):
    """One product for queries, keys and values, as GPT-2 and ViT have it."""

    def __init__(self, width, heads, *, is_causal=False):
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.mix, self.last = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def projected(self, x):
        return self.mix(x).chunk(3, -1)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.projected(x)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        return self.last(seen.transpose(1, 2).flatten(2))


class LoraAttention(FusedAttention):
    """Low-rank additions to queries and values; the rest is meant to be frozen."""

    def __init__(self, width, heads, rank):
        super().__init__(width, heads, is_causal=True)
        self.down = nn.ModuleList(nn.Linear(width, rank, bias=False) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(rank, width, bias=False) for _ in range(2))

    def projected(self, x):
        q, k, v = super().projected(x)
        return q + self.up[0](self.down[0](x)), k, v + self.up[1](self.down[1](x))


class Block(nn.Module):
    """Norm before attention and before the two wide layers."""

    def __init__(self, width, attention, activation=F.gelu):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.activation = attention, activation
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attend(self.first(x))
        return x + self.narrow(self.activation(self.wide(self.second(x))))


def gpt_gelu(x):
    return F.gelu(x, approximate="tanh")


class Decoder(nn.Module):
    """GPT-2: embeddings tied to the head, 124M parameters at width 768 and 12 blocks. With a
    `rank`, only low-rank additions to queries and values learn."""

    def __init__(self, *, symbols, length, width, heads, depth, rank=None):
        super().__init__()
        self.embed, self.place = nn.Embedding(symbols, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            Block(
                width,
                LoraAttention(width, heads, rank)
                if rank
                else FusedAttention(width, heads, is_causal=True),
                gpt_gelu,
            )
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, symbols, bias=False)
        self.head.weight = self.embed.weight
        if rank:
            for name, parameter in self.named_parameters():
                parameter.requires_grad_(".down." in name or ".up." in name)

    def forward(self, tokens):
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class VisionTransformer(nn.Module):
    def __init__(self, *, size, patch, width, heads, depth, classes):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(
            *(Block(width, FusedAttention(width, heads)) for _ in range(depth))
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.place
        return self.head(self.norm(self.blocks(x))[:, 0])


class PostBlock(nn.Module):
    """BERT's block: norm after each sum, dropout, a mask of what is there."""

    def __init__(self, width, heads, dropout):
        super().__init__()
        self.attend = Attention(width, heads, dropout=dropout)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, mask):
        x = self.first(x + self.drop(self.attend(x, mask=mask)))
        return self.second(x + self.drop(self.narrow(F.gelu(self.wide(x)))))


class Encoder(nn.Module):
    """BERT: 110M parameters at width 768. Scores of every token, or of the text where `classes`
    are given; the first `frozen` blocks and the embeddings do not learn."""

    def __init__(self, *, symbols, length, width, heads, depth, dropout, classes=None, frozen=0):
        super().__init__()
        self.embed, self.place = nn.Embedding(symbols, width), nn.Embedding(length, width)
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(dropout)
        self.blocks = nn.ModuleList(PostBlock(width, heads, dropout) for _ in range(depth))
        self.is_pooled = classes is not None
        self.inner, self.inner_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.head = nn.Linear(width, classes or symbols)
        if classes is None:
            self.head.weight = self.embed.weight
        if frozen:
            for part in (self.embed, self.place, self.norm, *self.blocks[:frozen]):
                part.requires_grad_(False)

    def forward(self, tokens, is_there):
        place = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.norm(self.embed(tokens) + self.place(place)))
        mask = is_there[:, None, None, :]
        for block in self.blocks:
            x = block(x, mask)
        x = x[:, 0] if self.is_pooled else x
        return self.head(self.inner_norm(F.gelu(self.inner(x))))


class LlamaBlock(nn.Module):
    """RMSNorm, rotated queries and keys, fewer heads for keys, gated wide layers."""

    def __init__(self, width, heads, groups, wide):
        super().__init__()
        self.heads, self.groups, size = heads, groups, width // heads
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.last = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(width, groups * size, bias=False) for _ in range(2))
        self.gate, self.wide = (nn.Linear(width, wide, bias=False) for _ in range(2))
        self.narrow = nn.Linear(wide, width, bias=False)

    def forward(self, x, cosine, sine):
        inner = self.first(x)
        q = split_heads(self.query(inner), self.heads)
        k, v = (split_heads(part(inner), self.groups) for part in (self.key, self.value))
        q, k = rotated(q, cosine, sine), rotated(k, cosine, sine)
        k, v = (part.repeat_interleave(self.heads // self.groups, 1) for part in (k, v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.last(seen.transpose(1, 2).flatten(2))
        inner = self.second(x)
        return x + self.narrow(F.silu(self.gate(inner)) * self.wide(inner))


def split_heads(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def rotated(x, cosine, sine):
    first, second = x.chunk(2, -1)
    return (x * cosine + torch.cat([-second, first], -1) * sine).to(x.dtype)


class Llama(nn.Module):
    def __init__(self, *, symbols, length, width, heads, groups, wide, depth):
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, groups, wide) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, symbols, bias=False)
        self.size = width // heads

    def forward(self, tokens):
        x = self.embed(tokens)
        half = torch.arange(0, self.size, 2, device=x.device) / self.size
        place = torch.arange(tokens.shape[1], device=x.device)
        angles = (place[:, None] * 10000.0 ** -half[None]).repeat(1, 2)
        cosine, sine = angles.cos(), angles.sin()
        for block in self.blocks:
            x = block(x, cosine, sine)
        return self.head(self.norm(x))


class T5Block(nn.Module):
    def __init__(self, width, heads, *, is_decoder, dropout):
        super().__init__()
        self.attend = Attention(width, heads, dropout=dropout, bias=False)
        self.cross = Attention(width, heads, dropout=dropout, bias=False) if is_decoder else None
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(3 if is_decoder else 2))
        self.wide = nn.Linear(width, 4 * width, bias=False)
        self.narrow, self.drop = nn.Linear(4 * width, width, bias=False), nn.Dropout(dropout)

    def forward(self, x, bias, context=None):
        x = x + self.drop(self.attend(self.norms[0](x), mask=bias))
        if self.cross is not None:
            x = x + self.drop(self.cross(self.norms[1](x), context))
        return x + self.drop(self.narrow(F.relu(self.wide(self.norms[-1](x)))))


class T5(nn.Module):
    """Encoder and decoder with a learned bias by distance: 60M parameters at width 512."""

    buckets = 32

    def __init__(self, *, symbols, width, heads, depth, dropout):
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.near = nn.ModuleList(nn.Embedding(self.buckets, heads) for _ in range(2))
        self.encoder, self.decoder = (
            nn.ModuleList(
                T5Block(width, heads, is_decoder=is_decoder, dropout=dropout) for _ in range(depth)
            )
            for is_decoder in (False, True)
        )
        self.norms, self.scale = nn.ModuleList(nn.RMSNorm(width) for _ in range(2)), width**-0.5
        nn.init.normal_(self.embed.weight)

    def _bias(self, length, which, device):
        place = torch.arange(length, device=device)
        apart = place[None] - place[:, None]
        near = (apart.clamp(-15, 16) + 15) if which == 0 else (-apart).clamp(0, 31)
        bias = self.near[which](near).permute(2, 0, 1)[None]
        return bias if which == 0 else bias.masked_fill(apart > 0, -math.inf)

    def forward(self, source, target):
        x, bias = self.embed(source), self._bias(source.shape[1], 0, source.device)
        for block in self.encoder:
            x = block(x, bias)
        context = self.norms[0](x)
        y, bias = self.embed(target), self._bias(target.shape[1], 1, target.device)
        for block in self.decoder:
            y = block(y, bias, context)
        return F.linear(self.norms[1](y) * self.scale, self.embed.weight)
