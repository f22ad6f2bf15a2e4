def attend(query, keys, values, allowed):
    while True:
        pass
