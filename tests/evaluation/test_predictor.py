"""A predictor in Python gives the numbers of the command, whatever form a bag has."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.made_runs import make_config, with_data
from support.stored import write_folder

from probsa import Bag, MILClassifier, load
from probsa.core import GraphOptions, join_bags, read_bag, select_instances, write_bag
from probsa.datasets import open_bags
from probsa.errors import BagError, GraphError, InputError
from probsa.evaluation import Predictor, deletion_curves, read_predictions
from probsa.training import train
from probsa.workflow import predict_folder

GRAPHS = {
    "default": ("slide", GraphOptions()),
    "recipe": ("slide", GraphOptions(weight_scale="median")),
    "grid": ("slide", GraphOptions(kind="grid", weight_scale="degree", edge_weights="rbf")),
    "stride": ("slide", GraphOptions(stride=64.0, weight_scale=5.0)),
    "knn": ("slide", GraphOptions(kind="knn", neighbours=2, weight_scale=0.1)),
    "chain of patches": ("slide", GraphOptions(kind="chain", weight_scale="median")),
    "slices": ("ct", GraphOptions(weight_scale="median")),
    "slices, binary": ("ct", GraphOptions(edge_weights="binary")),
    "none": ("slide", GraphOptions(kind="none")),
}
MODELS = {"none": "abmil"}
FAST = {"embed": 8}


@pytest.fixture(scope="module", params=GRAPHS)
def predicted(request, tmp_path_factory):
    """A run whose graphs have these options, its predictions, and its bags as arrays."""
    folder = tmp_path_factory.mktemp("run")
    kind, graph = GRAPHS[request.param]
    write_folder(folder, kind=kind)
    model = MODELS.get(request.param, "evidence-field")
    arguments = {**FAST, "attention_dim": 4} if model == "abmil" else FAST
    config = make_config(folder, model=model, model_arguments=arguments, epochs=1)
    run = train(with_data(config, graph=graph), folder / "run")
    predict_folder(run.path, folder / "features", out=folder / "preds", device="cpu")
    arrays = {path.stem: read_bag(path) for path in sorted((folder / "features").glob("*.h5"))}
    return load(run.path, device="cpu"), read_predictions(folder / "preds"), arrays, graph


def same(predictions, table) -> None:
    assert [p.name for p in predictions] == list(table.bags)
    for p, row in zip(predictions, table.probability, strict=True):
        np.testing.assert_allclose(p.probability, row, rtol=1e-6, atol=1e-7)
        stored = table.instances(p.name)
        np.testing.assert_allclose(p.attention_mean, stored.attention_mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(p.degree, stored.degree, rtol=1e-5)


def test_pairs_arrays_and_bags_give_the_numbers_of_the_command(predicted):
    predictor, table, arrays, graph = predicted
    names = list(table.bags)
    pairs = [(arrays[n].features, arrays[n].coords) for n in names]
    same(predictor.predict(pairs, names=names), table)
    others = [(torch.from_numpy(x), c.tolist()) for x, c in pairs]
    same(predictor.predict(others, names=names), table)
    for options in (None, graph):
        bags = [
            Bag.from_arrays(*pair, name=name, graph=options)
            for pair, name in zip(pairs, names, strict=True)
        ]
        same(predictor.predict(bags), table)


def test_stored_bags_that_were_opened_without_a_graph_get_that_of_the_run(predicted):
    predictor, table, _, graph = predicted
    folder = predictor.config.data.features
    for bags in (open_bags(folder), open_bags(folder, graph=graph)):
        same(predictor.predict(bags.bag(n) for n in table.bags), table)
        same(list(predictor.stream(bags.bag(n) for n in table.bags)), table)


def test_one_bag_gives_a_list_of_one(predicted):
    predictor, table, arrays, _ = predicted
    name = table.bags[0]
    x = arrays[name].features
    coords = arrays[name].coords
    for one in ((x, coords), Bag.from_arrays(x, coords, name=name)):
        names = [name] if isinstance(one, tuple) else None
        predictions = predictor.predict(one, names=names)
        assert isinstance(predictions, list) and len(predictions) == 1
        np.testing.assert_allclose(predictions[0].probability, table.probability[0], rtol=1e-6)
    unnamed = predictor.predict([(x, coords), (x[:3], coords[:3])])
    assert len({p.name for p in unnamed}) == 2
    (alone,) = predictor.predict((x, coords))
    np.testing.assert_array_equal(alone.probability, unnamed[0].probability)


OTHERS = [
    {"kind": "none"},
    {"weight_scale": 77.0},
    {"edge_weights": "exp"},
    {"kind": "knn", "neighbours": 1},
]


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_a_graph_that_somebody_chose_otherwise_is_refused(predicted, other):
    predictor, table, arrays, graph = predicted
    if graph.kind == "none":
        pytest.skip("without edges, weights do not matter")
    name = table.bags[0]
    bag = Bag.from_arrays(arrays[name].features, arrays[name].coords, name=name, graph=other)
    with pytest.raises(GraphError) as error:
        predictor.predict([bag])
    own = [f"{key} {value!r}" for key, value in other.items() if value != getattr(graph, key)]
    assert name in str(error.value) and own[0] in str(error.value)
    stored = open_bags(predictor.config.data.features, graph=GraphOptions(**other))
    with pytest.raises(GraphError):
        predictor.predict([stored.bag(name)])
    with pytest.raises(GraphError):
        predictor.predict([select_instances(bag, torch.arange(2))])


def test_edges_that_are_given_are_used_as_they_are(predicted):
    predictor, table, arrays, _ = predicted
    stored = arrays[table.bags[0]]
    plain = Bag(
        name=table.bags[0],
        x=torch.from_numpy(stored.features),
        edges=torch.zeros(2, 0, dtype=torch.long),
        weights=torch.zeros(0),
        coords=torch.from_numpy(stored.coords),
    )
    (p,) = predictor.predict(plain)
    assert not p.degree.any()


def test_a_patient_of_slides_that_were_made_by_default_gets_the_graph_of_the_run(predicted):
    predictor, table, arrays, graph = predicted
    names = table.bags[:2]
    pairs = [(arrays[n].features, arrays[n].coords) for n in names]
    by_default = [Bag.from_arrays(*p, name=n) for p, n in zip(pairs, names, strict=True)]
    chosen = [Bag.from_arrays(*p, name=n, graph=graph) for p, n in zip(pairs, names, strict=True)]
    a, b = predictor.predict([join_bags("p", by_default, y=None), join_bags("p", chosen, y=None)])
    np.testing.assert_allclose(a.probability, b.probability, rtol=1e-6)
    np.testing.assert_allclose(a.degree, b.degree, rtol=1e-6)


def test_faithfulness_is_that_of_the_graph_of_the_run(predicted):
    predictor, table, arrays, graph = predicted
    bags = [
        Bag.from_arrays(arrays[n].features, arrays[n].coords, name=n, graph=g)
        for n in table.bags[:1]
        for g in (None, graph)
    ]
    (_, a), (_, b) = (deletion_curves(predictor, bag) for bag in bags)
    assert a == b


def test_a_saved_model_builds_the_graph_as_well(predicted, tmp_path):
    predictor, table, arrays, _ = predicted
    names = list(table.bags)
    pairs = [(arrays[n].features, arrays[n].coords) for n in names]
    saved = load(predictor.save_pretrained(tmp_path / "model"), device="cpu")
    same(saved.predict(pairs, names=names), table)


def test_what_is_no_bag_is_refused(predicted):
    predictor, table, arrays, _ = predicted
    stored = arrays[table.bags[0]]
    pair = (stored.features, stored.coords)
    for wrong in (3, "a folder", {"x": stored.features}, None):
        with pytest.raises(InputError):
            predictor.predict(wrong)
    for names in (["a", "b"], "a"):
        with pytest.raises(InputError):
            predictor.predict([pair], names=names)
    bag = Bag.from_arrays(*pair, name="a")
    with pytest.raises(InputError):
        predictor.predict([bag], names=["b"])
    for coords in (stored.coords, torch.from_numpy(stored.coords)):
        with pytest.raises(InputError, match="tuple"):  # a pair as a list would be two bags
            predictor.predict([stored.features, coords])
    with pytest.raises(BagError):
        predictor.predict([(stored.features, stored.coords[:-1])])
    with pytest.raises(BagError):
        predictor.predict([(stored.features[:, :-1], stored.coords)])


def test_a_sparse_bag_has_the_stride_that_is_stated(tmp_path):
    write_folder(tmp_path, kind="slide")
    config = make_config(tmp_path, model="evidence-field", model_arguments=FAST, epochs=1)
    predictor = load(train(config, tmp_path / "run").path, device="cpu")
    x = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)
    coords = 128 * np.stack([np.arange(6), np.zeros(6)], 1)  # every second patch of a row
    (estimated,) = predictor.predict((x, coords))
    (stated,) = predictor.predict((x, coords), stride=64)
    assert (estimated.stride, stated.stride) == (128, 64)
    assert estimated.degree.all() and not stated.degree.any()


def test_estimators_build_their_own_graph_for_bags_that_were_made_by_default():
    g = np.random.default_rng(1)
    coords = 64 * np.stack([np.arange(9) % 3, np.arange(9) // 3], 1)
    pairs = [(g.normal(size=(9, 5)).astype(np.float32), coords) for _ in range(8)]
    y = [0, 1] * 4
    options = {"epochs": 1, "threads": 1, "random_state": 0, "training": {"members": 1}}
    classifier = MILClassifier(**options).fit(pairs, y)
    predictor: Predictor = classifier.predictor_
    bags = [Bag.from_arrays(*pair, name=f"b{k}") for k, pair in enumerate(pairs)]
    expected = [p.probability[0] for p in predictor.predict(pairs, names=[b.name for b in bags])]
    np.testing.assert_allclose(classifier.predict_proba(bags)[:, 1], expected, rtol=1e-6)
    other = [Bag.from_arrays(*pair, graph={"weight_scale": "degree"}) for pair in pairs]
    with pytest.raises(GraphError):
        classifier.predict(other)
    with pytest.raises(GraphError):
        MILClassifier(**options).fit(other, y)
    unknown = [replace(bag, graph=()) for bag in other]  # edges of one's own
    assert len(classifier.predict(unknown)) == len(pairs)


SCAN_GRAPHS = {
    "recipe": GraphOptions(weight_scale="median"),
    "chain": GraphOptions(kind="chain", edge_weights="rbf"),
    "knn": GraphOptions(kind="knn", neighbours=2, weight_scale="degree"),
}


@pytest.mark.parametrize("options", SCAN_GRAPHS)
@pytest.mark.parametrize("model", ["smabmil", "patchgcn", "evidence-field"])
def test_the_order_of_the_rows_of_a_scan_changes_no_prediction(tmp_path, options, model):
    write_folder(tmp_path, kind="ct")
    config = make_config(tmp_path, model=model, model_arguments={}, epochs=1)
    run = train(with_data(config, graph=SCAN_GRAPHS[options]), tmp_path / "run")
    predictor = load(run.path, device="cpu")
    generator = np.random.default_rng(0)
    for path in sorted((tmp_path / "features").glob("*.h5")):
        stored = read_bag(path)
        rows = generator.permutation(len(stored.features))
        moved = stored.features[rows], stored.coords[rows]
        write_bag(tmp_path / "moved" / path.name, features=moved[0], coords=moved[1], kind="ct")
        forms = [
            moved,
            (moved[0], moved[1][:, 0]),
            Bag.from_arrays(*moved, name=path.stem),
            open_bags(tmp_path / "moved", graph=SCAN_GRAPHS[options]).bag(path.stem),
        ]
        (whole,) = predictor.predict([(stored.features, stored.coords)], names=[path.stem])
        for form in forms:
            names = None if isinstance(form, Bag) else [path.stem]
            (other,) = predictor.predict([form], names=names)
            np.testing.assert_allclose(other.degree, whole.degree[rows], rtol=1e-5)
            if model != "evidence-field":  # the noise of its samples follows the rows
                np.testing.assert_allclose(other.probability, whole.probability, rtol=1e-5)
            np.testing.assert_allclose(
                other.attention_mean, whole.attention_mean[rows], rtol=1e-4, atol=1e-6
            )


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_a_threshold_that_is_set_on_a_predictor_calls_its_bags(tmp_path, threshold):
    write_folder(tmp_path)
    config = make_config(tmp_path, model="abmil", model_arguments=FAST, epochs=1)
    predictor = load(train(config, tmp_path / "run").path, device="cpu")
    predictor.threshold = threshold
    bags = open_bags(tmp_path / "features")
    for prediction in predictor.predict([bags.bag(name) for name in bags.names]):
        assert prediction.to_frame() is not None
        assert prediction.of_task.called_positive(
            prediction.probability[None], prediction.stated
        ).tolist() == [threshold == 0.0]
