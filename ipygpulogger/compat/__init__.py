"""What fastai v1 and ipyexperiments offered, on this package's counters; users import it from the doors."""
