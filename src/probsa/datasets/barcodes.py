"""Patients and sites in the names of bags, as TCGA, CPTAC and GTEx write them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..core import enumerated, group_keys
from .names import last_part

BARCODES = {
    "TCGA": re.compile(r"(?P<patient>TCGA-(?P<site>[A-Z0-9]{2})-[A-Z0-9]{4})(?![A-Za-z0-9])"),
    "CPTAC": re.compile(r"(?P<patient>C3[LN]-[0-9]{5})(?![A-Za-z0-9])"),
    "GTEx": re.compile(r"(?P<patient>GTEX-[A-Z0-9]{4,5})(?![A-Za-z0-9])"),
}
"""The beginning of a name. `TCGA-XX-YYYY-01Z-00-DX1` is of the patient `TCGA-XX-YYYY` and of the
site (tissue source site) `XX`; the names of CPTAC and GTEx state no site."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Barcodes:
    """What the names of bags say; both tuples are as long as the bags."""

    patients: tuple[str | None, ...]
    """None for names of no known form."""
    sites: tuple[str | None, ...]
    forms: tuple[str, ...]
    """The forms of names that occur: `TCGA`, `CPTAC`, `GTEx`."""

    @classmethod
    def read(cls, bags: Sequence[str]) -> "Barcodes":
        """Read the names of bags, which may be paths."""
        patients: list[str | None] = []
        sites: list[str | None] = []
        forms: dict[str, None] = {}
        for bag in bags:
            patient = None
            site = None
            for form, pattern in BARCODES.items():
                match = pattern.match(last_part(bag))
                if match is not None:
                    patient = match["patient"]
                    site = match.groupdict().get("site")
                    forms[form] = None
            patients.append(patient)
            sites.append(site)
        return cls(patients=tuple(patients), sites=tuple(sites), forms=tuple(forms))

    @property
    def form(self) -> str:
        """The forms in words, before "names"."""
        return enumerated(self.forms)

    @property
    def named(self) -> int:
        """Number of bags whose names state the patient."""
        return sum(patient is not None for patient in self.patients)

    @property
    def patient_count(self) -> int:
        """Number of different patients that the names state."""
        return len({patient for patient in self.patients if patient is not None})

    @property
    def shares_patients(self) -> bool:
        """Whether the names say that some bags are of the same patient."""
        return self.patient_count < self.named

    def groups(self, bags: Sequence[str]) -> tuple[str, ...]:
        """Return the patient of each bag; a bag whose name states none is its own."""
        pairs = zip(bags, self.patients, strict=True)
        patient_of = {bag: patient for bag, patient in pairs if patient is not None}
        return tuple(group_keys(tuple(bags), patient_of))
