import pytest
import torch

from spot.drafters.spot import Spot
from spot.drafters.stale import Stale
from tests.spot.support import Absurd, random_order_model


@pytest.fixture(scope="session")
def drafters() -> dict:
    return {"stale": Stale(), "spot": Spot(random_order_model()), "absurd": Absurd(0)}


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
