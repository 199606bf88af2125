"""Where the program starts, as `specchat` or `python -m specchat`."""

import signal


def main() -> None:
    """Run the command line. Ctrl+C while it is being imported ends the process, without a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from specchat import cli

    signal.signal(signal.SIGINT, handler)
    cli.main(prog_name="specchat")


if __name__ == "__main__":
    main()
