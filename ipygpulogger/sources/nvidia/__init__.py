"""NVIDIA devices: the CUDA driver, NVML's library, and the figures of NVML."""
