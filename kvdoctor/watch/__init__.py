"""A server watched while it runs: a sliding window judged by the pipeline, shown on a terminal, as lines, or in a text file.

Figures that move (pool usage, queue, rates) are read from every sample. The diagnosis is renewed on a slower beat, and at once
when something happens: see :mod:`kvdoctor.watch.watcher`.
"""
