"""What a function would need: it runs on fake tensors, and nothing is allocated.

=================  ======================================================================================
asked              whether a function can be called with the arguments given, its name
target             the device that it would run on, and how much memory it can have there
batches            the same arguments with another batch size
generators         the generators of random numbers, as they were before
torch_settings     torch's global settings, as they were before
reach              the tensors that a function reaches, and the containers that hold them
twins              fake twins in place of the user's tensors, and all as it was afterwards
fake_tensors       fake tensors that are on a CUDA device for the user's code
own_threads        the thread that estimates: to the other threads torch is as it was
cuda_functions     torch's functions that ask for the device, and what they answer meanwhile
cuda_answers       the functions of `torch.cuda`, as they answer meanwhile
fallbacks          operators without an implementation for fake tensors: none runs on a device
saving             `torch.save` of fake tensors: refused before the file is opened
loaders            data loaders: in this process, and their indices for real
cuda_operators     what torch does on CUDA where an operator is made of others
device_guard       lets a build without CUDA note CUDA as the device of a result
gradient_sums      gradients that the autograd engine adds up in place
workspaces         what kernels allocate besides their results
losses             what losses allocate for each element
kernel_temporaries what single kernels allocate and free
user_lines         which line of the user's code is running
caching_allocator  torch's caching allocator as a model
allocations        what is allocated and freed, and what is alive at the peak
kinds              what each allocation is for
values             what stands for the values of tensors
operators          each operator of the run: what it allocates, what it cannot do
interrupts         Ctrl-C strikes the function, and never what puts everything back
notes              what has to be known about an estimate
run                one run of a function on fake tensors, and what it found
estimate           `estimate`: the run, compared with the memory that is available
=================  ======================================================================================
"""
