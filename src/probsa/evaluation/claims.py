"""What a report can claim of a model beyond its numbers, each claim once, and what it warns of.

Sections decide claims from values, and sentences are made of them. The tests have a simulation for
each (`tests/evaluation/test_claims.py`): how often it is made where it is false, with one, two and
five bags per patient and one, two, three and five patients of the rarer class.
"""

from enum import StrEnum


class Claim(StrEnum):
    """A statement that a reader may act on."""

    INTERVAL = "interval"
    """The 95 % interval of a metric of bags contains the metric of all patients."""
    INTERVAL_OF_INSTANCES = "interval of instances"
    """The same of a metric of instances."""
    INTERVAL_OF_DIFFERENCE = "interval of a difference"
    """The same of the difference of two methods on the same bags."""
    BETTER_THAN_CHANCE = "better than chance"
    """The headline metric is better than that of predictions by chance."""
    MISCALIBRATED = "miscalibrated"
    """Probabilities of bags do not come true as often as they say."""
    BAND_OF_CALIBRATED = "band of calibrated frequencies"
    """Calibrated probabilities have frequencies within the grey bars of the reliability diagram."""
    BETTER_MAP = "better than every null map"
    """A map finds evidence better than every null map."""
    WORSE_MAP = "not better than the null maps"
    """A map finds evidence worse than the best null map."""
    DOUBT_IS_BETTER = "doubt finds wrong calls better"
    """P(wrong) (or σ²) finds wrong calls better than its rivals."""
    DOUBT_IS_WORSE = "doubt finds wrong calls worse"
    P_WRONG = "P(wrong)"
    """The call of a bag or of an instance is wrong as often as P(wrong) says, if the model is right
    about the world."""
    INSTANCE_PROBABILITY = "probability of an instance"
    """Instances are positive as often as their probability says, if the model is right."""
    UNLIKE_TRAINING = "unlike training"
    """So many patients are further from training than all of validation; so many by chance."""
    WINNER = "winner"
    """A method is better than every other one (tables of a benchmark)."""
    GUARANTEE = "guarantee"
    """Sets hold the class, and accepted calls are right, as often as was asked for."""


class Caution(StrEnum):
    """Why numbers, or guarantees, say less than they seem to."""

    ONLY_TRAINING_BAGS = "only training bags"
    SOME_TRAINING_BAGS = "some training bags"
    CHOSEN_ON_THESE_BAGS = "chosen on these bags"
    """The validation bags are evaluated, although there are test bags."""
    NOTHING_HELD_OUT = "nothing held out"
    """The validation bags are evaluated, as there are no test bags."""
    DEFAULT_THRESHOLD = "default threshold"
    """Calls are made at 0.5, which was not chosen for the model."""
    MISSING_OUTPUTS = "missing outputs of instances"
    CHOSEN_ON_CALIBRATION = "chosen on calibration bags"
    """Guarantees rest on bags that chose weights and threshold."""
    NO_GROUPS = "no groups"
    """Guarantees count every bag as a patient."""
    NOT_FOR_TRAINING_BAGS = "not for training bags"
    """Guarantees are computed for bags that the model was trained on."""
