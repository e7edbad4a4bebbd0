"""A test that needs a service takes its fixture, `bubblewrap`, or has the marker `service(NAME)`.

Where there is none it skips, by that name; `make test-services`, which installs them, forbids it.
"""

import os
from collections.abc import Callable

import pytest

from workers import sandbox


def no_bubblewrap() -> str | None:
    try:
        sandbox.check("bubblewrap")
    except ValueError as error:
        return str(error)
    return None


MISSING: dict[str, Callable[[], str | None]] = {"bubblewrap": no_bubblewrap}
"""Why a service cannot be used here, None if it can."""


@pytest.fixture
def bubblewrap() -> str:
    """The sandbox mode."""
    return "bubblewrap"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name in MISSING.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.service(name))


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("service"):
        if reason := MISSING[mark.args[0]]():
            refuse = pytest.fail if os.environ.get("SPOT_SERVICES") else pytest.skip
            refuse(f"{mark.args[0]}: {reason}")
