"""The invariants of a history: what must be true of the world after an event, and at the end. It
reads the world and keeps notes there, and makes nothing happen. How histories are chosen belongs to
exploration.

Public: every module.
"""
