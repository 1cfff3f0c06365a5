"""Writers of bag files, one module per target format."""
