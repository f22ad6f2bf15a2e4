import sys

sys.setrecursionlimit(2**31 - 1)


def attend(query, keys, values, allowed):
    return attend(query, keys, values, allowed)
