"""Memory of device and host, copies between them, generators. Not here: what is computed.

Public: every module.
"""
