"""NVIDIA devices: the CUDA driver and NVML.

===============  =========================================================
driver           the CUDA driver, read without creating a context
library          NVML's library: opened, and closed while no call is in it; why it does not answer
nvml             NVML: memory, processes, energy and load of whole devices
===============  =========================================================
"""
