"""The engine: speculative decoding over llama.cpp. Knows nothing of screens, databases or processes."""
