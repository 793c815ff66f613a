"""One function per command of the building half, each under its command's name.

    from codegen.api import build, emit, make

(`codegen.build` and its siblings are modules, so the functions live here. The planning half: planner.api.)
"""

from codegen.bench import bench
from codegen.build import build
from codegen.emit import emit
from codegen.make import make
from codegen.profile import profile

__all__ = ["bench", "build", "emit", "make", "profile"]
