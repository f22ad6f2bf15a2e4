import time


def attend(query, keys, values, allowed):
    time.sleep(3600)
