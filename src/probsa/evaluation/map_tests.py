"""The tests that a map must pass before it is shown as an explanation."""

from collections.abc import Mapping
from enum import StrEnum


class MapTest(StrEnum):
    """What a model and its map must be shown to do before the map explains anything."""

    CHANCE = "chance"
    """The model predicts bags better than chance."""
    MEAN_FEATURES = "mean features"
    """The model predicts bags better than a linear model of the mean features of a bag, which
    cannot know where the evidence is."""
    NULL_MAPS = "null maps"
    """The map finds labelled instances better than every null map."""
    FAITHFULNESS = "faithfulness"
    """Removing what the map shows changes the prediction more than removing random instances."""


FAILED: Mapping[MapTest, str] = {
    MapTest.CHANCE: "the model is not shown to be better than chance",
    MapTest.MEAN_FEATURES: "the model is not shown to be better than a linear model of the mean "
    "features, which looks at no single instance",
    MapTest.NULL_MAPS: "the map is not shown to find evidence better than every null map",
    MapTest.FAITHFULNESS: "removing what the map shows is not shown to change the predictions more "
    "than removing instances at random",
}
"""What is said of a test that was not passed."""
