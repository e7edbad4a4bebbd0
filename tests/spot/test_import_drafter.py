"""A released order model finds its place tensor by tensor, or every tensor that does not is named."""

import os
import pickle

import pytest
import torch

from spot.order_model import OrderModel, load_order_model, provenance, save_order_model
from spot.training.import_drafter import import_order_model


@pytest.fixture
def weights():
    torch.manual_seed(0)
    return OrderModel().state_dict()


def imported(tmp_path, content, names=None):
    torch.save(content, tmp_path / "theirs.pt")
    import_order_model(tmp_path / "theirs.pt", tmp_path / "ours.safetensors", names or {})
    return load_order_model(tmp_path / "ours.safetensors").state_dict()


@pytest.mark.parametrize("prefix", ["", "module.", "module.order_model."])
@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
def test_wrappers_and_a_common_prefix_are_taken_off(prefix, wrapper, weights, tmp_path):
    theirs = {prefix + name: tensor for name, tensor in weights.items()}
    found = imported(tmp_path, {wrapper: theirs, "epoch": 3, "note": "b32"} if wrapper else theirs)
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())
    made = provenance(tmp_path / "ours.safetensors")
    assert made["imported_from"] == "theirs.pt" and len(made["sha256"]) == 64
    assert made["carried"] == ({"epoch": 3, "note": "b32"} if wrapper else {})


def test_other_names_are_mapped_by_the_users_file(weights, tmp_path):
    theirs = {f"net.{name}": tensor for name, tensor in weights.items()}
    theirs["net.scale"] = theirs.pop("net.stale").half()
    found = imported(tmp_path, theirs, {"net.scale": "stale"})
    assert torch.equal(found["stale"], weights["stale"]) and found["stale"].dtype == torch.float32


def test_every_tensor_without_a_place_is_named_with_its_shape(weights, tmp_path):
    theirs = dict(weights)
    theirs["gain"] = theirs.pop("stale")
    theirs["place"] = torch.zeros(32, 128)
    with pytest.raises(ValueError) as raised:
        imported(tmp_path, theirs)
    said = str(raised.value)
    assert "tensors without a place: gain []; tensors that are missing: stale []" in said
    assert "of another shape: place [32, 128] for place [64, 128]" in said and "\n" not in said
    assert not (tmp_path / "ours.safetensors").exists()


@pytest.mark.parametrize(
    ("names", "message"),
    [({"nope": "stale"}, "no such tensors in it: nope"), ({"place": "stale"}, "more than one tensor for stale")],
)
def test_a_wrong_map_is_said(names, message, weights, tmp_path):
    with pytest.raises(ValueError, match=message):
        imported(tmp_path, weights, names)


class Trap:
    def __reduce__(self):
        return os.mkdir, ("sprung",)


def test_nothing_but_tensors_is_unpickled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="not a file of tensors"):
        imported(tmp_path, {"state_dict": Trap()})
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match="not a file of tensors"):
        import_order_model(tmp_path / "plain.pt", tmp_path / "ours.safetensors", {})
    assert not (tmp_path / "sprung").exists()


def test_a_file_without_tensors_is_one_line(tmp_path):
    with pytest.raises(ValueError, match="no tensors by name in it"):
        imported(tmp_path, {"epoch": 3})


def test_the_rows_that_trained_it_are_kept(weights, tmp_path):
    rows, out = {"arith": ["train-0"]}, tmp_path / "ours.safetensors"
    imported(tmp_path, {"state_dict": weights, "trained_on": rows})
    assert provenance(out)["trained_on"] == rows
    model = OrderModel()
    model.load_state_dict(weights)
    save_order_model(model, tmp_path / "mine.safetensors", {"trained_on": rows, "prompts": 1})
    import_order_model(tmp_path / "mine.safetensors", out, {})
    assert provenance(out)["trained_on"] == rows and provenance(out)["carried"]["prompts"] == 1
    imported(tmp_path, {"state_dict": weights, "trained_on": "the web"})
    assert "trained_on" not in provenance(out)
