"""`python -m specchat`: the program where its script is not on the PATH."""

from specchat.cli import main

if __name__ == "__main__":
    main(prog_name="specchat")
