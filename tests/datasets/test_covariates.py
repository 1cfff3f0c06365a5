"""Clinical covariates: tables, encodings of the training patients, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from support.random_bags import types_not_executed
from support.refusals import refused

from probsa.datasets import (
    CovariateEncoder,
    CovariateOptions,
    CovariateTable,
    fit_encoder,
    read_covariates,
)
from probsa.errors import InputError, TableError


def table(tmp_path: Path, text: str, **options: object) -> CovariateTable:
    path = tmp_path / "clinical.csv"
    path.write_text(text, encoding="utf-8")
    return read_covariates(path, CovariateOptions(**options))


def test_the_golden_value(tmp_path):
    t = table(tmp_path, "patient,age\na,50\nb,60\nc,\nd,70\n", numeric=("age",))
    encoder = fit_encoder(t, "abcd")
    assert (encoder.means, encoder.names) == ((60.0,), ("age", "age_missing"))
    assert encoder.deviations[0] == pytest.approx(8.1649658, abs=5e-8)
    x = encoder.encode(t.select("abcd"))
    assert np.allclose(x[:, 0], [-1.2247449, 0, 0, 1.2247449], rtol=0, atol=5e-8)
    assert x[:, 1].tolist() == [0, 0, 1, 0]
    t = table(tmp_path, "bag,age\na,50\nb,60\nc,\n", numeric=("age",))
    encoder = fit_encoder(t, "ab")
    assert encoder.names == ("age",)
    assert encoder.encode(t.select("ca")).tolist() == [[0], [-1]]
    assert encoder.count_new_missing(t.select("ca")) == {"age": 1}
    assert encoder.count_new_missing(t.select("ab")) == {}


def cohort(tmp_path: Path, *, change: bool = False) -> CovariateTable:
    rng = np.random.default_rng(0)
    lines = []
    for i in range(40):
        age = "" if i % 7 == 3 else f"{rng.normal(60, 9):.3f}"
        psa = f"{rng.lognormal():.4f}"
        sex = "fm"[i % 3 > 0]
        stage = str(1 + i % 4)
        if change and i >= 30:
            age = "999"
            psa = "-4"
            sex = "m"
            stage = "1"
        lines.append(f"p{i},{age},{psa},{sex},{stage}")
    text = "case_id,age,psa,sex,stage\n" + "\n".join(lines) + "\n"
    return table(tmp_path, text, numeric=("age", "psa"), categorical=("sex", "stage"))


TRAINING = [f"p{i}" for i in range(30)]


def test_encodings_equal_scikit_learn(tmp_path):
    t = cohort(tmp_path)
    encoder = fit_encoder(t, TRAINING)
    assert encoder.names == ("age", "age_missing", "psa", "sex=f", "stage=2", "stage=3", "stage=4")
    rows = t.select([f"p{i}" for i in range(40)])
    x = encoder.encode(rows)
    numbers, texts = (
        np.stack([rows.cells[c] for c in columns], axis=1)
        for columns in (("age", "psa"), ("sex", "stage"))
    )
    expected = StandardScaler().fit(numbers[:30]).transform(numbers)
    observed = ~np.isnan(expected)
    assert np.allclose(x[:, [0, 2]][observed], expected[observed], rtol=0, atol=1e-12)
    assert (x[:, 0][~observed[:, 0]] == 0).all() and (x[:, 1] == ~observed[:, 0]).all()
    hot = OneHotEncoder(drop=np.array(["m", "1"]), sparse_output=False)
    assert np.array_equal(x[:, 3:], hot.fit_transform(texts))
    stored = json.loads(json.dumps(encoder.to_dict()))
    assert CovariateEncoder.from_dict(stored, where="run") == encoder
    one = fit_encoder(cohort(tmp_path), TRAINING)
    assert fit_encoder(cohort(tmp_path, change=True), TRAINING) == one
    assert fit_encoder(cohort(tmp_path), [*TRAINING, *TRAINING[:9]]) == one  # once per patient


def test_missing_categories_are_a_level_of_their_own(tmp_path):
    text = "bag,stage,sex\na,II,f\nb,I,f\nc,,m\nd,II,m\ne,III,\n"
    t = table(tmp_path, text, categorical=("stage", "sex"))
    encoder = fit_encoder(t, "abcd")
    assert encoder.levels == (("II", "I"), ("f", "m"))
    assert encoder.names == ("stage=I", "stage_missing", "sex=m")
    x = encoder.encode(t.select("abcd"))
    assert x.tolist() == [[0, 0, 0], [1, 0, 0], [0, 1, 1], [0, 0, 1]]
    with pytest.raises(InputError, match=r"line 6, 'e': .*'stage' .*'III', .*II, I"):
        encoder.encode(t.select("e"))
    t = table(tmp_path, text, categorical=("stage", "sex"), unknown_category="as_missing")
    encoder = fit_encoder(t, "abcd")
    assert encoder.encode(t.select("e")).tolist() == [[0, 1, 0]]
    assert encoder.count_new_missing(t.select("ae")) == {"sex": 1}


def test_rows_are_found_by_bag_and_by_patient(tmp_path):
    text = "slide,patient,label,age,scanner\ns1,p,1,50,A\ns2,p,1,50.0,A\nt,,0,60,B\n"
    t = table(tmp_path, text, numeric=("age",))
    assert t.select(["p", "t", "s2"]).cells["age"].tolist() == [50, 60, 50]
    assert fit_encoder(t, ["p", "t"]).means == (55.0,)
    other = text.replace("50.0", "51")
    with pytest.raises(TableError, match=r"patient 'p' .*'age': line 2 has 50, line 3"):
        table(tmp_path, other, numeric=("age",)).select(["p"])
    assert table(tmp_path, other, numeric=("age",)).select(["s2"]).cells["age"] == [51]
    refused(TableError, r"clinical\.csv .*'p9', 'x'", t.select, ["p", "p9", "x"])
    t = table(tmp_path, text, numeric=("age",), missing_rows="as_missing")
    assert np.isnan(t.select(["x", "p"]).cells["age"]).tolist() == [True, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bag,age\na,inf\n", "line 2, bag 'a': .*'age' .*'inf'"),
        ("bag,age\na,1\nb,old\n", "line 3, bag 'b': .*'age' .*'old'"),
        ("patient,age\np,I\n", "line 2, patient 'p': .*'I', .*categorical"),
        ("bag,ago\na,1\n", "'age'.*'ago'"),
        ("age\n1\n", "'bag' .*'group'"),
        ("patient,age\np,1\np,2\n", "line 3: patient 'p' .*line 2"),
        ("patient,age\n,1\n", "line 2: .*'patient'"),
        ("bag,age\n", "bags"),
    ],
)
def test_bad_tables(tmp_path, text, message):
    refused(TableError, message, table, tmp_path, text, numeric=("age",))


def test_columns_that_say_nothing_and_wrong_options_are_refused(tmp_path):
    text = "bag,age,sex\na,50,f\nb,50,f\nc,60,m\n"
    t = table(tmp_path, text, numeric=("age",))
    refused(TableError, "'age' .*50", fit_encoder, t, "ab")
    with pytest.raises(TableError, match=r"'sex' .*f"):
        fit_encoder(table(tmp_path, text, categorical=("sex",)), "ab")
    refused(InputError, "patients", fit_encoder, t, [])
    with pytest.raises(InputError, match=r"sex, .*age"):
        fit_encoder(t, "abc").encode(table(tmp_path, text, categorical=("sex",)).select("a"))
    with types_not_executed():  # as YAML gives them
        made = CovariateOptions(covariates="a.csv", numeric=["age"])
    assert (made.covariates, made.columns) == (Path("a.csv"), ("age",))
    with pytest.raises(InputError, match="numeric"):
        CovariateOptions(covariates=Path("a.csv"))
    with pytest.raises(InputError, match="'age'"):
        CovariateOptions(numeric=("age",), categorical=("age",))
    with pytest.raises(InputError, match="'PATIENT'"):
        CovariateOptions(categorical=("PATIENT",))
    with types_not_executed(), pytest.raises(InputError, match=r"unknown_category .*'drop'"):
        CovariateOptions(unknown_category="drop")


def test_words_for_a_missing_value_are_missing(tmp_path):
    text = "bag,group,age,sex\na,NA,1,f\nb,NA,NaN,[Not Available]\nc,p,.,m\nd,q,4,unknown\n"
    t = table(tmp_path, text, numeric=("age",), categorical=("sex",))
    assert np.isnan(t.cells["age"]).tolist() == [False, True, True, False]
    assert t.cells["sex"].tolist() == ["f", "", "m", "unknown"]
    assert set(t.rows_of) == {"a", "b", "c", "d", "p", "q"}  # `NA` is nobody's name
    age, sex, group = (next(n for n in t.notes if name in n) for name in ("age", "sex", "group"))
    assert "NaN, .: lines 3 and 4" in age and "[Not Available]: line 3" in sex
    assert "NA: lines 2 and 3" in group and len(t.notes) == 3
