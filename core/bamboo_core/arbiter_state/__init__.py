"""What a job's arbiter knows, hears and says; not what it decides.

Public: ``events`` (what goes in and out), ``durable`` (the facts that must not be forgotten, as
JSON).
"""
