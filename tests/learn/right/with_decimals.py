"""Decimals with 40 digits, cast to float at the end."""

import decimal
import math
from decimal import Decimal


def number(x):
    if not isinstance(x, (int, float)):
        raise TypeError(f"{x!r} is no number")
    exact = Decimal(x)
    if not exact.is_finite():
        raise ValueError(f"{x!r} is not finite")
    return exact


def vectors(given):
    if not isinstance(given, (list, tuple)):
        raise TypeError("vectors are wanted")
    rows = [vector(v) for v in given]
    if len({len(row) for row in rows}) != 1:
        raise ValueError("vectors of one width are wanted")
    return rows


def vector(given):
    if not isinstance(given, (list, tuple)):
        raise TypeError("a vector is wanted")
    if len(given) == 0:
        raise ValueError("a vector has no width")
    return [number(x) for x in given]


def attend(query, keys, values, allowed):
    with decimal.localcontext() as context:
        context.prec = 40
        context.Emax, context.Emin = decimal.MAX_EMAX, decimal.MIN_EMIN
        q, ks, vs = vector(query), vectors(keys), vectors(values)
        if type(allowed) not in (list, tuple):
            raise TypeError("a mask is wanted")
        if len(q) != len(ks[0]) or len(ks) != len(vs) or len(ks) != len(allowed):
            raise ValueError("lengths do not fit")
        for may in allowed:
            if may not in (True, False) or not isinstance(may, bool):
                raise TypeError("booleans are wanted")
        if sum(allowed) == 0:
            raise ValueError("no key may be read")
        root = Decimal(len(q)).sqrt()
        scores = [sum(a * b for a, b in zip(q, k)) / root for k in ks]
        top = max(score for score, may in zip(scores, allowed) if may)
        if math.isinf(float(top)):
            raise ValueError("a score overflows")
        powers = [(score - top).exp() if may else Decimal(0) for score, may in zip(scores, allowed)]
        total = sum(powers)
        weights = [power / total for power in powers]
        mixed = [sum(w * v[e] for w, v in zip(weights, vs)) for e in range(len(vs[0]))]
        return [float(w) for w in weights], [float(x) for x in mixed]
