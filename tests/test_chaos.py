"""The chaos program, in short: one kill of each kind. `python -m tests.chaos` is the long one."""

import pytest

from tests.chaos import chaos, decoded, undisturbed

pytestmark = pytest.mark.ray


def test_a_sweep_whose_actor_driver_and_node_are_killed_is_whole_and_leaves_no_process(tmp_path):
    kinds = ["actor", "SIGTERM", "node"]
    site = chaos(len(kinds), mean_seconds=0.0, seed=0, store=str(tmp_path / "chaos"), limit=4, kinds=kinds)
    assert site.kills == dict.fromkeys(kinds, 1)
    assert decoded(str(tmp_path / "chaos")) == undisturbed(str(tmp_path / "undisturbed"), site.limit)
