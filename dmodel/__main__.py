"""`python -m dmodel`: the shell, where the console script is not on the path."""

from dmodel.cli import main

if __name__ == "__main__":
    main()
