from math import exp, sqrt


def attend(query, keys, values, allowed):
    """What one query reads.

    query    D numbers
    keys     S vectors of D numbers
    values   S vectors of E numbers
    allowed  S booleans, True where the key may be read

    Returns (weights, context): S numbers that add up to 1, exactly 0.0 where a
    key is not allowed, and the weighted sum of the values, E numbers.
    Raises ValueError for an input that has no answer, TypeError for a wrong type.
    """
    ...


# "Run" runs this file and shows what it prints. "Grade" tests attend alone.
print(attend([sqrt(2), 0.0], [[1.0, 0.0], [0.0, 1.0]], [[10.0, 0.0], [0.0, 20.0]], [True, True]))
