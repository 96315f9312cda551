"""Run all speed benchmarks or the named ones: ``python -m benchmarks [NAME...] [--repeats N] [--write PAGE]``.

Prints Markdown tables of medians, spreads and ratios, with the processor, and optionally writes them between the marks
of a page. Exits with 1 and a message if a speed requirement is not met.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from .turns import machine

NAMES = (
    "cold_start",
    "sweep_speed",
    "trace_speed",
    "chrome_trace",
    "efficiency",
    "log_reading",
    "fit_speed",
    "serving_speed",
    "deployments",
)
BEGIN, END = "<!-- benchmarks: written by make benchmark -->", "<!-- end of benchmarks -->"


def written(page: str, tables: str) -> str:
    """Return the page with the tables between its marks replaced."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"the page has no lines {BEGIN!r} and {END!r}, between which the tables go")
    return f"{before}{BEGIN}\n{tables}\n{END}{after}"


def main() -> int:
    """Run the benchmarks, print the tables and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all, unless named")
    parser.add_argument("--repeats", type=int, default=5, help="turns of a slow contestant; quick ones take more")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="a page with the two marks")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(NAMES)}")
    if arguments.repeats < 1:
        parser.error(f"--repeats must be 1 or more, not {arguments.repeats}")
    tables, missed = [f"On {machine()}:"], []
    print(tables[0], flush=True)
    for name in arguments.names or NAMES:
        for turns in importlib.import_module(f"benchmarks.{name}").measure(arguments.repeats):
            tables.append(turns.markdown())
            missed += turns.missed()
            print(f"\n{tables[-1]}", flush=True)
    for sentence in missed:
        print(f"\nslower than wanted: {sentence}")
    if arguments.write:
        arguments.write.write_text(written(arguments.write.read_text(), "\n\n".join(tables)))
    return bool(missed)


if __name__ == "__main__":
    raise SystemExit(main())
