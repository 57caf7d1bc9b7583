"""``bamboo export`` and ``bamboo import``: weights of a job's checkpoint as files that others read,
and files of others as the first weights of a job. Not here: training, and the formats of files.

Public: ``main``.
"""
