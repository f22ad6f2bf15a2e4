"""The SVG picture as a PNG file, rasterised by `resvg`, an optional package."""

from __future__ import annotations

from qkv.errors import UnsupportedError
from qkv.files.extras import how_to_install

__all__ = ["to_png"]


def to_png(svg: str, *, scale: float = 2.0) -> bytes:
    """An SVG document as the bytes of a PNG file, `scale` pixels for each of its own.

    Raises:
        UnsupportedError: the package is not installed.
    """
    try:
        import resvg_py
    except ImportError:
        raise UnsupportedError(
            f"a PNG is drawn by the package resvg-py, which is not installed; {how_to_install('plot')}, or write an .svg"
        ) from None
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=scale, skip_system_fonts=False))
