def attend(query, keys, values, allowed):
    hog = []
    while True:
        hog.append(bytearray(2**24))
