"""Where the templates and the runtime's headers lie: beside this package, in a checkout and in a wheel."""

from pathlib import Path

TEMPLATES = Path(__file__).resolve().parents[1] / "templates"
RUNTIME = TEMPLATES / "runtime"
