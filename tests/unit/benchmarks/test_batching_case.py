"""Networks whose computing is emulated, on links of some rate."""

from __future__ import annotations

import pytest
from benchmarks.case import case_of, share_of

from sparkdl_comm.errors import ConfError
from sparkdl_comm.sim.profile import Profile


def test_at_a_rate_that_is_found_a_pull_takes_so_many_times_forward() -> None:
    profile = share_of("vgg19", forward=0.25)
    about = case_of("vgg19", 0.25, 8, "auto:1.5").about
    assert about["forward_seconds"] == pytest.approx(0.25)
    assert about["pull_seconds"] == pytest.approx(1.5 * 0.25)
    assert about["scale"] == pytest.approx(profile.parameters / Profile.load("vgg19").parameters)


def test_alone_a_rank_only_computes() -> None:
    case = case_of("lenet5", 0.1, 1, "200")
    about = case.about
    assert about["pull_seconds"] == 0
    assert about["bound_seconds"] == pytest.approx(case.profile.seconds)


def test_of_a_network_that_computes_no_rate_is_found() -> None:
    assert case_of("vgg", None, 4, "200").about == {}
    with pytest.raises(ConfError, match="vgg is not emulated"):
        case_of("vgg", None, 4, "auto:1")
    with pytest.raises(ConfError, match="--rate fast: must be a number"):
        case_of("vgg", None, 4, "fast")
