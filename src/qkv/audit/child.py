"""The child process: `python -m qkv.audit.child FD FD` loads one kernel and answers calls until its pipe closes."""

from __future__ import annotations

import os
import sys
from typing import Any

from qkv.errors import QkvError

from . import wire
from .deliver import deliver


def main(read_from: int, write_to: int) -> None:
    """Answer calls. The two descriptors are the only way in and out; standard output belongs to the kernel."""

    def read(count: int) -> bytes:
        parts = []
        while count:
            part = os.read(read_from, min(count, 1 << 20))
            if not part:
                os._exit(0)
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def write(message: bytes) -> None:
        view = memoryview(message)
        while view:
            view = view[os.write(write_to, view[: 1 << 20]) :]

    head, _ = wire.unpack(read)
    try:
        from .load import check_device, load

        kernel = load(head["spec"])
        check_device(kernel.domain)
    except BaseException as problem:
        words = " ".join(str(problem).split())
        # Our own sentences say all that there is to say.
        said = words if isinstance(problem, QkvError) else f"{type(problem).__name__}: {words}"
        if isinstance(problem, ModuleNotFoundError) and "adapter" in head["spec"]:
            said = f"{problem.name} is not installed"
        write(wire.pack({"error": said}, {}))
        return
    about: dict[str, Any] = {
        "domain": kernel.domain.to_dict(),
        "name": kernel.name,
        "version": kernel.version,
        "notes": list(kernel.notes),
    }
    write(wire.pack(about, {}))
    while True:
        result = deliver(kernel, wire.call_from(*wire.unpack(read)))
        write(wire.result_to(result))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
