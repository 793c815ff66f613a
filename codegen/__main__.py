"""`stepplan` and `python -m codegen`. While it loads and when it ends, Ctrl-C is no defect either."""

import signal
import sys


def main() -> None:
    try:
        try:
            from codegen.cli import main as run

            run()
        finally:
            # All is done, or has said why not: what an interrupt would reach is Python on its way out.
            _ignore_interrupts()
    except KeyboardInterrupt:  # also one that came before they were ignored
        _ignore_interrupts()
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    main()
