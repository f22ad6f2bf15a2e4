def attend(query, keys, values, allowed):
    raise KeyboardInterrupt
