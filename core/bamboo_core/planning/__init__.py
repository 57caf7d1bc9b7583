"""From the facts of stopped agents to a plan and its programs. Not: when to plan."""
