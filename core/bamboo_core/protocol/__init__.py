"""Messages of agents and operator, and the state machines of an agent's two processes; not the
arbiter.

Public: ``messages``, ``exit_codes``, ``admission``, ``channels``, ``clock``; for agents and
simulations ``executor``, ``effects``, ``supervisor``, ``supervisor_io``, ``said``,
``upcoming``, ``watch``.
"""
