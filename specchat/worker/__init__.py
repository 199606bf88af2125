"""The engine in a process of its own: llama.cpp may abort and the kernel may kill it; the screen lives on."""
