"""`python -m qkv` is `qkv`."""

import sys

from qkv.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
