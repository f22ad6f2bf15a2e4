"""The same numbers as a page, a picture, JSON and lines of a terminal; what is shown is decided once, in `picture.py`."""

from .html import to_html
from .picture import Picture, Shown, picture
from .png import to_png
from .serve import Server
from .svg import to_svg

__all__ = ["Picture", "Server", "Shown", "picture", "to_html", "to_png", "to_svg"]
