"""What resuming reads, and how scans are divided among readers."""

from collections import Counter
from itertools import chain

import h5py
import nibabel
import numpy as np
import pytest
from support.counting import CountingReader
from support.made_slides import write_cohort
from support.processes import fork_workers

from probsa.cohorts import ExtractOptions, extract_cohort, patch_cohort, reading
from probsa.cohorts.reading import in_lanes
from probsa.patches import settings

SMALL = settings(size=64, mpp=0.5, min_area=0.0)


@pytest.mark.parametrize("with_records", [True, False])
def test_resuming_reads_no_features(tmp_path, monkeypatch, with_records):
    patch_cohort(write_cohort(tmp_path / "s"), tmp_path / "w", settings=SMALL)
    before = extract_cohort(tmp_path / "w", ExtractOptions())
    if not with_records:
        for path in (tmp_path / "w").glob("*/records/features_handcrafted/*.json"):
            path.unlink()
    read: Counter[str] = Counter()
    originals = {name: getattr(h5py.Dataset, name) for name in ("__getitem__", "read_direct")}

    def counted(name):
        def call(dataset, *args, **more):
            read[dataset.name] += 1
            return originals[name](dataset, *args, **more)

        return call

    for name in originals:
        monkeypatch.setattr(h5py.Dataset, name, counted(name))
    again = extract_cohort(tmp_path / "w", ExtractOptions())
    assert [o.kept for o in again.outcomes] == [True] * 3
    assert [o.count for o in again.outcomes] == [o.count for o in before.outcomes]
    assert read["/coords"] == 3 and "/features" not in read


def test_a_bag_that_was_cut_short_is_made_again(tmp_path):
    patch_cohort(write_cohort(tmp_path / "s", slides=1), tmp_path / "w", settings=SMALL)
    extract_cohort(tmp_path / "w", ExtractOptions())
    (bag,) = (tmp_path / "w").glob("*/features_handcrafted/*.h5")
    bag.write_bytes(bag.read_bytes()[:-500])
    again = extract_cohort(tmp_path / "w", ExtractOptions())
    assert not again.outcomes[0].kept


@pytest.mark.parametrize("lanes", [1, 2, 3, 5])
@pytest.mark.parametrize("sizes", [(), (1,), (4, 1, 3), (2, 2, 2, 2, 9), (0, 3, 0)])
def test_the_chunks_of_a_job_stay_in_one_lane(lanes, sizes):
    jobs = [[(job, k) for k in range(n)] for job, n in enumerate(sizes)]
    dealt = list(in_lanes(map(iter, jobs), lanes))
    for job, chunks in enumerate(jobs):
        places = [k for k, item in enumerate(dealt) if item is not None and item[0] == job]
        assert [dealt[k] for k in places] == chunks
        assert len({k % lanes for k in places}) <= 1
    if lanes == 1:
        assert dealt == list(chain.from_iterable(jobs))
    elif sizes:  # lanes are busy as long as there are jobs
        assert len(dealt) <= lanes * (sum(sizes) // lanes + max(sizes) + 1)


@pytest.mark.parametrize("readers", [0, 1, 2])
def test_a_scan_is_decoded_once(tmp_path, monkeypatch, readers):
    rng = np.random.default_rng(0)
    (tmp_path / "s").mkdir()
    for k in range(4):
        volume = rng.integers(-900, 300, (16, 16, 5 + 3 * k)).astype(np.int16)
        nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), tmp_path / "s" / f"scan{k}.nii.gz")
    patch_cohort(tmp_path / "s", tmp_path / "w", settings=SMALL)
    fork_workers(monkeypatch)
    log = tmp_path / "opened.txt"
    monkeypatch.setenv("PROBSA_TEST_OPENED", str(log))
    monkeypatch.setattr(reading, "PixelReader", CountingReader)
    report = extract_cohort(tmp_path / "w", ExtractOptions(batch=2, readers=readers))
    assert [(o.status, o.count) for o in report.outcomes] == [("done", 5 + 3 * k) for k in range(4)]
    opened = Counter(line.split()[0] for line in log.read_text().splitlines())
    assert opened == {f"scan{k}": 1 for k in range(4)}


def test_features_do_not_depend_on_readers(tmp_path, monkeypatch):
    fork_workers(monkeypatch)
    rng = np.random.default_rng(0)
    (tmp_path / "s").mkdir()
    for k in range(3):
        volume = rng.integers(-900, 300, (16, 16, 4 + 3 * k)).astype(np.int16)
        nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), tmp_path / "s" / f"scan{k}.nii.gz")
    stored = []
    for readers in (0, 2):
        work = tmp_path / f"w{readers}"
        patch_cohort(tmp_path / "s", work, settings=SMALL)
        extract_cohort(work, ExtractOptions(batch=3, readers=readers))
        found = sorted(work.glob("*/features_handcrafted/*.h5"))
        with_features = []
        for path in found:
            with h5py.File(path) as f:
                with_features.append(f["features"][...])
        stored.append(np.concatenate(with_features))
    np.testing.assert_array_equal(*stored)
