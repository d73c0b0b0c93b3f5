//! The functions of NVIDIA's libraries that the program may call.
//!
//! Invariant: every CUDA function that cudarc, candle or candle's kernels refer to is in this list.
//! The linker names one that is missing; add it here. A superfluous one costs 40 bytes. The
//! runtime's functions are called by candle's kernels for quantized weights, which link-time
//! optimisation drops from the program but not from tests.

/// Passes the list to a macro. `cuModuleLoadData` is defined in `cubins.rs`.
macro_rules! cuda_functions {
    ($consumer:ident) => {
        $consumer! {
            cuCtxCreate_v3 cuCtxCreate_v4 cuCtxDestroy_v2 cuCtxGetCacheConfig cuCtxGetCurrent
            cuCtxGetLimit cuCtxGetStreamPriorityRange cuCtxSetCacheConfig cuCtxSetCurrent
            cuCtxSetFlags cuCtxSetLimit cuCtxSynchronize cuDestroyExternalMemory cuDeviceGet
            cuDeviceGetAttribute cuDeviceGetCount cuDeviceGetDefaultMemPool cuDeviceGetMemPool
            cuDeviceGetName cuDeviceGetUuid cuDeviceGetUuid_v2 cuDevicePrimaryCtxRelease_v2
            cuDevicePrimaryCtxRetain cuDeviceSetMemPool cuDeviceTotalMem_v2 cuEventCreate
            cuEventDestroy_v2 cuEventElapsedTime cuEventElapsedTime_v2 cuEventQuery cuEventRecord
            cuEventSynchronize cuExternalMemoryGetMappedBuffer cuFuncGetAttribute cuFuncSetAttribute
            cuFuncSetCacheConfig cuGetErrorName cuGetErrorString cuGraphClone cuGraphDestroy
            cuGraphExecDestroy cuGraphInstantiateWithFlags cuGraphLaunch cuDriverGetVersion
            cuGraphUpload cuImportExternalMemory cuInit cuLaunchCooperativeKernel cuLaunchHostFunc
            cuLaunchKernel cuMemAdvise_v2 cuMemAllocAsync cuMemAllocFromPoolAsync cuMemAllocManaged
            cuMemAlloc_v2 cuMemFreeAsync cuMemFreeHost cuMemFree_v2 cuMemGetInfo_v2 cuMemHostAlloc
            cuMemPoolCreate cuMemPoolDestroy cuMemPoolGetAttribute cuMemPoolSetAttribute
            cuMemPoolTrimTo cuMemPrefetchAsync_v2 cuMemcpyDtoDAsync_v2 cuMemcpyDtoD_v2
            cuMemcpyDtoHAsync_v2 cuMemcpyDtoH_v2 cuMemcpyHtoDAsync_v2 cuMemcpyHtoD_v2
            cuMemcpyPeerAsync cuMemsetD8Async cuMemsetD8_v2 cuModuleGetFunction cuModuleGetGlobal_v2
            cuModuleLoad cuModuleUnload cuOccupancyAvailableDynamicSMemPerBlock
            cuOccupancyMaxActiveBlocksPerMultiprocessor
            cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuOccupancyMaxActiveClusters
            cuOccupancyMaxPotentialBlockSize cuOccupancyMaxPotentialBlockSizeWithFlags
            cuOccupancyMaxPotentialClusterSize cuProfilerStart cuProfilerStop cuStreamAttachMemAsync
            cuStreamBeginCapture_v2 cuStreamCreate cuStreamCreateWithPriority cuStreamDestroy_v2
            cuStreamEndCapture cuStreamIsCapturing cuStreamSynchronize cuStreamWaitEvent
            cublasCreate_v2 cublasDasum_v2 cublasDestroy_v2 cublasDgemmStridedBatched cublasDgemm_v2
            cublasDgemv_v2 cublasGemmEx cublasGemmGroupedBatchedEx cublasGemmStridedBatchedEx
            cublasGetPointerMode_v2 cublasSasum_v2 cublasSetPointerMode_v2 cublasSetStream_v2
            cublasSgemmStridedBatched cublasSgemm_v2 cublasSgemv_v2 cublasLtCreate cublasLtDestroy
            cublasLtLoggerOpenFile cublasLtLoggerSetLevel cublasLtMatmul
            cublasLtMatmulAlgoGetHeuristic cublasLtMatmulDescCreate cublasLtMatmulDescDestroy
            cublasLtMatmulDescSetAttribute cublasLtMatmulPreferenceCreate
            cublasLtMatmulPreferenceDestroy cublasLtMatmulPreferenceSetAttribute
            cublasLtMatrixLayoutCreate cublasLtMatrixLayoutDestroy cublasLtMatrixLayoutSetAttribute
            __cudaGetKernel __cudaLaunchKernel_ptsz __cudaPopCallConfiguration
            __cudaPushCallConfiguration __cudaRegisterFatBinary __cudaRegisterFatBinaryEnd
            __cudaRegisterFunction __cudaRegisterVar __cudaUnregisterFatBinary cudaFuncSetAttribute
            cudaGetDevice
            curandCreateGenerator curandDestroyGenerator curandGenerate curandGenerateLogNormal
            curandGenerateLogNormalDouble curandGenerateLongLong curandGenerateNormal
            curandGenerateNormalDouble curandGeneratePoisson curandGenerateUniform
            curandGenerateUniformDouble curandSetGeneratorOffset curandSetPseudoRandomGeneratorSeed
            curandSetStream
            nvrtcCompileProgram nvrtcCreateProgram nvrtcDestroyProgram nvrtcGetPTX nvrtcGetPTXSize
            nvrtcGetProgramLog nvrtcGetProgramLogSize
            ncclAllGather ncclAllReduce ncclBroadcast ncclCommAbort ncclCommCount ncclCommCuDevice
            ncclCommDestroy ncclCommFinalize ncclCommInitAll ncclCommInitRank ncclCommInitRankConfig
            ncclCommSplit ncclCommUserRank ncclGetUniqueId ncclGetVersion ncclGroupEnd
            ncclGroupStart ncclRecv ncclRedOpCreatePreMulSum ncclRedOpDestroy ncclReduce
            ncclReduceScatter ncclSend
        }
    };
}

pub(super) use cuda_functions;
