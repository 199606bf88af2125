"""What a pair needs, what the machine has, and the plan that follows: arithmetic on values.

Contract: nothing here reads a file, asks a device or loads a library; the same values give the same plan. Sizes are
bytes, lengths tokens. `shapes` reads what decides a model's memory out of a GGUF header, `machine` says what may be
taken where, `planning` decides, `table` prints.
"""
