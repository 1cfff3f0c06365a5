"""How faithful maps are to predictions, by removing instances; which score a run's maps show."""
