"""A small picture in memory, written as PNG: lines, dots and short texts, with no library."""

import struct
import zlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

Colour = tuple[int, int, int]

BLACK, GREY, BLUE = (0, 0, 0), (215, 215, 215), (30, 90, 180)

_CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ.%-+:"
_ROWS = (
    "75557262277174771717557117471774757711117575775717"
    "75755656567444765556746477464474557557557222711157556554444757755755557555775744"
    "7557175655747177222255557555525577555255552227124700002512450070002720"
    "02020"
)
_FONT = {c: tuple(int(row) for row in _ROWS[5 * i : 5 * i + 5]) for i, c in enumerate(_CHARACTERS)}
"""character -> five rows of three bits"""


class Raster:
    def __init__(self, width: int, height: int) -> None:
        self.pixels = np.full((height, width, 3), 255, np.uint8)

    def box(self, x: int, y: int, width: int, height: int, colour: Colour) -> None:
        """Filled; what lies outside the picture is cut off."""
        self.pixels[max(0, y) : max(0, y + height), max(0, x) : max(0, x + width)] = colour

    def line(self, x0: float, y0: float, x1: float, y1: float, colour: Colour, thick: int = 2) -> None:
        count = int(max(abs(x1 - x0), abs(y1 - y0), 1)) + 1
        for x, y in zip(np.linspace(x0, x1, count), np.linspace(y0, y1, count), strict=True):
            self.box(round(float(x)), round(float(y)), thick, thick, colour)

    def text(self, x: int, y: int, text: str, colour: Colour = BLACK, scale: int = 2) -> None:
        """Upper case; a character is 3 x 5 dots, 4 with the gap behind it."""
        for index, character in enumerate(text.upper()):
            for row, bits in enumerate(_FONT.get(character, ())):
                for column in range(3):
                    if bits >> (2 - column) & 1:
                        left = x + (4 * index + column) * scale
                        self.box(left, y + row * scale, scale, scale, colour)

    def png(self) -> bytes:
        height, width, _ = self.pixels.shape
        rows = b"".join(b"\0" + row.tobytes() for row in self.pixels)
        head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
            for name, data in chunks
        )


def curve(
    title: str, x_label: str, y_label: str, points: Sequence[tuple[float, float]], width: int = 900, height: int = 560
) -> bytes:
    """A PNG of points joined in order, both axes from the smallest value to the largest; the y axis starts at 0."""
    picture = Raster(width, height)
    left, top, edge, bottom = 110, 60, width - 40, height - 70
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    low, high = min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1
    most = max(ys) or 1.0
    picture.text(left, 20, title, scale=3)
    for i in range(6):
        x, y = left + (edge - left) * i // 5, bottom - (bottom - top) * i // 5
        picture.line(x, top, x, bottom, GREY, 1)
        picture.line(left, y, edge, y, GREY, 1)
        picture.text(x - 20, bottom + 12, f"{low + (high - low) * i / 5:.4g}")
        picture.text(left - 80, y - 5, f"{most * i / 5:.4g}")
    picture.text((left + edge) // 2 - 4 * len(x_label), bottom + 42, x_label)
    picture.text(8, top - 22, y_label)
    places = [(left + (edge - left) * (x - low) / (high - low), bottom - (bottom - top) * y / most) for x, y in points]
    for (x0, y0), (x1, y1) in pairwise(places):
        picture.line(x0, y0, x1, y1, BLUE)
    for right, down in places:
        picture.box(round(right) - 4, round(down) - 4, 8, 8, BLUE)
    return picture.png()
