"""The audit: hold any attention kernel against the contract.

>>> from qkv.audit import check
>>> check("qkv-numpy", case="B5-causal", isolate=False).rows[0].verdict
'keeps'

For each clause: keeps · differs (which convention it follows instead) · wrong (with the smallest input found that shows
it) · refuses · cannot express · crashes · not promised.
"""

from .call import Call, Result
from .case import Case, Finding, Size
from .cases import CLAUSES, all_cases
from .conformance import conformance
from .domain import FEATURES, Domain
from .kernel import FunctionKernel, Given, Kernel
from .model import Leak, Leaks, leaks
from .profiles import PROFILES
from .readings import Reading
from .report import Report
from .run import Choice
from .targets import audit, check
from .verdict import Row

__all__ = [
    "CLAUSES",
    "FEATURES",
    "PROFILES",
    "Call",
    "Case",
    "Choice",
    "Domain",
    "Finding",
    "FunctionKernel",
    "Given",
    "Kernel",
    "Leak",
    "Leaks",
    "Reading",
    "Report",
    "Result",
    "Row",
    "Size",
    "all_cases",
    "audit",
    "check",
    "conformance",
    "leaks",
]
