"""The program `dmodel`, and `python -m dmodel`."""

import sys

from dmodel.installed import how_to_get


def main() -> None:
    """Run the shell; a package that was left out at installation is a message and exit code 2."""
    try:
        from dmodel.cli import main as run

        run()
    except ModuleNotFoundError as error:
        advice = how_to_get(error.name or "")
        if advice is None:
            raise
        sys.stderr.write(f"dmodel: {advice}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
