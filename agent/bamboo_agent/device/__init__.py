"""Memory of device and host, copies between them, waiting for a device, generators. Not here: what
is computed.

Public: every module.
"""
