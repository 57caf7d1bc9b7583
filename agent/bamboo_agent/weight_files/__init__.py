"""Files of weights: read one tensor at a time, and written in the formats that others read. Not
here: checkpoints, which also have the optimizer's state.

Public: every module.
"""
