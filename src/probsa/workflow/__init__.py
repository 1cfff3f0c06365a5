"""Whole workflows: predict a folder; train, predict, evaluate and draw a run."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
