//! The weights of a GGUF file under their Hugging Face names, dequantized to f32.
//!
//! Invariant: exactly the tensors of the shape are there, in their shapes, and together they are no
//! larger than the file.

use std::collections::BTreeMap;
use std::io::Cursor;

use candle_core::quantized::gguf_file::{Content, TensorInfo};
use candle_core::{Device, Tensor};

use crate::config::{self, DecoderConfig, Family};
use crate::error::{PolicyError, Result};
use crate::weights::Weights;

pub(super) const EMBEDDING: &str = "token_embd.weight";
pub(super) const HEAD: &str = "output.weight";

/// The parts of a layer: Hugging Face's name and GGUF's.
const PARTS: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// Reads the weights of `config`.
pub(super) fn weights(bytes: &[u8], content: &Content, config: &DecoderConfig) -> Result<Weights> {
    check_sizes(bytes.len(), content)?;
    let mut tensors = BTreeMap::new();
    let mut read = Vec::new();
    for (name, shape) in config.shapes() {
        let source = source(&name);
        let stored = dequantised(bytes, content, &source, &shape)?;
        let tensor = match interleaved_heads(&name, config) {
            Some(heads) => in_halves(&stored, heads)?,
            None => stored,
        };
        tensors.insert(name, tensor);
        read.push(source);
    }
    match content
        .tensor_infos
        .keys()
        .find(|name| !read.contains(name))
    {
        Some(name) => {
            let reason = "is not part of a decoder of this shape; use the Hugging Face folder";
            Err(PolicyError::tensor(name, reason))
        }
        None => Ok(Weights::new(tensors)),
    }
}

/// Returns the header of a tensor.
pub(super) fn info<'a>(content: &'a Content, name: &str) -> Result<&'a TensorInfo> {
    content
        .tensor_infos
        .get(name)
        .ok_or_else(|| PolicyError::tensor(name, "is missing from the GGUF file"))
}

/// Checks that the tensors fit into the file together. Tensors that overlap, or claim more bytes
/// than there are, would cost more memory than the file.
fn check_sizes(file_bytes: usize, content: &Content) -> Result<()> {
    let mut left = file_bytes;
    for (name, info) in &content.tensor_infos {
        let dims = info.shape.dims().iter();
        let elements = dims.copied().try_fold(1, usize::checked_mul);
        let blocks = elements.map(|count| count / info.ggml_dtype.block_size());
        let size = blocks.and_then(|count| count.checked_mul(info.ggml_dtype.type_size()));
        left = size
            .and_then(|size| left.checked_sub(size))
            .ok_or_else(|| {
                let reason =
                    "does not fit into the file beside the others; download the file again";
                PolicyError::tensor(name, reason)
            })?;
    }
    Ok(())
}

fn dequantised(bytes: &[u8], content: &Content, name: &str, shape: &[usize]) -> Result<Tensor> {
    let info = info(content, name)?;
    let found = info.shape.dims();
    if found != shape {
        let reason = format!("has shape {found:?}, but the metadata ask for {shape:?}");
        return Err(PolicyError::tensor(name, reason));
    }
    let start = content.tensor_data_offset;
    info.read(&mut Cursor::new(bytes), start, &Device::Cpu)
        .and_then(|tensor| tensor.dequantize(&Device::Cpu))
        .map_err(|error| PolicyError::tensor(name, error))
}

/// Returns GGUF's name of a Hugging Face weight.
fn source(name: &str) -> String {
    let in_layer = || {
        let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
        let (part, kind) = rest.rsplit_once('.')?;
        let (_, short) = PARTS.iter().find(|(long, _)| *long == part)?;
        Some(format!("blk.{layer}.{short}.{kind}"))
    };
    match name {
        config::EMBEDDING => EMBEDDING.to_owned(),
        "model.norm.weight" => "output_norm.weight".to_owned(),
        config::HEAD => HEAD.to_owned(),
        _ => in_layer().expect("a weight has a name in GGUF: this is a bug"),
    }
}

/// Returns the number of heads of a weight whose rows need reordering. llama.cpp rotates
/// neighbouring values, where Hugging Face rotates a head's first half against its second. For the
/// llama architecture it stores the rows of queries and keys in its order.
fn interleaved_heads(name: &str, config: &DecoderConfig) -> Option<usize> {
    if config.family != Family::Llama {
        None
    } else if name.contains(".q_proj.") {
        Some(config.heads)
    } else if name.contains(".k_proj.") {
        Some(config.kv_heads)
    } else {
        None
    }
}

/// Reorders the rows of each head from pairs of neighbours into two halves.
fn in_halves(tensor: &Tensor, heads: usize) -> Result<Tensor> {
    let pairs = tensor.dim(0)? / heads / 2;
    let halves = tensor.reshape((heads, pairs, 2, ()))?.transpose(1, 2)?;
    Ok(halves.contiguous()?.reshape(tensor.shape())?)
}
