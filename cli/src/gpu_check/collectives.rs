//! What one device can show of the sums over several.

use std::collections::BTreeMap;

use anyhow::Result;
use learner::{
    optimizer::{Gradients, Parameter},
    ranks,
};
use policy::cuda::Library;

use super::{Skipped, Subject, parity::values, report::Figure};

/// A world of one: NCCL loads, makes an id and joins it, and its sum is what went in (for one rank it has nothing to add).
pub(super) fn nccl(subject: &Subject<'_>) -> Result<Vec<Figure>> {
    if let Some(reason) = absent(subject) {
        return Err(Skipped(reason).into());
    }
    let weights = policy::tiny::model(0)?
        .weights
        .to(&subject.device, candle_core::DType::F32)?;
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
    let after = all(&ranks::sum_alone(&subject.device, &parameters, gradients)?)?;
    let changed = before.iter().zip(&after).filter(|(a, b)| a != b).count();
    Ok(vec![
        Figure::of("values", after.len() as f64, ""),
        Figure::within(0.0, "changed by the sum", changed as f64),
    ])
}

fn absent(subject: &Subject<'_>) -> Option<String> {
    let Some(cuda) = subject
        .diagnosis
        .cuda
        .as_ref()
        .filter(|_| !subject.device.is_cpu())
    else {
        return Some("the checks run on the CPU".to_owned());
    };
    let nccl = cuda
        .libraries
        .iter()
        .find(|found| found.library == Library::Nccl)?;
    nccl.path.clone().err()
}
