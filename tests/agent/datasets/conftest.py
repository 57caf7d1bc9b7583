"""Data of the data sets that a test makes: the fixture of tests/agent/data."""

from tests.agent.data.conftest import data_of

__all__ = ["data_of"]
