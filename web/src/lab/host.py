"""What the lab's worker does in Python: run, grade, try one input, run on given rows. All answers are JSON."""

import json

import grader


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


def run(task, tell_printed, tell_case):
    task = json.loads(task)
    source = task["source"]
    local = grader.Local(source, output=Printed(tell_printed) if task["type"] == "run" else None)
    if task["type"] == "run":
        outcome = local.load()
        printed, cut = local.printed()
        result = {"outcome": outcome, "printed": printed, "cut": cut}
    elif task["type"] == "grade":
        skip = task["skip"]
        if "*" in skip:  # all others are left out, too
            ids = [*grader.CASE_IDS, *(case["id"] for case in task["extra"])]
            skip = dict.fromkeys(ids) | {name: known for name, known in skip.items() if name != "*"}
        return grader.grade_json(
            source,
            extra_cases=task["extra"],
            skip=skip,
            on_case=lambda news: tell_case(json.dumps(news, allow_nan=False)),
        )
    elif task["type"] == "try":
        try:
            problem = grader.read_input(task["text"])
        except ValueError as error:
            result = {"unreadable": str(error)}
        else:
            result = grader.try_input(source, problem)
    else:
        outcome = local.load()
        if outcome["kind"] == "loaded":
            outcomes = []
            for problem in json.loads(task["problems"]):
                outcome = local.call(tuple(problem))
                # A learner's numbers may be infinite, which JSON has no word for.
                outcomes.append(outcome | {"value": grader.encode(outcome.get("value"))})
            result = {"outcomes": outcomes}
        else:
            result = {"outcome": outcome}
    return json.dumps(result, allow_nan=False)
