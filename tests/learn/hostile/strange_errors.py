class Meta(type):
    def __instancecheck__(cls, thing):
        raise RuntimeError("no")

    def __subclasscheck__(cls, thing):
        raise RuntimeError("no")

    @property
    def __name__(cls):
        raise RuntimeError("no")


class Strange(BaseException, metaclass=Meta):
    def __str__(self):
        raise Strange

    __repr__ = __str__

    def __getattribute__(self, name):
        raise Strange


def attend(query, keys, values, allowed):
    raise Strange
