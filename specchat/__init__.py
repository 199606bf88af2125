"""specchat: a terminal chat with a local model, sped up losslessly by speculative decoding."""

__version__ = "0.1.0"
