import time


def attend(query, keys, values, allowed):
    while True:
        try:
            time.sleep(3600)
        except BaseException:
            pass
