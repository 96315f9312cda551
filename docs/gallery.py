"""Draw every chart, report and page for visual inspection: ``python docs/gallery.py FOLDER [NAME ...]``.

`gallery.toml` lists the inputs of each picture and its required content. ``FOLDER/index.html`` shows all pictures for a
small, a usual and a huge input, at the widths of a desktop, a tablet and a phone, light and dark. Needs Chromium and
PALEO_LITE_DATA.
"""

from __future__ import annotations

import csv
import os
import shlex
import sys
import tomllib
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from example_files import DATA_FILES, FILES, bring, data_folder
from screenshot import served, started_browser

from paleo_lite.cli import main as paleo_lite

STATES = ("small", "usual", "huge")
WIDTHS = {"desk": 1280, "tablet": 768, "phone": 390}
SCHEMES = ("light", "dark")
_HEIGHT = "(document.querySelector('[data-testid=stMain]') || document.documentElement).scrollHeight"


def main(folder: Path, names: list[str]) -> None:
    """Draw the named entries, or all, and write the index of all pictures."""
    data = data_folder()
    if data is None:
        sys.exit("the gallery needs the published measurements: set PALEO_LITE_DATA")
    listed = tomllib.loads(Path(__file__).with_name("gallery.toml").read_text())
    commands = listed.pop("made")
    unknown = set(names) - {name for group in listed.values() for name in group}
    if unknown:
        sys.exit(f"gallery.toml has no {', '.join(sorted(unknown))}")
    (folder / "files").mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    os.chdir(folder / "files")
    if not Path("data").is_symlink():
        Path("data").symlink_to(data.resolve())
    failed = []
    with started_browser() as browser, served() as address:
        for kind, group in listed.items():
            for name, entry in group.items():
                if names and name not in names:
                    continue
                for state in STATES:
                    print(f"{kind} {name} {state}", flush=True)
                    try:
                        _fetch(entry[state], commands)
                        DRAW[kind](browser, address, folder / f"{kind}-{name}-{state}", name, entry[state])
                    except Exception as error:  # one failure must not stop the other pictures
                        failed.append(f"{kind} {name} {state}: {str(error)[:400]}")
                        print(failed[-1], flush=True)
    (folder / "index.html").write_text(_index(listed))
    if failed:
        sys.exit("\n".join(["not drawn:", *failed]))


def _published() -> None:
    """Write published steps of torchvision networks in the CSV format of ``validate`` and ``calibrate``."""
    with Path("data/measured/torchvision_fp16_fp32_fp64.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["phase"] == "inference" and row["precision"] != "fp64"]
    with Path("published.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["gpu", "network", "batch_size", "phase", "precision", "time_s"])
        for row in rows:
            if row["n_gpus"] == "1" and row["gpu"].endswith("2080 Ti"):
                measured = row["network"], row["batch_size"], row["phase"], row["precision"]
                table.writerow([row["gpu"], *measured, float(row["mean_ms"]) / 1e3])


def _fetch(words: str, commands: dict[str, str]) -> None:
    """Create the files that the words of a command name, in the working folder."""
    for word in shlex.split(words):
        if Path(word).exists():
            continue
        if word == "published.csv":
            _published()
        elif word in commands:
            _fetch(commands[word], {name: command for name, command in commands.items() if name != word})
            output = _run(*shlex.split(commands[word]))
            if not Path(word).exists():
                Path(word).write_text(output)
        elif word in FILES or word in DATA_FILES:
            bring(word)


def _run(*words: str) -> str:
    answer = CliRunner().invoke(paleo_lite, list(words))
    if answer.exit_code:
        raise RuntimeError(f"paleo-lite {shlex.join(words)}: {answer.stderr.strip()}")
    return answer.stdout


def _shoot(
    browser: Any, address: str, stem: Path, schemes: tuple[str, ...] = SCHEMES, drop: Sequence[Path] = ()
) -> None:
    """Take screenshots of a page at all widths; for a served page, after it has finished rendering."""
    for scheme in schemes:
        context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 900})
        page = context.new_page()
        page.set_default_timeout(180_000)
        page.goto(address)
        if address.startswith("http"):
            _settle(page)
        if drop:
            if "ask=profile" not in address:
                page.get_by_text("Your own files", exact=True).click()
            page.locator('input[type="file"]').last.set_input_files(drop)
            page.wait_for_timeout(2000)
            page.get_by_text("Reading the profile").wait_for(state="hidden")
            _settle(page)
        for width, pixels in WIDTHS.items():
            page.set_viewport_size({"width": pixels, "height": 900})
            page.wait_for_timeout(1500 if address.startswith("http") else 300)  # charts are redrawn
            height = page.evaluate(_HEIGHT)
            page.set_viewport_size({"width": pixels, "height": min(int(height), 9000)})
            page.wait_for_timeout(4000 if address.startswith("http") else 100)  # long tables are drawn last
            page.screenshot(path=f"{stem}-{width}-{scheme}.png")
        context.close()


def _settle(page: Any) -> None:
    page.wait_for_selector('[data-testid="stApp"][data-test-script-state="notRunning"]')
    page.wait_for_timeout(1000)  # charts fade in


def _chart(browser: Any, address: str, stem: Path, name: str, words: str) -> None:
    for scheme in SCHEMES:
        path = Path(f"{stem}-{scheme}.html")
        _run("plot", name, *shlex.split(words), "-o", str(path), "--theme", scheme, "--force")
        _shoot(browser, path.as_uri(), stem, (scheme,))


def _report(browser: Any, address: str, stem: Path, name: str, words: str) -> None:
    path = stem.with_suffix(".html")
    _run(*shlex.split(words), "--report", str(path), "--force")
    _shoot(browser, path.as_uri(), stem)


def _page(browser: Any, address: str, stem: Path, name: str, words: str) -> None:
    query, *dropped = shlex.split(words)
    _shoot(browser, f"{address}?{query}", stem, drop=[Path(name).resolve() for name in dropped])


DRAW = {"charts": _chart, "reports": _report, "pages": _page}
COMMAND = {"charts": "paleo-lite plot {} {}", "reports": "paleo-lite {1}", "pages": "paleo-lite ui: {1}"}


def _index(listed: dict[str, dict[str, dict[str, str]]]) -> str:
    parts = []
    for kind, group in listed.items():
        parts.append(f"<h1>{kind}</h1>")
        for name, entry in group.items():
            parts.append(f"<h2>{name}</h2><p>{escape(entry['shows'])}</p>")
            for state in STATES:
                command = COMMAND[kind].format(name, escape(entry[state]))
                pictures = (f"{kind}-{name}-{state}-{width}-{scheme}.png" for scheme in SCHEMES for width in WIDTHS)
                images = "".join(f'<a href="{path}"><img loading="lazy" src="{path}" alt=""></a>' for path in pictures)
                parts.append(f"<h3>{state}</h3><code>{command}</code><div>{images}</div>")
    style = "body{font:15px sans-serif;margin:2em}img{max-height:420px;max-width:600px;border:1px solid;margin:4px}"
    return f"<!doctype html><meta charset=utf-8><title>Gallery</title><style>{style}</style>{''.join(parts)}\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
