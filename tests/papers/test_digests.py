"""Recorded results count by the digests of their recipes, so renaming a field changes none."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from torchcaps.models.registry import model_config
from torchcaps.training.recipe import OptimizerSpec, Recipe, changed_fields, essence
from torchcaps.training.registry import digest

DIGESTS = Path(__file__).with_name("digests.json")
"""`recipe [protocol]`: (digest, revision), as they were when the results were recorded."""
CODE = """
import json, sys
from torchcaps.training.registry import digest, get_recipe, has_protocol, recipes, revision
print(json.dumps({
    f"{name} [{protocol}]": [digest(recipe := get_recipe(name, protocol)), revision(recipe)]
    for name in recipes() for protocol in ("ours", "paper") if has_protocol(name, protocol)
}))
"""


def test_every_recipe_has_the_digest_of_its_recorded_results():
    """In a process of its own: other tests register recipes."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    digests, recorded = json.loads(done.stdout), json.loads(DIGESTS.read_text())
    changed = {name for name in recorded if digests.get(name) != recorded[name]}
    assert not changed, (
        "a changed recipe starts without results; if that is intended, write its new digest here"
    )


def test_renamed_fields_are_hashed_under_their_first_names():
    recipe = Recipe(
        optimizer=OptimizerSpec(lr=0.5),
        model=model_config("capsnet", pose_dim=4),
    )
    assert essence(recipe)["optimiser.lr"] == 0.5 and essence(recipe)["model.in_dim"] == 4
    assert changed_fields(recipe)["optimizer.lr"] == 0.5
    assert changed_fields(recipe)["model.pose_dim"] == 4
    assert digest(recipe) != digest(replace(recipe, optimizer=OptimizerSpec(lr=0.25)))


def test_a_default_that_changed_is_hashed_against_the_old_one():
    all_compete = Recipe(model=model_config("em-capsnet"))
    window = Recipe(model=model_config("em-capsnet", compete="window"))
    assert essence(all_compete)["model.compete"] == "all"
    assert "model.compete" not in essence(window)
