"""How low and how fast blocks are packed: networks, random lifetimes, cut rectangles, and files of others.

python examples/pack_study.py [--blocks 300] [--folder benchmarks/] [--networks] [--json]

A rectangle cut into pieces has a known optimum, its height, and no room for waste anywhere: the hardest case.
`--folder` reads every *.csv of a folder (id,lower,upper,size), such as the benchmarks of google/minimalloc.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator
from heapq import heappop, heappush
from pathlib import Path
from unittest.mock import patch

from planner.console import positive, script
from planner.costs.model import modelled_costs
from planner.pack_csv import read_blocks
from planner.solve import pools
from planner.solve.liveness import Block
from planner.solve.offsets import QUICK, THOROUGH, Effort, pack
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.text import load_target
from planner.units import ALIGNMENT, Bytes
from planner.zoo import NETWORKS, build

LIFETIMES = ("short", "uniform", "mixed", "exponential", "network")
SIZES = ("uniform", "logarithmic")


def cut_rectangle(pieces: int, width: int, height: int, seed: int) -> list[Block]:
    """Cut the largest piece again and again: in two, or in five around a middle (which no straight cuts can make)."""
    rng = random.Random(seed)
    waiting = [(-width * height, 0, width, 0, height)]
    done: list[tuple[int, int, int, int, int]] = []
    while waiting and len(waiting) + len(done) < pieces:
        piece = heappop(waiting)
        _, left, right, low, high = piece
        wide, tall = right - left, high - low
        if wide >= 3 and tall >= 3 and rng.random() < 0.25 and len(waiting) + len(done) + 5 <= pieces:
            x1, x2 = sorted(rng.sample(range(left + 1, right), 2))
            y1, y2 = sorted(rng.sample(range(low + 1, high), 2))
            parts = [(left, x2, low, y1), (x2, right, low, y2), (x1, right, y2, high), (left, x1, y1, high)]
            parts.append((x1, x2, y1, y2))
        elif wide >= 2 and (tall < 2 or rng.random() < wide / (wide + tall * width / height)):
            x = rng.randrange(left + 1, right)
            parts = [(left, x, low, high), (x, right, low, high)]
        elif tall >= 2:
            y = rng.randrange(low + 1, high)
            parts = [(left, right, low, y), (left, right, y, high)]
        else:
            done.append(piece)
            continue
        for a, b, c, d in parts:
            heappush(waiting, (-(b - a) * (d - c), a, b, c, d))
    cut = done + waiting
    rng.shuffle(cut)
    return [Block(f"p{i}", a, b, Bytes(d - c)) for i, (_, a, b, c, d) in enumerate(cut)]


def random_blocks(count: int, lifetimes: str, sizes: str, seed: int) -> list[Block]:
    """`network`: half of the blocks wait for a backward pass in reverse order, the others are short."""
    rng = random.Random(seed)
    found = []
    for index in range(count):
        begin = rng.randrange(count)
        if lifetimes == "short":
            length = rng.randint(1, count // 50 + 1)
        elif lifetimes == "uniform":
            length = rng.randint(1, count - begin)
        elif lifetimes == "mixed":
            length = rng.randint(1, count // 3) if rng.random() < 0.1 else rng.randint(1, 8)
        elif lifetimes == "exponential":
            length = 1 + int(rng.expovariate(40 / count))
        else:
            begin = index
            length = count - 2 * index + rng.randint(1, 3) if 2 * index < count and rng.random() < 0.6 else 2
        size = rng.randint(1, 1000) if sizes == "uniform" else int(2 ** rng.uniform(0, 20))
        found.append(Block(f"b{index}", begin, min(count, begin + length), Bytes(size)))
    return found


def network_blocks(name: str, policy: str, lanes: int) -> list[Block]:
    """What the planner packs for a zoo network, with modelled costs: listens in while it makes the plan."""
    graph, target = build(name), load_target("cpu2" if lanes <= 2 else "cpu16")
    costs = modelled_costs(graph, target, lanes=lanes)
    options = PlanOptions(policy=policy, strategies=(1,) if policy == "liu" else (), lanes=lanes)
    with patch.object(pools, "pack", wraps=pack) as packed:
        make_plan(graph, target, costs, options)
    return list(packed.call_args.args[0])


def cases(options: argparse.Namespace) -> Iterator[tuple[str, list[Block], int, Effort]]:
    """(name, blocks, alignment, effort)"""
    if options.networks:
        for name in NETWORKS:
            for policy in ("sequential", "liu"):
                for lanes in (2, 16):
                    yield f"{name} {policy} {lanes}", network_blocks(name, policy, lanes), ALIGNMENT, QUICK
    elif options.folder:
        for file in sorted(options.folder.glob("*.csv")):
            yield file.stem, list(read_blocks(file).blocks), 1, THOROUGH
    else:
        count = options.blocks
        yield "rectangle, wide", cut_rectangle(count, 2 * count, 2**20, 1), 1, THOROUGH
        yield "rectangle, narrow", cut_rectangle(count, 200, 2**20, 1), 1, THOROUGH
        for lifetimes in LIFETIMES:
            for sizes in SIZES:
                yield f"{lifetimes}, {sizes}", random_blocks(count, lifetimes, sizes, 1), 1, THOROUGH


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=positive, default=300)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--networks", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.folder and not any(options.folder.glob("*.csv")):
        parser.error(f"there is no *.csv in {options.folder}")
    rows = []
    if not options.json:
        print("| instance | blocks | height / lower bound | proven optimal | CPU seconds |\n|---|---|---|---|---|")
    for name, blocks, alignment, effort in cases(options):
        begun = time.process_time()
        packing = pack(blocks, alignment, effort=effort)
        seconds = time.process_time() - begun
        ratio = packing.height / packing.lower_bound
        rows.append(
            {
                "instance": name,
                "blocks": len(blocks),
                "height": packing.height,
                "lower_bound": packing.lower_bound,
                "proven": packing.proven,
                "seconds": round(seconds, 2),
            }
        )
        if not options.json:
            optimal = "yes" if packing.optimal else "no"
            print(f"| {name} | {len(blocks)} | {ratio:.4f} | {optimal} | {seconds:.2f} |", flush=True)
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    script(main)
