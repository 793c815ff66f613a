"""`stepplan` and `python -m codegen`. While it loads and when it ends, Ctrl-C is no defect either."""

import signal
import sys


def main() -> None:
    try:
        from codegen.cli import main as run

        run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        # All is done, or has said why not: what an interrupt would reach is Python on its way out.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    main()
