"""How all benchmarks measure, check and report.

`timing` is the paired timer, `comparison` makes the rows of a case with it, `oracle` checks every
output against float64, `rates` counts the work and measures what the machine could do, `memory`
is peak memory and whether a case fits, `provenance` and `report` make the result file, `options`
reads the command line.
"""
