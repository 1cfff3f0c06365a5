"""The origin of predictions: what is written is read, also what 0.2 wrote and what nobody knows."""

import json
from dataclasses import fields, replace

import pytest
from support.refusals import refused

from probsa.errors import InputError
from probsa.evaluation import (
    MapScoreChoice,
    PredictionsMetadata,
    Reservation,
    StoredRule,
    StoredTrust,
    at_chance,
    read_predictions,
)
from probsa.statistics import Threshold

CHANCE = Reservation(kind="chance", text="This model is not shown better than chance: so.")
CHOICE = MapScoreChoice(chosen="evidence", drops={"evidence": 0.1}, bags=3, reason="", rule="")
EVERYTHING = PredictionsMetadata(
    model="abmil",
    runs=("a", "b"),
    members=2,
    epoch=(3, 4),
    kappa=(1.5, 2.5),
    more={"C": 0.1},
    prior="moved",
    target=("grade",),
    unit="patient",
    covariates=("age",),
    training_targets=[[1.0, None], [0.0, 1.0]],
    thresholds=(0.2, 0.8),
    temperature=1.5,
    neighbour_weight=0.25,
    threshold_rule=StoredRule(rule="sensitivity=0.9", reached=0.95, bags=20, of_class=8),
    map_score=MapScoreChoice(
        chosen="evidence", drops={"evidence": 0.1}, bags=3, reason="", rule=""
    ),
    distance_validation_bags=20,
    distance_validation_patients=11,
    reservations=(CHANCE,),
    map_trust=StoredTrust(map="evidence", failed=("chance",), untested=("null maps",)),
    training_bags=40,
)


def written(metadata):
    return json.loads(json.dumps(metadata.to_dict()))


def test_all_that_is_written_is_read():
    assert PredictionsMetadata.of(written(EVERYTHING), where="f") == EVERYTHING
    empty = PredictionsMetadata()
    for field in fields(EVERYTHING):
        value = getattr(EVERYTHING, field.name)
        assert value != getattr(empty, field.name), "every field is tried"
        one = replace(empty, **{field.name: value})
        assert PredictionsMetadata.of(written(one), where="f") == one
    assert written(empty) == {}


@pytest.mark.parametrize("name", ["default", "grades", "findings", "share", "times", "linear"])
def test_what_version_0_2_wrote_is_kept(name, shared_golden):
    folder = shared_golden / "behaviour" / "predictions" / name
    stored = json.loads((folder / "predictions.json").read_text())
    entries = written(read_predictions(folder).metadata)
    assert entries == {key: value for key, value in stored.items() if key in entries}
    assert stored.keys() - entries.keys() <= {"threshold", "classes", "task", "outputs"}


def test_reservations_that_are_sentences_alone_are_told_apart_when_they_are_read():
    stored = {"reservations": ["nor is its map", CHANCE.text]}
    metadata = PredictionsMetadata.of(stored, where="f")
    assert metadata.reservations == (Reservation(kind="other", text="nor is its map"), CHANCE)
    assert at_chance(metadata.reservations) == CHANCE.text
    assert at_chance(metadata.reservations[:1]) == ""


@pytest.mark.parametrize(
    "key",
    [
        "epoch",
        "temperature",
        "thresholds",
        "threshold_rule",
        "map_score",
        "map_trust",
        "reservations",
    ],
)
def test_a_damaged_entry_is_named(key):
    refused(InputError, rf"^f .*{key}", PredictionsMetadata.of, {key: -1.5}, where="f")


def test_a_rule_is_stored_only_if_it_asked_for_a_share():
    asked = Threshold(
        value=0.3, origin="chosen", rule="sensitivity=0.9", reached=0.95, bags=20, of_class=8
    )
    assert StoredRule.of(asked) == EVERYTHING.threshold_rule
    for other in (None, Threshold(value=0.5, origin="default"), replace(asked, reached=None)):
        assert StoredRule.of(other) is None
