"""What a model has to beat: maps that hardly look at the image, and distances from training."""
