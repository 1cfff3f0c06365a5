"""Running the cells of a grid on one machine or many."""
