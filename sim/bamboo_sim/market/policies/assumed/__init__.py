"""Systems of which only prose is known, so that most of their rules are assumed; not those
whose code or figures are public.

They stand in a table of their own. Public: nothing; tables, benchmarks and tests start from here.
"""
