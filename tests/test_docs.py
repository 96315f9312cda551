"""README and docs: every command prints the documented output, every link is valid, and the site builds."""

from __future__ import annotations

import html
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

import paleo_lite
from paleo_lite.cli import main
from paleo_lite.reporting.calibrations import _ERROR_COLUMNS
from test_floors import FLOORS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


def _load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


examples = _load("paleo_lite_examples", ROOT / "docs" / "examples.py")
site_pages = _load("paleo_lite_site_pages", ROOT / "docs" / "pages.py")
accuracy_summary = _load("paleo_lite_accuracy_summary", ROOT / "docs" / "accuracy_summary.py")
PAGES = {str(page.relative_to(ROOT)): page for page in examples.PAGES}
TEXTS = {name: page.read_text() for name, page in PAGES.items()}
ON_PAGES = {step.text for text in TEXTS.values() for step in examples.steps_of(text)}
# What --help shows is in the reference, too; in the words of a page it runs there.
TEXTS |= {f"{name} --help": text for name, text in site_pages.command_pages().items()}
STEPS = [
    (name, at, step)
    for name, text in TEXTS.items()
    for at, step in enumerate(examples.steps_of(text))
    if name in PAGES or step.text not in ON_PAGES
]


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """One session for each page."""

    @cache
    def start(name):
        columns = examples.columns_of(PAGES[name]) if name in PAGES else 80
        return examples.Session(TEXTS[name], tmp_path_factory.mktemp("page"), columns)

    return start


LONG = (
    *(f"docs/{page}.md" for page in ("accuracy", "efficiency", "model", "pipelines", "plots", "profiles", "report")),
    *(f"docs/{page}.md" for page in ("scale", "transformers", "how-to/calibrate-from-result-files")),
    *(f"docs/how-to/{page}.md" for page in ("calibrate-from-my-profile", "choose-hardware", "fine-tune")),
    *(f"docs/how-to/{page}.md" for page in ("reinforce", "serve")),
    "docs/sweep.md",
    *(f"{command} --help" for command in ("best", "calibrate", "diffusion", "kernels", "plot", "rl", "serve", "train")),
)
"""Pages and help whose examples take seconds, of kinds that the README, the tutorial and the how-tos show with their
output: they are understood, `make thorough` runs them."""


def marks_of(name):
    group = pytest.mark.xdist_group(f"docs {name}")  # what follows on a page needs what came before
    return [group, pytest.mark.thorough] if name in LONG else [group]


@pytest.mark.parametrize(
    ("name", "at"),
    [
        pytest.param(name, at, id=f"{name}:{step.line} {step.text.splitlines()[0][:60]}", marks=marks_of(name))
        for name, at, step in STEPS
        if step.kind != "file" and not (step.kind == "command" and examples.why_not_run(step.text))
    ],
)
def test_examples_print_the_documented_output(session, name, at):
    try:
        code, output = session(name).outcome(at)
    except examples.NeedsDataError as missing:
        pytest.skip(str(missing))
    assert code == 0, output
    step = session(name).steps[at]
    if step.shown is not None:
        shown = examples.shown_lines(TEXTS[name], step)
        assert examples.as_shown(output, shown) == shown, "make examples writes it anew"


@pytest.mark.parametrize(
    "text",
    [
        step.text
        for name, _, step in STEPS
        if name in LONG and step.kind == "command" and step.text.startswith("paleo-lite ")
        and not examples.why_not_run(step.text)
    ],
)  # fmt: skip
def test_long_examples_are_understood(text, tmp_path, monkeypatch):
    """Every option is one of the command's, with a value that it reads; the files that are read are there, empty."""
    _, *words = shlex.split(text.split(" > ")[0], comments=True)
    monkeypatch.chdir(tmp_path)
    for option, word in pairwise(words):
        if re.fullmatch(r"[\w-]+\.\w+", word) and option not in ("-o", "--output", "--plot", "--report"):
            Path(word).touch()
    command = main
    while isinstance(command, click.Group):
        name, *words = words
        command = command.get_command(click.Context(command), name)
    given = command.make_context(name, words).params
    assert any(value not in (None, (), False) for value in given.values())


def test_excluded_examples_exist():
    """A reason that no command needs any more goes."""
    commands = [step.text for _, _, step in STEPS if step.kind == "command"]
    assert [pattern for pattern in examples.NOT_RUN if not any(re.match(pattern, text) for text in commands)] == []


def test_an_unknown_command_is_no_example():
    with pytest.raises(ValueError, match="cannot run 'curl x'"):
        examples.why_not_run("curl x")


def test_update_writes_the_output_of_commands(tmp_path):
    page = "```console\n$ paleo-lite --version\nold\nlines\n\n$ paleo-lite hardware list\none\n...\n```\nend\n"
    page += "```console\n$ paleo-lite predict nothing\nas it was\n```\n"
    text, failed = examples.refill(page, tmp_path, 80)
    lines = text.splitlines()
    assert lines[:2] == ["```console", "$ paleo-lite --version"]
    assert lines[2].startswith("paleo-lite 0.")
    assert lines[3:5] == ["", "$ paleo-lite hardware list"]
    assert "devices" in lines[5]
    assert lines[6:9] == ["...", "```", "end"]
    assert lines[9:] == ["```console", "$ paleo-lite predict nothing", "as it was", "```"]
    assert len(failed) == 1
    assert "line 12: paleo-lite predict nothing" in failed[0]
    assert examples.refill(text, tmp_path, 80)[0] == text


@pytest.mark.xdist_group("docs README.md")
def test_readme_shows_the_result_of_its_python_example(session):
    readme = session("README.md")
    for at, step in enumerate(readme.steps):
        if step.kind == "python":
            readme.outcome(at)
    kinds = readme.names["pl"].layers("vgg19", convention="macs").by_kind()
    assert f"{kinds['conv2d']['share']:.2%}" == "99.37%"
    assert "99.37%" in TEXTS["README.md"]
    assert sum(step.shown is not None for step in readme.steps) >= 3


def test_examples_without_data_are_skipped_with_their_dependents(tmp_path, monkeypatch):
    monkeypatch.setenv("PALEO_LITE_DATA", str(tmp_path / "nowhere"))
    page = "```sh\npaleo-lite calibrate profiles/ --gpu k40m --network resnet50 -o k.toml\n"
    page += "paleo-lite calibrations show k.toml\npaleo-lite --version\n```\n"
    session = examples.Session(page, tmp_path)
    with pytest.raises(
        examples.NeedsDataError, match="reads profiles/ of published measurements; name their folder in PALEO_LITE_DATA"
    ):
        session.outcome(0)
    with pytest.raises(examples.NeedsDataError, match=r"reads k\.toml, made from published measurements"):
        session.outcome(1)
    assert session.outcome(2)[0] == 0


LINK = re.compile(r"(?<!!)\[[^\]\[]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


def test_links_lead_to_files_that_exist():
    """Check links in the repository; mkdocs checks those of the site."""
    generated = {
        ROOT / "docs" / "reference" / "commands" / f"{command}.md" for command in [*main.list_commands(None), "index"]
    }
    for name in [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]:
        page = ROOT / name
        outside = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
        targets = [first or second for first, second in LINK.findall(outside)]
        targets = [
            (page.parent / target.split("#")[0]).resolve() for target in targets if not re.match(r"https?:|#", target)
        ]
        assert [str(target) for target in targets if not target.exists() and target not in generated] == [], name


def test_every_page_is_in_the_navigation_once():
    config = (ROOT / "mkdocs.yml").read_text()
    listed = sorted(re.findall(r"^ +- (?:[^:\n]+: )?([\w/-]+\.md)$", config[config.index("\nnav:") :], re.MULTILINE))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert listed == sorted(pages | {"reference/commands/index.md", "changelog.md", "contributing.md", "security.md"})


def test_files_that_a_text_names_become_links():
    page = SimpleNamespace(file=SimpleNamespace(src_uri="how-to/page.md"), meta={})
    config = SimpleNamespace(nav=[{"Home": "index.md"}, {"Explanation": [{"The time model": "model.md"}]}])
    text = (
        "See `docs/model.md` (docs/model.md), [rules](../../CONTRIBUTING.md) and docs/none.md.\n\n    docs/model.md\n"
    )
    linked = "[The time model](../model.md)"
    assert site_pages.on_page_markdown(text + "```\ndocs/model.md\n```\n", page, config, None) == (
        f"See {linked} ({linked}), [rules](../contributing.md) and docs/none.md.\n\n"
        "    docs/model.md\n```\ndocs/model.md\n```\n"
    )


@pytest.mark.parametrize(
    ("path", "weighs"),
    [("glossary.md", (1, 100)), ("how-to/page.md", (1, 1)), ("reference/python/timing.md", (0, 0.1))],
)
def test_a_search_finds_explanations_before_names_of_attributes(path, weighs):
    page = SimpleNamespace(file=SimpleNamespace(src_uri=path), meta={})
    site_pages.on_page_markdown("", page, SimpleNamespace(nav=[]), None)
    assert weighs[0] <= page.meta["search"]["boost"] <= weighs[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; no warning is let pass, and there is no network to ask."""
    pytest.importorskip("material", reason="the site needs mkdocs-material: pip install 'paleo-lite[docs]'")
    pytest.importorskip("mkdocstrings", reason="the site needs mkdocstrings: pip install 'paleo-lite[docs]'")
    pytest.importorskip("latex2mathml", reason="the site needs latex2mathml: pip install 'paleo-lite[docs]'")
    folder = tmp_path_factory.mktemp("site")
    environment = {
        **os.environ,
        "NO_MKDOCS_2_WARNING": "1",
        "SITE_SEARCH": "false",  # a fifth of the time
        "https_proxy": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
    }
    # Without ruff, which would be started for each of 300 signatures to break its lines.
    program = "import sys; sys.modules['ruff'] = None; from mkdocs.__main__ import cli; cli(prog_name='mkdocs')"
    built = subprocess.run(
        [sys.executable, "-c", program, "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


@pytest.mark.thorough
def test_site_loads_no_external_resources(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    loads = re.compile(r"""<(?:script|img|iframe|source|video|audio)[^>]*\ssrc=["']?((?:https?:)?//[^"' >]+)""")
    links = re.compile(r"<link[^>]*>")
    for page in pages:
        text = page.read_text()
        elsewhere = loads.findall(text)
        elsewhere += [tag for tag in links.findall(text) if re.search(r"""href=["']?(?:https?:)?//""", tag)]
        assert elsewhere == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"""(?:url\(|@import )["']?(?:https?:)?//""", sheet.read_text()), sheet


@pytest.mark.thorough
def test_every_command_has_a_page_with_all_its_options(site):
    for name in main.list_commands(None):
        text = html.unescape(re.sub(r"<[^>]+>", "", (site / "reference" / "commands" / f"{name}.html").read_text()))
        for parameter in main.get_command(None, name).params:
            if not isinstance(parameter, click.Option) or parameter.hidden or parameter.name in ("help", "debug"):
                continue
            assert parameter.opts[-1] in text, f"{name} {parameter.opts}"


@pytest.mark.thorough
def test_the_python_reference_has_the_public_face_with_its_real_defaults(site):
    text = (site / "reference" / "python" / "index.html").read_text()
    text = re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", "", text)))
    for name in ("rule", "devices", "network_names", "trace"):
        assert f" {name}(" in text
    for name in ("Predict", "Train", "Serve", "Local", "Diffusion", "Rl", "Layers", "MatrixProducts", "Feeding"):
        assert re.search(rf"\b{name}\b", text)


def test_formulas_are_set_without_a_script():
    """Formulas between dollar signs become MathML with the fraction and index of the source."""
    pytest.importorskip("latex2mathml")
    marked = r'<div class="arithmatex">\[\frac{F}{P} &lt; t_2\]</div> and <span class="arithmatex">\(p = 4\)</span>'
    made = site_pages.on_page_content(marked, None, None, None)
    assert made.startswith("<div class='formula'><math") and 'display="block"' in made
    assert "<mfrac><mrow><mi>F</mi></mrow><mrow><mi>P</mi></mrow></mfrac>" in made
    assert "<msub><mi>t</mi><mn>2</mn></msub>" in made and "arithmatex" not in made
    assert "<span class='formula'><math" in made and 'display="inline"' in made


@pytest.mark.thorough
def test_no_formula_of_the_site_is_left_as_it_was_typed(site):
    for page in site.rglob("*.html"):
        assert 'class="arithmatex"' not in page.read_text(), page
    assert (site / "model.html").read_text().count("<math") > 20


def test_accuracy_page_matches_its_tables():
    """The summary is written from the tables, and a group's mean is the headline's."""
    tables = TEXTS["docs/accuracy-tables.md"]
    page = TEXTS["docs/accuracy.md"]
    shown = page.split(accuracy_summary.START)[1].split(accuracy_summary.END)[0].strip().splitlines()
    assert shown == accuracy_summary.summary(tables), "python docs/accuracy_summary.py writes it anew"
    section = tables.split("## Leave one gpu out")[1].split("\n## ")[0]
    errors = accuracy_summary._column(section, "MAPE")
    assert f"{sum(errors) / len(errors):.1f}%" in section.split("mean absolute error")[0]


def test_the_summary_reads_tables_with_the_headings_of_the_program():
    tables = TEXTS["docs/accuracy-tables.md"].replace("- within: ", "- coverage: ")
    tables = tables.replace("| width | one PPP |", "| interval width | one PPP |")
    assert accuracy_summary.summary(tables) == accuracy_summary.summary(TEXTS["docs/accuracy-tables.md"])
    headings = {column.heading.replace("\n", " ") for column in _ERROR_COLUMNS}
    assert {"interval width", "roofline", "one PPP", "MAPE"} <= headings


def test_the_accuracy_picture_and_the_table_have_the_same_figures():
    """The picture has its title in its metadata; the first line of the summary is the same split."""
    image = pytest.importorskip("PIL.Image", reason="reads a picture: pip install pillow")
    title = image.open(ROOT / "docs" / "images" / "accuracy.png").text["Title"]
    figures = re.fullmatch(r"Mean error ([\d.]+%) over \d+ groups.*; 90% intervals contain (\d+%)", title)
    rows = [line.split("|") for line in TEXTS["docs/accuracy.md"].splitlines() if line.startswith("| a new network,")]
    assert [cell.strip(" *") for cell in rows[0][3:5]] == [*figures.groups()], "make accuracy draws it anew"


def test_words_of_the_charts_and_tables_are_in_the_glossary():
    known = re.findall(r"^## (.+)$", TEXTS["docs/glossary.md"], re.MULTILINE)
    assert known == sorted(known, key=str.lower)
    words = ["Bound", "Forecast", "PPP", "Share of peak", "MFU", "Pass", "Phase", "Step", "Overhead", "Saved tensors"]
    words += ["Prior", "Interval", "Host", "Execution", "Floor", "Ridge point", "Bus bandwidth"]
    assert set(words) <= set(known)


def test_architecture_page_names_existing_files_and_all_rooms():
    """Links are tested above; here the names in tables, the lists, and the picture of the floors."""
    text = TEXTS["docs/architecture.md"]
    linked = re.findall(r"\[`([\w/.]+)`\]\(([^)]+)\)", text)
    assert len(linked) > 60
    for shown, target in linked:
        assert target.rstrip("/").endswith(shown.rstrip("/")), shown
    link = r"\[`[\w/.]+`\]\(\.\./([^)]+)\)"
    lines = " ".join(text.split())
    lists = re.findall(rf"`(\w+)` in {link}", lines)
    lists += [(name, file) for file, name in re.findall(rf"{link}: `(\w+)`", lines)]
    assert len(lists) > 30
    for name, file in lists:
        assert re.search(rf"^(?: *(?:def|class) )?{name}\b", (ROOT / file).read_text(), re.MULTILINE), (name, file)
    for names, files in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| [^|]+ \| ([^|]+) \|$", text, re.MULTILINE):
        sources = "".join((ROOT / file).read_text() for file in re.findall(r"\(\.\./([^)]+)\)", files))
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"^class {name}\b", sources, re.MULTILINE), (name, files)
    picture = (ROOT / "docs" / "images" / "floors.svg").read_text()
    rooms_by_floor = {}
    for row in picture.split('font-weight="bold">')[1:]:
        rooms_by_floor[int(row[0])] = set(re.findall(r'class="room">(\w+)<', row))
    rows = re.findall(r"^\| (\d) \| ([^|]+) \|", text, re.MULTILINE)
    in_table = {}
    for floor, rooms in rows:
        in_table.setdefault(int(floor), set()).update(re.findall(r"`(\w+)(?:/|\.py)`", rooms))
    expected = {}
    for room, floor in FLOORS.items():
        expected.setdefault(floor, set()).add(room)
    assert rooms_by_floor == in_table == expected


def test_modules_that_pages_name_exist():
    """Each path of a module of the package, in a text or in a link."""
    named = [(name, path) for name, text in TEXTS.items() for path in re.findall(r"paleo_lite/[\w/]+\.py\b", text)]
    assert len(named) > 100
    assert [(name, path) for name, path in named if not (ROOT / path).exists()] == []


def test_formulas_page_names_existing_code():
    """Each function or class that docs/formulas.md names with a file is defined in that file."""
    rows = TEXTS["docs/formulas.md"].split("| :-- | :-- | :-- |\n")[1].splitlines()
    assert len(rows) > 15
    for row in rows:
        place = row.split("|")[-2]
        files = re.findall(r"`([\w/]+\.py)`((?: `\w+`(?:,| of)?)*)", place)
        assert files, row
        for file, names in files:
            source = (ROOT / "paleo_lite" / file).read_text()
            for name in re.findall(r"`(\w+)`", names):
                assert re.search(rf"^\s*(?:def|class) {name}\b|^{name}\b", source, re.MULTILINE), (file, name)


FOREIGN_OPTIONS = {
    # Servers, clients and trainers
    "--append-result", "--cuda-graph-max-bs", "--enable-dp-attention", "--enable-expert-parallel",
    "--enable-priority-scheduling",
    "--max-cudagraph-capture-size", "--max-loras", "--max-loras-per-batch", "--max-queued-requests", "--model-path",
    "--moe-flex-dispatcher-backend",
    "--num-scheduler-steps",
    "--parallel", "--pipeline-model-parallel-layout", "--pp", "--recompute-modules", "--save-result",
    "--scheduler-recv-interval", "--scheduling-policy", "--swa-full-tokens-ratio",
    # Profilers and what prints their output
    "--chrome-call-logging", "--chrome-kernel-logging",
    "--csv", "--device-timing", "--hip-trace", "--id", "--kernel-trace", "--label", "--memory-copy-trace", "--metrics",
    "--output-format",
    "--page", "--print-gpu-trace", "--query-gpu", "--stats", "--summary", "--timestamps", "--type",
    # PALEO's own, pip, and the scripts of this repository
    "--networks", "--per-family",
}  # fmt: skip
"""Options in the pages that are those of other programs."""

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)*(?!\w)")  # options with _ are those of others


def options_of(command, context):
    """Return the options of a command and of those below it."""
    names = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        names |= options_of(command.get_command(context, name), context)
    return names


FURTHER_COMMANDS = {
    "docs/topology.md": ["train"], "docs/reference/columns.md": ["serve"], "docs/training.md": ["predict"],
    "docs/speed.md": ["efficiency"],
}  # fmt: skip
"""Commands of which pages name options without a command line of theirs."""


def test_options_of_a_page_are_those_of_its_commands():
    """An option that another command has, or had, leads to a refusal."""
    context = click.Context(main)
    options = {name: options_of(main.get_command(context, name), context) for name in main.list_commands(context)}
    wrong = []
    for name, text in TEXTS.items():
        # The scripts of this repository and the page on names that are gone have options of their own.
        of_program = re.sub(r"python -m validation [^`\n]*", "", text).replace("--split", "")
        commands = [*re.findall(r"paleo-lite (\w+)", of_program), *re.findall(r"`(\w+)[` ]", of_program)]
        commands = [word for word in (*commands, *FURTHER_COMMANDS.get(name, ())) if word in options]
        if not commands or name.endswith(("upgrade.md", "paleo.md", "CHANGELOG.md")):
            continue
        known = {"--help"} | FOREIGN_OPTIONS | {option for word in commands for option in options[word]}
        wrong += [(name, option) for option in dict.fromkeys(OPTION.findall(of_program)) if option not in known]
    assert wrong == []


def test_commands_in_sentences_have_their_options():
    """Command lines in the middle of a sentence are not run: each names a command, and options that it has."""
    context = click.Context(main)
    spans = [
        (name, span)
        for name, text in TEXTS.items()
        if not name.endswith(("upgrade.md", "CHANGELOG.md"))
        for span in re.findall(r"`paleo-lite ([a-z][^`]*)`", text)
    ]
    assert len(spans) > 20
    for name, span in spans:
        command = main.get_command(context, span.split()[0])
        assert command is not None, (name, span)
        unknown = set(OPTION.findall(span)) - options_of(command, context) - {"--help"}
        assert unknown == set(), (name, span)


def test_options_and_functions_that_pages_name_exist():
    """Also those in the middle of a sentence; the page on upgrading names those that are gone."""
    known = options_of(main, click.Context(main)) | FOREIGN_OPTIONS | {"--help"}
    pages = {
        name: text for name, text in TEXTS.items() if not name.endswith(("upgrade.md", "paleo.md", "CHANGELOG.md"))
    }
    named = [(name, option) for name, text in pages.items() for option in OPTION.findall(text)]
    assert len(named) > 1000
    assert sorted({(name, option) for name, option in named if option not in known}) == []
    called = [
        (name, word) for name, text in pages.items() for word in re.findall(r"(?:`|\s)(?:pl|paleo_lite)\.(\w+)\(", text)
    ]
    assert len(called) >= 20
    assert [(name, word) for name, word in called if not hasattr(paleo_lite, word)] == []
