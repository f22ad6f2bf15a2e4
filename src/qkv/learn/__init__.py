"""The lesson and its lab: read, traced, coded and graded, with a notebook that is the learner's own."""
