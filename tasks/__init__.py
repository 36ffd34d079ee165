"""What is asked: lm-eval task files, and the functions that they name."""
