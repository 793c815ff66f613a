"""`stepplan` and `python -m codegen`. Loading takes a moment, in which Ctrl-C is no defect either."""

import sys


def main() -> None:
    try:
        from codegen.cli import main as run
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
