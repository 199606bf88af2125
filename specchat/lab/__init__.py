"""Measuring: bench, verify, explain, race, and drafts made from a target. The engine runs in this very process."""
