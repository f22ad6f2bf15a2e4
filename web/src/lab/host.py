"""What the lab's worker does in Python: run, grade, try one input, run on given rows. All answers are JSON."""

import json
from time import perf_counter

import alike
import grader
import plain

#: The deepest that an input may be nested. One of `attend` is two deep; a parser in a browser ends at a few hundred.
DEPTH = 20

#: Seconds between two signs of life, and calls between two of the definition.
PULSE, SAMPLE = 0.05, 8


class Printed(grader.Output):
    """Tells the page what is printed while it is printed, so that a program that never ends has said something."""

    def __init__(self, tell):
        super().__init__()
        self._tell = tell

    def write(self, text):
        before = len(self.kept)
        count = super().write(text)
        if len(self.kept) > before:
            self._tell(self.kept[before:])
        return count


class Watched(grader.Local):
    """Tells the page a few times a second that it lives, and how much of its time was the learner's function's.

    Beside it goes the time that the definition takes for the same calls, of which every eighth is tried: a machine that
    is slow or has other things to do slows both alike, so only the two together say whose fault a long wait is.
    """

    def __init__(self, source, tell, output=None):
        super().__init__(source, output=output)
        self._tell = tell
        self._definition = grader.Local(plain.attend)
        self._definition.load()
        self._calls = self._tried = 0
        self._yours = self._fair = self._told = 0.0

    def load(self):
        self._live()
        began = perf_counter()
        outcome = super().load()
        self._yours += perf_counter() - began
        return outcome

    def call(self, problem):
        if self._calls % SAMPLE == 0:
            began = perf_counter()
            self._definition.call(problem)
            self._fair += perf_counter() - began
            self._tried += 1
        self._calls += 1
        self._live()
        began = perf_counter()
        outcome = super().call(problem)
        self._yours += perf_counter() - began
        return outcome

    def _live(self):
        now = perf_counter()
        if now - self._told >= PULSE:
            self._told = now
            each = self._fair / max(self._tried, 1)
            self._tell({"event": "pulse", "yours": self._yours, "calls": self._calls, "each": each})


class Stopped:
    """A function of which is known only that the page had to end it; what `grader.Runs` asks for."""

    def __init__(self, outcome):
        self._outcome = outcome

    def load(self):
        return {"kind": "loaded"}

    def call(self, problem):
        return self._outcome

    def printed(self):
        return "", False


def run(task, tell_printed, tell_news):
    task = json.loads(task)
    source = task["source"]

    def tell(news):
        tell_news(json.dumps(news, allow_nan=False))

    if task["type"] == "run":
        local = grader.Local(source, output=Printed(tell_printed))
        outcome = local.load()
        printed, cut = local.printed()
        result = {"outcome": outcome, "printed": printed, "cut": cut}
    elif task["type"] == "grade":
        skip = task["skip"]
        if "*" in skip:  # all others are left out, too
            ids = [*grader.CASE_IDS, *(case["id"] for case in task["extra"])]
            skip = dict.fromkeys(ids) | {name: known for name, known in skip.items() if name != "*"}
        result = grader.grade(Watched(source, tell), extra_cases=task["extra"], skip=skip, on_case=tell).to_dict()
    elif task["type"] == "try":
        result = _try(source, task["text"], task.get("stopped"), tell)
    else:
        result = _rows(Watched(source, tell), json.loads(task["problems"]), tell)
    return json.dumps(result, allow_nan=False)


def _try(source, text, stopped, tell):
    """One input on the learner's function and the definition; `stopped`: what became of the function, if known."""
    if _depth(text) > DEPTH:
        return {"unreadable": f"it is nested {_depth(text)} deep, and an input of attend is 2 deep; flatten it"}
    try:
        problem = grader.read_input(text)
    except ValueError as error:
        return {"unreadable": str(error)}
    tell({"event": "read"})
    local = Watched(source, tell)
    if stopped is None:
        outcome = local.load()
        if outcome["kind"] != "loaded":
            return {"unloaded": outcome}
        tell({"event": "loaded"})
    record = grader.try_input(local if stopped is None else Stopped(stopped), problem)
    return record | {"alike": alike.alike(problem)}


def _depth(text):
    deepest = depth = 0
    for letter in text:
        depth += (letter in "[({") - (letter in "])}")
        deepest = max(deepest, depth)
    return deepest


def _rows(local, problems, tell):
    outcome = local.load()
    if outcome["kind"] != "loaded":
        return {"outcome": outcome}
    outcomes = []
    for number, problem in enumerate(problems, 1):
        tell({"event": "row", "number": number, "of": len(problems)})
        outcome = local.call(tuple(problem))
        # A learner's numbers may be infinite, which JSON has no word for.
        outcomes.append(outcome | {"value": grader.encode(outcome.get("value"))})
    return {"outcomes": outcomes}
