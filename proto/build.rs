//! Compiles the contract with `protox`, so that no `protoc` is needed.

use std::{env, fs, path::PathBuf};

use protox::{
    prost::Message as _,
    prost_reflect::prost_types::{FileDescriptorProto, field_descriptor_proto::Type},
};

#[expect(
    clippy::disallowed_methods,
    reason = "cargo tells build scripts where to write by OUT_DIR"
)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["sqlenv/v1/env.proto", "sqlenv/v1/learner.proto"];
    for file in files {
        println!("cargo:rerun-if-changed={file}");
    }
    let mut descriptors = protox::compile(files, ["."])?;
    // The reflection service shows the contract as it is written.
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.binpb"), descriptors.encode_to_vec())?;
    for file in &mut descriptors.file {
        keep_encoded(file);
    }
    tonic_prost_build::configure()
        .extern_path(ENCODED_GROUP, "crate::EncodedGroup")
        .extern_path(ENCODED_EVALUATION, "crate::EncodedEvaluation")
        .extern_path(REPLAY, "crate::v1::ReplayRequest")
        .bytes(".sqlenv.v1.SnapshotChunk")
        .bytes(".sqlenv.v1.Chunk")
        .bytes(".sqlenv.v1.ModelFile")
        .bytes(".sqlenv.v1.TrainResponse")
        // Records of evaluations contain this message as JSON.
        .type_attribute(
            "sqlenv.v1.RewardComponents",
            "#[derive(serde::Serialize, serde::Deserialize)]",
        )
        .compile_fds(descriptors)?;
    Ok(())
}

const GROUP: &str = ".sqlenv.v1.SubmitRequest";
const EVALUATION: &str = ".sqlenv.v1.SubmitEvaluationRequest";
/// Not in the contract: the Rust types of what actors submit, in its encoding.
const ENCODED_GROUP: &str = ".sqlenv.v1.EncodedGroup";
const ENCODED_EVALUATION: &str = ".sqlenv.v1.EncodedEvaluation";

/// A message whose Rust type is written by hand.
const REPLAY: &str = ".sqlenv.v1.ReplayRequest";

/// Gives submissions the types `EncodedGroup` and `EncodedEvaluation` as the request of a method,
/// and groups `bytes` as a field. Neither changes the wire: a message field and a bytes field are
/// both a length and that many bytes.
fn keep_encoded(file: &mut FileDescriptorProto) {
    for method in file
        .service
        .iter_mut()
        .flat_map(|service| &mut service.method)
    {
        match method.input_type() {
            GROUP => method.input_type = Some(ENCODED_GROUP.to_owned()),
            EVALUATION => method.input_type = Some(ENCODED_EVALUATION.to_owned()),
            _ => {}
        }
    }
    for field in file
        .message_type
        .iter_mut()
        .flat_map(|message| &mut message.field)
    {
        if field.type_name() == GROUP {
            field.type_name = None;
            field.set_type(Type::Bytes);
        }
    }
}
