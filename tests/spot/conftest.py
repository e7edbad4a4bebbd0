import pytest
import torch

from tests.spot.support import every_drafter, random_order_model


@pytest.fixture(scope="session")
def drafters() -> dict:
    return every_drafter(random_order_model())


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
