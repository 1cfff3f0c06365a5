from .folder import Exported as Exported
from .folder import ExportSettings as ExportSettings
from .folder import export_folder as export_folder
