//! Checks NCCL as far as a single device allows.

use std::collections::BTreeMap;

use anyhow::Result;
use learner::{
    optimizer::{Gradients, Parameter},
    ranks,
};
use policy::cuda::Library;

use super::{
    parity::values,
    report::Measurement,
    target::{CheckTarget, Skipped},
};

/// Checks that NCCL loads, makes an id and joins it as the only rank, and that its sum of one
/// gradient is that gradient.
pub(super) fn nccl(target: &CheckTarget<'_>) -> Result<Vec<Measurement>> {
    if let Some(reason) = missing(target) {
        return Err(Skipped(reason).into());
    }
    let weights = policy::embedded::model(0)?
        .weights
        .to(&target.device, candle_core::DType::F32)?;
    let (mut parameters, mut gradients) = (BTreeMap::new(), Gradients::new());
    for (name, weight) in weights.iter() {
        parameters.insert(name.to_owned(), Parameter::new(weight)?);
        gradients.insert(name.to_owned(), weight.affine(2.0, 1.0)?);
    }
    let all = |gradients: &Gradients| -> Result<Vec<f64>> {
        let values = gradients.values().map(values).collect::<Result<Vec<_>>>()?;
        Ok(values.concat())
    };
    let before = all(&gradients)?;
    let after = all(&ranks::sum_alone(&target.device, &parameters, gradients)?)?;
    let changed = before.iter().zip(&after).filter(|(a, b)| a != b).count();
    Ok(vec![
        Measurement::new("values", after.len() as f64, ""),
        Measurement::within(0.0, "changed by the sum", changed as f64),
    ])
}

/// Returns why NCCL cannot be checked here.
fn missing(target: &CheckTarget<'_>) -> Option<String> {
    let Some(cuda) = target
        .diagnosis
        .cuda
        .as_ref()
        .filter(|_| !target.device.is_cpu())
    else {
        return Some("the checks run on the CPU".to_owned());
    };
    let nccl = cuda
        .libraries
        .iter()
        .find(|found| found.library == Library::Nccl)?;
    nccl.path.clone().err()
}
