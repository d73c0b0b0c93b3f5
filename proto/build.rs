//! Compiles the contract with `protox`, so that no `protoc` is needed.

use std::{env, fs, path::PathBuf};

#[expect(
    clippy::disallowed_methods,
    reason = "cargo tells build scripts where to write by OUT_DIR"
)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["sqlenv/v1/env.proto", "sqlenv/v1/learner.proto"];
    for file in files {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile(files, ["."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(
        out.join("descriptors.binpb"),
        protox::prost::Message::encode_to_vec(&descriptors),
    )?;
    tonic_prost_build::configure()
        // Records of evaluations contain this message as JSON.
        .type_attribute(
            "sqlenv.v1.RewardComponents",
            "#[derive(serde::Serialize, serde::Deserialize)]",
        )
        .compile_fds(descriptors)?;
    Ok(())
}
