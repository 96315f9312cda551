"""Fixtures that several tests share: every network is built and traced once."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections import Counter, defaultdict
from functools import cache, lru_cache

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

import measured

# Random tests draw the same examples everywhere; those of `make fuzz` are new each time. Only here is that set.
_COMMON = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}
settings.register_profile("suite", **_COMMON, derandomize=True, database=None, max_examples=60)
settings.register_profile("fuzz", **_COMMON, derandomize=False, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))
if "HYPOTHESIS_PROFILE" not in os.environ and hasattr(providers, "_get_local_constants"):
    # Constants of the modules that happen to be imported would differ between processes, and take seconds in each.
    providers._get_local_constants = lambda: providers._local_constants


@pytest.fixture(scope="session", autouse=True)
def _a_core_each():
    """As many processes test as there are cores; without a number of jobs none of them starts more.

    A scheduler on a busy machine may answer late.
    """
    from paleo_lite import executor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor, "count_cores", lambda: 1)
        patch.setattr(executor, "_SCHEDULER_TIMEOUT_S", 1200)
        yield


@pytest.fixture(scope="session", autouse=True)
def _networks_are_kept():
    """Shipped networks, and what is counted for their layers, are kept for all tests of a process, not for a few."""
    from paleo_lite.architectures import catalog, model_config
    from paleo_lite.timing import workload

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workload, "CACHE_SIZE", 1000)
        for module, name in ((catalog, "_read_shipped"), (model_config, "_rebuild")):
            patch.setattr(module, name, lru_cache(256)(getattr(module, name).__wrapped__))
        yield


@pytest.fixture(scope="session")
def traced():
    """From a network's name, and an image size where it is not the network's own, to its trace."""
    from paleo_lite.architectures import trace_named

    return lru_cache(None)(trace_named)


@pytest.fixture(scope="session")
def built():
    """From a torchvision model's name to the module, all on the meta device in evaluation mode, and its image size."""
    from paleo_lite.architectures.build import torchvision_model

    @lru_cache(4)
    def build(name):
        module, size = torchvision_model(name)
        return module.eval().to("meta"), size

    return build


@pytest.fixture(scope="module")
def few_alternatives():
    """A report compares with every tenth shipped device; tests/calibration/test_alternatives.py with all."""
    from paleo_lite.calibration import alternatives
    from paleo_lite.machines import list_devices

    left_out = {device.id for at, device in enumerate(list_devices()) if at % 10}

    def some(files=()):
        return [device for device in list_devices(files) if device.id not in left_out]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alternatives, "list_devices", some)
        yield


@pytest.fixture
def interruptible():
    """Processes started by a test take an interrupt, also where the tests themselves run in the background without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_ignore_collect(collection_path, config):
    """Do not import files that contain only slow tests if slow tests are deselected: their imports take seconds."""
    if "not slow" in config.option.markexpr and collection_path.suffix == ".py":
        return "\npytestmark = pytest.mark.slow" in collection_path.read_text(encoding="utf-8") or None
    return None


def pytest_make_parametrize_id(val, argname):
    """Bytes are named by their argument: compressed ones hold the time, and each process would name them otherwise."""
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What collecting makes stays to the end: looking for garbage in it takes half a second each time.

    After that garbage is looked for rarely: torch and the networks of all tests stay as well.
    """
    gc.disable()
    yield
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


IMPORTED_ONCE = {'importorskip("transformers"': "transformers", "from streamlit.testing": "streamlit"}
"""Groups of files that import what takes seconds, by the line that tells it."""


@cache
def group_of(path, root):
    """Return the group of the tests of a file, which share a process: its own name, or what several files import."""
    text = path.read_text(encoding="utf-8")
    return next((group for line, group in IMPORTED_ONCE.items() if line in text), str(path.relative_to(root)))


def leave_siblings_to_thorough(items):
    """Mark all but N evenly spread cases of a test marked ``spread(N)`` as ``thorough``."""
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("spread") is not None and item.get_closest_marker("thorough") is None:
            cases[item.path, item.originalname].append(item)
    for siblings in cases.values():
        (tested,) = siblings[0].get_closest_marker("spread").args
        for at, item in enumerate(siblings):
            if at * tested // len(siblings) == (at - 1) * tested // len(siblings):
                item.add_marker(pytest.mark.thorough)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups, and pytest the marks
def pytest_collection_modifyitems(items):
    """What takes long begins first, and before it what waits for a browser.

    Tests of a file stay in one process, which makes their fixtures once.

    Those that read published measurements are skipped where there are none.
    """
    why_absent = measured.why_absent()
    leave_siblings_to_thorough(items)
    for item in items:
        if why_absent and item.get_closest_marker("needs_data") is not None:
            item.add_marker(pytest.mark.skip(reason=why_absent))
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group_of(item.path, item.config.rootpath)))
    items.sort(key=lambda item: ("browser" not in item.fixturenames, item.get_closest_marker("slow") is None))


UNTESTED = "not tested in a browser"


def pytest_terminal_summary(terminalreporter):
    """Say once for each reason how many tests were skipped."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if report.longrepr]
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count} skipped: {reason}")


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium; without one the test is skipped, or fails where PALEO_LITE_BROWSER is ``required``."""

    def absent(what):
        if os.environ.get("PALEO_LITE_BROWSER") == "required":
            pytest.fail(f"{UNTESTED}: {what}")
        pytest.skip(f"{UNTESTED}: {what}")

    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        absent("playwright is not installed")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        absent("there is no Chromium (apt-get install chromium)")
    arguments = [
        "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync",
    ]  # fmt: skip
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=arguments)
        yield chromium
        chromium.close()
