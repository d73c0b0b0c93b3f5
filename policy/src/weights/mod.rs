//! A decoder's weights: an ordered map from Hugging Face names to tensors, on disk, on the wire and
//! in training.
//!
//! Invariant: names, shapes and file layout are Hugging Face's. The bytes of [`Weights::to_bytes`]
//! depend on the weights alone. Tied embeddings have no `lm_head.weight`.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use candle_core::{DType, Device, Tensor, safetensors::Load};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use safetensors::{SafeTensors, tensor::TensorView};

use crate::config::{DecoderConfig, EMBEDDING, HEAD};
use crate::error::{PolicyError, Result};
use crate::weight_files::{self, FILE};
use crate::{durable, regular_file};

mod file_view;

/// A decoder's weights by name.
#[derive(Clone, Debug, Default)]
pub struct Weights(BTreeMap<String, Tensor>);

impl Weights {
    /// Builds weights of tensors by name, without a check.
    pub fn new(tensors: BTreeMap<String, Tensor>) -> Self {
        Self(tensors)
    }

    /// Reads `model.safetensors`, or the shards that `model.safetensors.index.json` names, to a
    /// device and dtype. Checks names, shapes and sizes against `config` before it reads a weight,
    /// and then that every value is finite.
    ///
    /// # Errors
    /// [`PolicyError::File`] names the file that is missing or damaged, or that lacks a weight.
    pub fn load(dir: &Path, config: &DecoderConfig, device: &Device, dtype: DType) -> Result<Self> {
        let mut weights = Self::default();
        let load = |name: &str, view: TensorView<'_>| {
            let tensor = view.load(&Device::Cpu)?;
            weight_files::check_finite(name, &tensor)?;
            Ok(tensor.to_device(device)?.to_dtype(dtype)?)
        };
        for path in weight_files::checked(dir, config)? {
            let bytes = regular_file::read(&path, u64::MAX)
                .map_err(|error| PolicyError::file(&path, error))?;
            let part = Self::read(&bytes, load).map_err(|error| PolicyError::file(&path, error))?;
            weights.0.extend(part.0);
        }
        weights
            .fitted(config)
            .map_err(|error| PolicyError::file(dir, error))
    }

    /// Returns the weights on a device and in a dtype. Those that are there already are shared, not
    /// copied.
    ///
    /// # Errors
    /// The device has no memory for them.
    pub fn to(&self, device: &Device, dtype: DType) -> Result<Self> {
        // Each opened GPU has a stream of its own (`device.rs`), and nothing orders two of them.
        let is_between_streams = |weight: &Tensor| {
            weight.device().is_cuda() && device.is_cuda() && !weight.device().same_device(device)
        };
        if let Some(weight) = self.0.values().find(|weight| is_between_streams(weight)) {
            let source = weight.device().clone();
            let converted = self.each(|weight| Ok(weight.to_dtype(dtype)?))?;
            source.synchronize()?;
            let moved = converted.each(|weight| Ok(weight.to_device(device)?))?;
            device.synchronize()?;
            return Ok(moved);
        }
        // Narrow before the transfer: bf16 is half the bytes.
        self.each(|weight| Ok(weight.to_dtype(dtype)?.to_device(device)?))
    }

    fn each(&self, work: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let one = |(name, tensor): (&str, &Tensor)| Ok((name.to_owned(), work(tensor)?));
        self.iter().map(one).collect::<Result<_>>().map(Self)
    }

    /// Reads the bytes of one safetensors file.
    ///
    /// # Errors
    /// The bytes are not a safetensors file.
    pub fn from_bytes(bytes: &[u8], device: &Device, dtype: DType) -> Result<Self> {
        Self::read(bytes, |_, view| Ok(view.load(device)?.to_dtype(dtype)?))
    }

    /// Reads the bytes of one safetensors file to the CPU, in the dtypes of the file. Nothing is
    /// converted, so that bf16 weights reach an engine that computes in bf16 without being widened.
    ///
    /// # Errors
    /// Where the bytes are not a safetensors file.
    pub fn from_bytes_as_stored(bytes: &[u8]) -> Result<Self> {
        Self::read(bytes, |_, view| Ok(view.load(&Device::Cpu)?))
    }

    fn read(bytes: &[u8], load: impl Fn(&str, TensorView<'_>) -> Result<Tensor>) -> Result<Self> {
        let file = SafeTensors::deserialize(bytes)
            .map_err(|error| PolicyError::Usage(format!("not a safetensors file: {error}")))?;
        let tensors = file.tensors().into_iter();
        let load = |(name, view): (String, _)| {
            let tensor = load(&name, view)?;
            Ok((name, tensor))
        };
        tensors.map(load).collect::<Result<_>>().map(Self)
    }

    /// Returns the bytes of one safetensors file with the metadata `format: pt`, which transformers
    /// asks for.
    ///
    /// # Errors
    /// A dtype has no safetensors counterpart, or the device has failed.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        if let Some(weight) = self.0.values().next() {
            // On a failed device the copies below would panic.
            weight.device().synchronize()?;
        }
        let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let views = self.iter().map(|(name, it)| (name, file_view::view(it)));
        safetensors::serialize(views, Some(metadata))
            .map_err(|error| PolicyError::Usage(format!("cannot write weights: {error}")))
    }

    /// Writes and syncs `model.safetensors` in an existing folder. [`crate::Model::save`] replaces
    /// whole folders.
    ///
    /// # Errors
    /// [`PolicyError::Unwritable`] names the file that cannot be written.
    pub fn save(&self, dir: &Path) -> Result<()> {
        let path = dir.join(FILE);
        durable::write(&path, &self.to_bytes()?)
            .and_then(|()| durable::sync(dir))
            .map_err(PolicyError::unwritable(&path))
    }

    /// Draws random weights for training from scratch: norms 1, biases 0, the embedding with a
    /// standard deviation of 0.07, matrices with 1 / sqrt(fan-in). Matrices that write to the
    /// residual stream get half of that, divided by sqrt(layers). f32 on the CPU; the same bits on
    /// every machine.
    pub fn random(config: &DecoderConfig, seed: u64) -> Result<Self> {
        let mut tensors = BTreeMap::new();
        for (index, (name, shape)) in config.shapes().into_iter().enumerate() {
            let count = shape.iter().product();
            let values = if name.ends_with("norm.weight") {
                vec![1.0; count]
            } else if name.ends_with(".bias") {
                vec![0.0; count]
            } else {
                let scale = standard_deviation(config, &name, shape[1]);
                let values = normals(seed, index as u64, count, scale);
                values.ok_or_else(|| {
                    let reason = format!("has {count} values, for which there is no memory");
                    PolicyError::tensor(&name, reason)
                })?
            };
            tensors.insert(name, Tensor::from_vec(values, shape, &Device::Cpu)?);
        }
        Ok(Self(tensors))
    }

    /// Checks that exactly the weights of `config` are there, in their shapes. An `lm_head.weight`
    /// of a tied model is dropped if it equals the embedding.
    ///
    /// # Errors
    /// [`PolicyError::Tensor`] names the first that is missing, misshaped or unknown, or the head
    /// of a tied model that differs from the embedding.
    pub fn fitted(mut self, config: &DecoderConfig) -> Result<Self> {
        if config.tie_word_embeddings
            && let Some(head) = self.0.remove(HEAD)
            && !is_equal(&head, self.get(EMBEDDING)?)?
        {
            let reason = format!(
                "differs from {EMBEDDING}, but config.json ties the two; set tie_word_embeddings \
                 to false there to use this head, or remove it from the file"
            );
            return Err(PolicyError::tensor(HEAD, reason));
        }
        let shape = |(name, tensor): (&String, &Tensor)| (name.clone(), tensor.dims().to_vec());
        config.check_shapes(&self.0.iter().map(shape).collect())?;
        Ok(self)
    }

    /// Returns the weight of this name.
    ///
    /// # Errors
    /// [`PolicyError::Tensor`] if there is none.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        self.0
            .get(name)
            .ok_or_else(|| PolicyError::tensor(name, "is missing; config.json asks for it"))
    }

    /// Returns the dtype of the weights; none if they have several, or there are none.
    pub fn dtype(&self) -> Option<DType> {
        let mut dtypes = self.0.values().map(Tensor::dtype);
        let first = dtypes.next()?;
        dtypes.all(|dtype| dtype == first).then_some(first)
    }

    /// Iterates over all weights, in the order of names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.0.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }
}

/// Returns whether two tensors have the same values.
fn is_equal(left: &Tensor, right: &Tensor) -> Result<bool> {
    if left.dims() != right.dims() {
        return Ok(false);
    }
    let [left, right] = [
        left.to_device(&Device::Cpu)?,
        right.to_device(&Device::Cpu)?,
    ];
    let differs = left.ne(&right.to_dtype(left.dtype())?)?;
    Ok(differs.max_all()?.to_scalar::<u8>()? == 0)
}

fn standard_deviation(config: &DecoderConfig, name: &str, fan_in: usize) -> f64 {
    if name == EMBEDDING {
        return 0.07;
    }
    let scale = 1.0 / (fan_in as f64).sqrt();
    if name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight") {
        0.5 * scale / (config.layers as f64).sqrt()
    } else {
        scale
    }
}

/// Draws normal numbers by the method of Box and Muller, from a stream of its own for each tensor.
/// Returns nothing if there is no memory for them.
fn normals(seed: u64, stream: u64, count: usize, standard_deviation: f64) -> Option<Vec<f32>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(stream);
    // In (0, 1), so that the logarithm is finite.
    let mut uniform = || ((rng.next_u64() >> 12) as f64 + 0.5) / (1_u64 << 52) as f64;
    let mut values = Vec::new();
    values.try_reserve_exact(count + 1).ok()?;
    while values.len() < count {
        let radius = standard_deviation * (-2.0 * libm::log(uniform())).sqrt();
        let angle = std::f64::consts::TAU * uniform();
        values.push((radius * libm::cos(angle)) as f32);
        values.push((radius * libm::sin(angle)) as f32);
    }
    values.truncate(count);
    Some(values)
}

#[cfg(test)]
mod tests;
