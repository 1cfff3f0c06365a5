"""Polygon annotations in the XML format of ASAP, as CAMELYON16 publishes them."""

XML = """<ASAP_Annotations><Annotations>
<Annotation Name="a" Type="Polygon" PartOfGroup="_0"><Coordinates>{}</Coordinates></Annotation>
</Annotations></ASAP_Annotations>"""


def asap_xml(*corners: tuple[int, int]) -> str:
    """Return an annotation with one polygon."""
    return XML.format("".join(f'<Coordinate X="{x}" Y="{y}"/>' for x, y in corners))
