"""Random and hostile calls by the hundred thousand, each drawn from a number and asked of the definition.

Property tests draw with Hypothesis, which takes far longer to choose a call than the call takes. Here a call is a few facts
drawn from NumPy's generator, so a case costs what checking it costs. `tools/soak.py` runs it.
"""
