def attend(query, keys, values, allowed):
    for line in range(1_000_000):
        print("line", line)
