//! Sums gradients over ranks by NCCL, from GPU to GPU.
//!
//! Invariant: all ranks call the same collectives in the same order, on the stream that computes
//! the gradients. NCCL adds in an order of its own, which is the same at each run on the same
//! machines. A rank that waits for another that died within a collective gives up when the
//! connection to it has ended, or after the timeout; the process must then end, since the GPU still
//! waits. Connecting (`ncclCommInitRank`) has no deadline but NCCL's own, so a rank that could not
//! connect says so before the others begin to.

use std::{collections::BTreeMap, ffi::c_char, thread::sleep, time::Duration};

use candle_core::{
    CpuStorage, CudaDevice, CudaStorage, Device, InplaceOp1, Layout,
    cuda_backend::cudarc::nccl::{
        result::{NcclError, get_nccl_version},
        safe::{Comm, Id, ReduceOp},
    },
};

use crate::{
    clock::now,
    error::{LearnerError, Result},
    optimizer::{Gradients, Parameter},
};

/// The pause between two checks of a running collective.
const CHECK_INTERVAL: Duration = Duration::from_micros(200);

/// A communicator: one rank of those that sum together.
pub(super) struct Nccl {
    comm: Comm,
    timeout: Duration,
}

// SAFETY: NCCL allows calls on a communicator from any thread, one at a time; `Nccl` is not `Sync`.
#[expect(unsafe_code, reason = "cudarc leaves it to its users")]
unsafe impl Send for Nccl {}

/// Checks that a rank which computes on this device can take part.
pub(super) fn check(device: &Device) -> Result<()> {
    cuda_device(device)?;
    match get_nccl_version() {
        Ok(_) => Ok(()),
        Err(error) => Err(fault(format!(
            "its library cannot be used ({:?}), and `sqlenv doctor` says why",
            error.0
        ))),
    }
}

/// Returns a new unique id by which ranks connect, if this one, on its device, can take part.
pub(super) fn new_id(device: &Device) -> Result<Vec<u8>> {
    check(device)?;
    let id = Id::new().map_err(|error| failed(&error))?;
    Ok(id.internal().iter().map(|byte| *byte as u8).collect())
}

impl Nccl {
    /// Connects with the other ranks: waits until all `count` ranks call it with the same id, for
    /// as long as NCCL waits.
    pub(super) fn open(
        id: &[u8],
        device: &Device,
        rank: usize,
        count: usize,
        timeout: Duration,
    ) -> Result<Self> {
        let device = cuda_device(device)?;
        let bytes: [u8; 128] = id
            .try_into()
            .map_err(|_| fault(format!("an id of {} bytes", id.len())))?;
        let id = Id::uninit(bytes.map(|byte| byte as c_char));
        let comm = Comm::from_rank(device.cuda_stream(), rank, count, id)
            .map_err(|error| failed(&error))?;
        Ok(Self { comm, timeout })
    }

    /// Returns the sum over all ranks. A rank without gradients takes part with zeros. While it
    /// waits it asks `lost` whether another rank has gone.
    pub(super) fn all_reduce(
        &self,
        parameters: &BTreeMap<String, Parameter>,
        mut gradients: Gradients,
        mut lost: impl FnMut() -> Option<LearnerError>,
    ) -> Result<Gradients> {
        for (name, parameter) in parameters {
            let gradient = match gradients.remove(name) {
                Some(gradient) => gradient.contiguous()?,
                None => parameter.value.zeros_like()?,
            };
            gradient.inplace_op1(self)?;
            gradients.insert(name.clone(), gradient);
        }
        // Polls an event, because synchronizing with the stream would block for ever if another
        // rank died within the collective.
        let event = self.comm.stream().record_event(None).map_err(fault)?;
        let began = now();
        while !event.try_is_complete().map_err(fault)? {
            if let Some(lost) = lost() {
                return Err(lost);
            }
            if now() - began >= self.timeout {
                let seconds = self.timeout.as_secs();
                return Err(fault(format!(
                    "a rank left the others waiting for {seconds} s"
                )));
            }
            sleep(CHECK_INTERVAL);
        }
        Ok(gradients)
    }
}

impl InplaceOp1 for Nccl {
    fn name(&self) -> &'static str {
        "all-reduce"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        candle_core::bail!("NCCL sums on CUDA devices only")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> candle_core::Result<()> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            candle_core::bail!("NCCL sums contiguous tensors only")
        };
        let values = storage.as_cuda_slice_mut::<f32>()?;
        let summed = self
            .comm
            .all_reduce_in_place(&mut values.slice_mut(start..end), &ReduceOp::Sum);
        summed
            .map(|_| ())
            .map_err(|error| candle_core::Error::Msg(format!("NCCL: {:?}", error.0)))
    }
}

fn cuda_device(device: &Device) -> Result<&CudaDevice> {
    let Device::Cuda(device) = device else {
        return Err(LearnerError::setting(
            "ranks.reduce",
            "is nccl, but this rank computes on the CPU; give every rank a CUDA device, or give \
             grpc",
        ));
    };
    Ok(device)
}

/// Names the error by its code, which its `Display` leaves out.
fn failed(error: &NcclError) -> LearnerError {
    fault(format!("{:?}", error.0))
}

fn fault(problem: impl std::fmt::Display) -> LearnerError {
    LearnerError::Nccl(problem.to_string())
}
