/* struct cudaDeviceProp by offset (CUDA 12, CUDA 13): test_rig_abi.py compares them with the headers */
#define PROP_SIZE (CUDART >= 13 ? 1008 : 1032)
#define PROPS(I, Z) /* I: int field, Z: size_t field */ \
    Z(totalGlobalMem, 288, 288, total_of(d)) Z(sharedMemPerBlock, 296, 296, 49152) \
    I(regsPerBlock, 304, 304, 65536) I(warpSize, 308, 308, 32) Z(memPitch, 312, 312, 0x7fffffff) \
    I(maxThreadsPerBlock, 320, 320, 1024) I(maxThreadsDim, 324, 324, 1024) \
    I(maxGridSize, 336, 336, 0x7fffffff) Z(totalConstMem, 352, 352, 65536) \
    I(major, 360, 360, (int)d->cc_major) I(minor, 364, 364, (int)d->cc_minor) \
    Z(textureAlignment, 368, 368, 512) Z(texturePitchAlignment, 376, 376, 32) \
    I(multiProcessorCount, 388, 384, sms(d)) I(integrated, 396, 388, (int)d->integrated) \
    I(canMapHostMemory, 400, 392, 1) \
    I(concurrentKernels, 576, 560, 1) I(pciBusID, 584, 568, bus) I(pciDeviceID, 588, 572, slot) \
    I(pciDomainID, 592, 576, dom) I(asyncEngineCount, 600, 584, 2) I(unifiedAddressing, 604, 588, 1) \
    I(memoryBusWidth, 612, 592, 5120) I(l2CacheSize, 616, 596, 40 << 20) \
    I(maxThreadsPerMultiProcessor, 624, 604, 2048) I(streamPrioritiesSupported, 628, 608, 1) \
    Z(sharedMemPerMultiprocessor, 640, 624, 167936) I(regsPerMultiprocessor, 648, 632, 65536) \
    I(managedMemory, 652, 636, 1) I(cooperativeLaunch, 688, 668, 1) \
    Z(sharedMemPerBlockOptin, 696, 672, 166912) I(maxBlocksPerMultiProcessor, 712, 688, 32) \
    I(memoryPoolsSupported, 744, 720, 1)
