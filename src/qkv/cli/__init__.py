"""The command line: `qkv demo`, `qkv trace`, `qkv attend`, `qkv info`.

`main.py` holds the parser and the one place where errors become a sentence and an exit code; each command is one
file; `draw.py` alone knows `rich`.
"""
