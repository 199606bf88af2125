"""One module a command of the command line; `specchat.cli` imports each only when it is asked for."""
