"""A class that holds the running state (maximum, sum, mixture), one key after the other."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class State:
    width: int
    maximum: float = -math.inf
    total: float = 0.0
    mixture: list[float] = field(default_factory=list)

    def read(self, score, value):
        top = max(self.maximum, score)
        if top == -math.inf:
            return
        old = math.exp(self.maximum - top) if self.maximum > -math.inf else 0.0
        new = math.exp(score - top)
        total = self.total * old + new
        share = new / total
        self.mixture = [m * (1 - share) + v * share for m, v in zip(self.mixture or value, value)]
        self.maximum, self.total = top, total


class Refused(ValueError):
    pass


def attend(query, keys, values, allowed):
    check(query, keys, values, allowed)
    scale = 1.0 / math.sqrt(len(query))
    state = State(len(values[0]))
    scores = []
    for key, value, may in zip(keys, values, allowed):
        score = scale * sum(map(lambda pair: pair[0] * pair[1], zip(query, key)))
        scores.append(score)
        if may:
            if math.isnan(score) or score == math.inf:
                raise Refused("overflow")
            state.read(score, value)
    if state.maximum == -math.inf:
        raise Refused("overflow")
    weights = [math.exp(s - state.maximum) / state.total if may else 0.0 for s, may in zip(scores, allowed)]
    return weights, state.mixture[:]


def check(query, keys, values, allowed):
    match (query, keys, values, allowed):
        case ([_, *_], [_, *_], [_, *_], [_, *_]):
            pass
        case ([*_], [*_], [*_], [*_]):
            raise Refused("empty")
        case _:
            raise TypeError("lists are wanted")
    for v in (query, *keys, *values):
        if not isinstance(v, (list, tuple)):
            raise TypeError("a vector is wanted")
        for x in v:
            if not isinstance(x, (int, float)):
                raise TypeError("a number is wanted")
            if not -math.inf < x < math.inf:
                raise Refused("a finite number is wanted")
    if len({len(v) for v in (query, *keys)}) > 1 or len({len(v) for v in values}) > 1 or not values[0]:
        raise Refused("widths")
    if len({len(keys), len(values), len(allowed)}) > 1:
        raise Refused("lengths")
    if {type(may) for may in allowed} != {bool}:
        raise TypeError("booleans are wanted")
    if True not in allowed:
        raise Refused("nothing to read")
