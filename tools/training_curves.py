"""Trains one small language model twice from one seed, on torch's attention and on qkv's, and draws both losses.

    python tools/training_curves.py --steps 300 --out docs/images/training.svg

The model has the shape of glassllm: 4 layers, 4 query and 2 key heads, rotary positions. What it learns is docs/contract.md,
byte by byte. How far two runs may drift apart by rounding alone is measured beside: the same run on torch's attention from
weights that are moved by one unit in the last place here and there.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import qkv.torch

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def on_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's own attention, causal, (B, H, L, D)."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def on_qkv(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same by qkv."""
    return qkv.torch.attend(q, k, v, mask=qkv.causal())


def rotated(x: Tensor) -> Tensor:
    """Rotary positions on split halves of the width; (B, H, L, D)."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * 10000.0 ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


class Block(nn.Module):
    """Attention and a gated layer, each behind a norm and beside a residual."""

    def __init__(self, width: int, heads: int, key_heads: int, attention: Attention) -> None:
        super().__init__()
        self.attention, self.heads, self.key_heads = attention, heads, key_heads
        narrow = width // heads * key_heads
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.q, self.k, self.v = (nn.Linear(width, n, bias=False) for n in (width, narrow, narrow))
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        q, k, v = (
            part.unflatten(-1, (count, -1)).transpose(1, 2)
            for part, count in ((self.q(y), self.heads), (self.k(y), self.key_heads), (self.v(y), self.key_heads))
        )
        x = x + self.o(self.attention(rotated(q), rotated(k), v).transpose(1, 2).flatten(-2))
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def losses(
    attention: Attention,
    text: Tensor,
    *,
    steps: int,
    seed: int = 0,
    width: int = 128,
    layers: int = 4,
    heads: int = 4,
    key_heads: int = 2,
    length: int = 96,
    batch: int = 4,
    moved: int | None = None,
    report: Callable[[int, float], Any] = lambda step, loss: None,
) -> list[float]:
    """The loss of each step of training; `moved` seeds which starting weights are moved by one unit in the last place."""
    torch.manual_seed(seed)
    embed = nn.Embedding(256, width)
    blocks = nn.Sequential(*(Block(width, heads, key_heads, attention) for _ in range(layers)))
    head = nn.Sequential(nn.RMSNorm(width), nn.Linear(width, 256, bias=False))
    model = nn.Sequential(embed, blocks, head)
    if moved is not None:
        chance = torch.Generator().manual_seed(moved)
        with torch.no_grad():
            for parameter in model.parameters():
                up = torch.nextafter(parameter, torch.full_like(parameter, torch.inf))
                parameter.copy_(torch.where(torch.rand(parameter.shape, generator=chance) < 0.5, up, parameter))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    chance, found = torch.Generator().manual_seed(seed), []
    for step in range(steps):
        start = torch.randint(len(text) - length - 1, (batch,), generator=chance)
        window = text[start[:, None] + torch.arange(length + 1)]
        loss = functional.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found.append(loss.item())
        report(step, found[-1])
    return found


def read_text(path: Path) -> Tensor:
    return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).long()


def picture(a: list[float], b: list[float], noise: list[float]) -> str:
    """Two losses above, their distance and the noise below on a scale of powers of ten; SVG."""
    w, h, left, top = 640, 210, 58, 18
    steps = len(a)

    def x(i: int) -> float:
        return left + (w - left - 16) * i / max(steps - 1, 1)

    def line(ys: list[float], colour: str, dash: str = "", wide: float = 1.6) -> str:
        points = " ".join(f"{x(i):.1f},{y:.1f}" for i, y in enumerate(ys))
        extra = f' stroke-dasharray="{dash}"' if dash else ""
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{wide}"{extra}/>'

    high, least, most = max(max(a), max(b)), -9, 1

    def loss(v: float) -> float:
        return top + (h - 2 * top) * (1 - v / high)

    def power(v: float) -> float:
        exponent = max(math.log10(v), least) if v > 0 else least
        return h + top + (h - 2 * top) * (1 - (exponent - least) / (most - least))

    marks = [f'<text x="{left - 6}" y="{loss(v) + 4:.1f}" text-anchor="end">{v}</text>' for v in range(int(high) + 1)]
    marks += [
        f'<text x="{left - 6}" y="{power(10.0**e) + 4:.1f}" text-anchor="end">{f"1e{e}" if e > least else 0}</text>'
        for e in range(least, most + 1, 2)
    ]
    marks += [f'<text x="{x(i):.1f}" y="{2 * h - 2}" text-anchor="middle">{i}</text>' for i in range(0, steps + 1, 50)]
    apart = [abs(p - q) for p, q in zip(a, b, strict=True)]
    body = [
        line([loss(v) for v in a], "#888", wide=3.2),
        line([loss(v) for v in b], "#0b62c4"),
        line([power(v) for v in noise], "#888", wide=1.2),
        line([power(v) for v in apart], "#0b62c4", wide=1.2),
        f'<text x="{w - 20}" y="{top + 14}" text-anchor="end">loss by step: torch (grey, wide) and qkv (blue)</text>',
        f'<text x="{w - 20}" y="{h + top + 14}" text-anchor="end">apart: torch and qkv (blue), torch and torch rounded otherwise (grey)</text>',
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {2 * h}" role="img" font-family="sans-serif" font-size="11">'
        "<title>Losses of one model trained on torch's attention and on qkv's</title>"
        f'<rect width="{w}" height="{2 * h}" fill="#fff"/>' + "".join(marks + body) + "</svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = Path(__file__).resolve().parents[1]
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--text", type=Path, default=root / "docs" / "contract.md")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    text = read_text(arguments.text)

    def report(step: int, loss: float) -> None:
        if step % 50 == 0:
            print(f"  step {step}: {loss:.4f}", flush=True)

    runs: dict[str, list[float]] = {}
    for name, attention, moved in (("torch", on_torch, None), ("qkv", on_qkv, None), ("torch, moved", on_torch, 1)):
        print(name, flush=True)
        runs[name] = losses(attention, text, steps=arguments.steps, moved=moved, report=report)
    noise = [abs(p - q) for p, q in zip(runs["torch"], runs["torch, moved"], strict=True)]
    apart = [abs(p - q) for p, q in zip(runs["torch"], runs["qkv"], strict=True)]
    print(
        f"last loss {runs['torch'][-1]:.4f} and {runs['qkv'][-1]:.4f}; most apart {max(apart):.2g}, by rounding {max(noise):.2g}"
    )
    arguments.out.write_text(picture(runs["torch"], runs["qkv"], noise), encoding="utf-8")


if __name__ == "__main__":
    main()
