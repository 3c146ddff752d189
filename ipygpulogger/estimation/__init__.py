"""What a function would need: it runs on fake tensors, and nothing is allocated.

=============  ==========================================================================================
estimate       `estimate`: a run, compared with the memory that is available
arguments      what `estimate` is given, checked; the arguments with another batch size
run            one run of a function on fake tensors, and what it found
reach          the tensors that take part, and the containers that hold them
restored       puts back what a run changed in containers, generators and torch's settings
fake_tensors   fake tensors that are on a CUDA device for the user's code
fake_map       the fake tensor of each real one
patches        torch's functions that are others meanwhile, and its data loaders
threads        the threads of the function: to others torch is as it was; Ctrl-C interrupts the function
cuda           what CUDA answers and does meanwhile, as if the device were there
operators      each operator of the run: what it allocates, what a backward pass writes in place
kernels        what kernels allocate besides their results: workspaces, parts of sums
allocations    the allocations of a run, and what they are for
values         the values of tensors that a function was given, and which line of the user's is running
notes          what has to be known about an estimate
=============  ==========================================================================================
"""
