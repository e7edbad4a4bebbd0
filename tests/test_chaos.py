"""The chaos program, in short: a kill of each kind, on an S3 that fails. `python -m tests.chaos` is the long one."""

import random

import pytest

from tests.chaos import chaos, check_journals, decoded, faulty_s3, undisturbed

pytestmark = [pytest.mark.ray, pytest.mark.service("minutes")]


def test_a_sweep_whose_actor_driver_and_node_are_killed_is_whole_and_leaves_no_process(tmp_path):
    kinds = ["actor", "SIGKILL", "node"]
    with faulty_s3(str(tmp_path), 0.1, random.Random(0)):
        site = chaos(len(kinds), mean_seconds=0.0, seed=0, store="s3://bucket/chaos", limit=4, kinds=kinds)
        assert site.kills == dict.fromkeys(kinds, 1)
        assert decoded("s3://bucket/chaos") == undisturbed(str(tmp_path / "undisturbed"), site.limit)
        assert site.written
        check_journals(site)
