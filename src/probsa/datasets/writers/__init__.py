"""Writers of bag files, one module per format."""
