"""The pages that scripts/gen-docs writes: one module for each page, or for each source.

Nothing here decides what is true: every text comes from the code, the chart or a result file.
"""
