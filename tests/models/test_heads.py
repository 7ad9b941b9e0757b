"""The field's habits: features, heads, new classes, no classes."""

import pytest
import torch

import torchcaps
from tests.conftest import TINY_CAPSNET
from tests.models.test_registry import small
from torchcaps.errors import TorchcapsError

NAMES = ("capsnet-small", "convnet-avg-small", "convnet-cr", "convnet-modern", "view-capsnet",
         "inverted-simple", "em-simple", "sr-capsnet", "mcae", "cnn")  # fmt: skip


def make(name):
    torch.manual_seed(0)
    return small(name).eval()


@pytest.mark.parametrize("name", NAMES)
def test_a_head_on_features_is_the_model(name):
    model = make(name)
    images = torch.rand(2, *model.config.image_shape)
    with torch.no_grad():
        features = model.forward_features(images)
        assert features.shape[1] == model.num_features
        assert torch.equal(model.forward_head(features), model(images).logits)
        assert model.forward_head(features, pre_logits=True).shape == (2, model.num_features)


@pytest.mark.parametrize("name", NAMES)
def test_classes_come_off_and_go_on_again(name, tmp_path):
    model = make(name)
    images = torch.rand(2, *model.config.image_shape)
    features = model.forward_features(images)
    model.reset_classifier(7)
    assert model(images).logits.shape == (2, 7)
    assert torch.equal(model.forward_features(images), features)
    model.reset_classifier(0)
    output = model(images)
    assert output.logits is None and torch.equal(output.features, features)
    assert "logits" not in model.provides
    model.save_pretrained(tmp_path)
    again = torchcaps.load(tmp_path)
    assert torch.equal(again(images).features, features)
    again.reset_classifier(3)
    assert again(images).logits.shape == (2, 3)
    assert torch.equal(again.forward_features(images), features)


def test_a_model_without_classes_has_no_weights_for_any():
    whole, bare = (torchcaps.create_model("capsnet-small", num_classes=n).eval() for n in (10, 0))
    assert bare.num_parameters < whole.num_parameters / 5
    assert all(n.startswith("stem") for n, _ in bare.named_parameters())
    assert set(bare.representations(torch.rand(2, *bare.config.image_shape))) == {
        "features", "pixels"
    }  # fmt: skip
    with pytest.raises(TorchcapsError, match="has no classes to predict"):
        bare.predict(torch.rand(1, *bare.config.image_shape))
    with pytest.raises(TorchcapsError, match="no classifier"):
        make("sparse-small").reset_classifier(3)


@pytest.mark.parametrize("squashed", [True, False])
def test_logits_of_capsnet_are_log_odds_of_its_lengths(squashed):
    """A length below one is a probability, so that a sigmoid of its logit returns it."""
    model = torchcaps.create_model("capsnet-small", squash=squashed, **TINY_CAPSNET).eval()
    output = model(torch.rand(3, *model.config.image_shape))
    lengths = output.layers[-1].poses.norm(dim=-1)
    torch.testing.assert_close(output.scores, lengths, atol=1e-4, rtol=1e-3)
    expected = lengths.clamp(1e-6, 1 - 1e-6).logit() if squashed else lengths
    torch.testing.assert_close(output.logits, expected, atol=1e-2, rtol=1e-2)
