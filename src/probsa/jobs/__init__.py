"""Tasks and who does them: this process, a pool of processes, Slurm jobs, or a share of them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
