"""The lesson and its lab: read, traced, coded and graded, with a notebook that is the learner's own."""

from .grader import Report, grade
from .runner import Limits, check_file, check_solution

__all__ = ["Limits", "Report", "check_file", "check_solution", "grade"]
