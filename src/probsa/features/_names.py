"""How encoders and their weights are named. PyTorch is not imported."""

OPEN = ":MODEL"
"""Suffix of a name that represents many encoders; the class receives the part after the colon."""
HUB = "hub"
"""The word that asks for a download of the weights from their authors' site."""
ADDRESSES = ("https://", "http://")
"""Beginnings of the URLs that weights may be fetched from."""
