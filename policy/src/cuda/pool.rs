//! The driver's memory pool of a device, from which candle allocates.

use std::sync::Arc;

use candle_core::Device;
use candle_core::cuda_backend::cudarc::driver::{
    CudaContext, DriverError,
    result::{device, mem_pool},
    sys::{CUmemPool_attribute as Attribute, CUmemoryPool},
};

/// The memory pool of one device.
pub(crate) struct DeviceMemoryPool {
    context: Arc<CudaContext>,
    pool: CUmemoryPool,
}

impl DeviceMemoryPool {
    /// Returns the pool of a device; `None` for the CPU, and if the driver has no pools.
    pub(crate) fn of(device: &Device) -> Option<Self> {
        let Device::Cuda(device) = device else {
            return None;
        };
        let context = device.cuda_stream().context().clone();
        // SAFETY: the device is one that is open.
        let pool = unsafe { device::get_mem_pool(context.cu_device()) }.ok()?;
        Some(Self { context, pool })
    }

    /// Keeps freed memory. By default a pool returns it to the driver whenever the host
    /// synchronizes with the device, and allocates it again.
    pub(crate) fn keep_freed(&self) -> Result<(), DriverError> {
        self.set(Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX)
    }

    /// Returns unused memory to the driver.
    pub(crate) fn release(&self) -> Result<(), DriverError> {
        self.context.synchronize()?;
        // SAFETY: the pool is the device's.
        unsafe { mem_pool::trim_to(self.pool, 0) }
    }

    /// Returns the bytes that can still be allocated: the driver's, and those that the pool keeps
    /// unused.
    pub(crate) fn free(&self) -> Result<u64, DriverError> {
        let (free, _) = self.context.mem_get_info()?;
        let kept = self.get(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        let used = self.get(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
        Ok(free as u64 + kept.saturating_sub(used))
    }

    /// Resets [`Self::peak`].
    pub(crate) fn reset_peak(&self) -> Result<(), DriverError> {
        self.set(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0)
    }

    /// Returns the peak of allocated bytes since [`Self::reset_peak`].
    pub(crate) fn peak(&self) -> Result<u64, DriverError> {
        self.get(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)
    }

    fn get(&self, attribute: Attribute) -> Result<u64, DriverError> {
        let mut value = 0_u64;
        // SAFETY: the pool is the device's, and the attributes asked for here are numbers of 64
        // bits.
        unsafe { mem_pool::get_attribute(self.pool, attribute, (&raw mut value).cast()) }?;
        Ok(value)
    }

    fn set(&self, attribute: Attribute, mut value: u64) -> Result<(), DriverError> {
        // SAFETY: as in `get`.
        unsafe { mem_pool::set_attribute(self.pool, attribute, (&raw mut value).cast()) }
    }
}
