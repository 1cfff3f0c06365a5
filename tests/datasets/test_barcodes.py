"""Patients and sites in the names of bags."""

import pytest

from probsa.datasets import Barcodes


@pytest.mark.parametrize(
    ("bag", "patient", "site"),
    [
        ("TCGA-05-4244-01Z-00-DX1.d4ff32cd", "TCGA-05-4244", "05"),
        ("TCGA-AB-12A4", "TCGA-AB-12A4", "AB"),
        ("/data/TCGA-AB-12A4-01A.svs", "TCGA-AB-12A4", "AB"),
        (r"D:\slides\TCGA-AB-12A4.svs", "TCGA-AB-12A4", "AB"),
        ("C3L-00001-21", "C3L-00001", None),
        ("C3N-04155-22.svs", "C3N-04155", None),
        ("GTEX-1117F-0126", "GTEX-1117F", None),
        ("GTEX-WY7C-0008-SM-3NB3L", "GTEX-WY7C", None),
        ("TCGA-05-42445-01Z", None, None),
        ("TCGA-051-4244", None, None),
        ("my-TCGA-05-4244", None, None),
        ("C3L-000012", None, None),
        ("GTEX", None, None),
        ("case00", None, None),
    ],
)
def test_a_name_states_the_patient_and_the_site(bag, patient, site):
    barcodes = Barcodes.read([bag])
    assert (barcodes.patients, barcodes.sites) == ((patient,), (site,))


def test_a_bag_whose_name_states_no_patient_is_its_own():
    bags = ["TCGA-05-4244-01Z", "case0", "TCGA-05-4244-02Z", "GTEX-1117F-0126"]
    barcodes = Barcodes.read(bags)
    assert barcodes.groups(bags) == ("TCGA-05-4244", "case0", "TCGA-05-4244", "GTEX-1117F")
    assert barcodes.forms == ("TCGA", "GTEx")
    assert (barcodes.named, barcodes.patient_count) == (3, 2)
    assert barcodes.shares_patients
    assert not Barcodes.read(bags[:2]).shares_patients
