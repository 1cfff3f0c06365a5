"""Tensors that are not what they state are refused before they are used."""

import zipfile

import pytest
import torch

from probsa.datasets.formats.tensors import load_tensor, tensor_shape
from probsa.errors import BagError

X = torch.arange(12.0).reshape(3, 4)
ODD = {
    "one row repeated a hundred billion times": torch.zeros(1).expand(10**11, 4),
    "one row repeated a few times": X[:1].expand(5, 4),
    "no values": torch.empty(10**12, 4, device="meta"),
    "sparse": X.to_sparse(),
    "complex": X.to(torch.complex64),
}


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("read", [load_tensor, tensor_shape])
def test_odd_tensors(tmp_path, what, read):
    torch.save(ODD[what], tmp_path / "a.pt")
    with pytest.raises(BagError, match=r"a\.pt"):
        read(tmp_path / "a.pt")


def test_an_archive_that_unpacks_to_far_more(tmp_path):
    torch.save(torch.zeros(5 * 10**6, 4), tmp_path / "whole.pt")
    path = tmp_path / "a.pt"
    with (
        zipfile.ZipFile(tmp_path / "whole.pt") as z,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in z.namelist():
            packed.writestr(name, z.read(name))
    with pytest.raises(BagError, match=r"a\.pt: the archive states 80,"):
        load_tensor(path)


def test_whole_tensors_are_read(tmp_path):
    torch.save(X, tmp_path / "a.pt")
    torch.save(X[1:], tmp_path / "b.pt")
    assert load_tensor(tmp_path / "a.pt").tolist() == X.tolist()
    assert load_tensor(tmp_path / "b.pt").tolist() == X[1:].tolist()
    assert tensor_shape(tmp_path / "a.pt") == (3, 4)
