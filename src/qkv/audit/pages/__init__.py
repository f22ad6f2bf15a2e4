"""Reports as pages: Markdown for the documentation, and one HTML file to look into."""

from .html import to_html
from .made import Made, made_now, read_reports, record
from .markdown import to_markdown

__all__ = ["Made", "made_now", "read_reports", "record", "to_html", "to_markdown"]
