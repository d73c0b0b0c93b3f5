//! Compiles the CUDA kernels of `src/ops/cuda` to PTX, which `src/ops/cuda/ptx.rs` embeds. It does
//! nothing without the feature `cuda`.

use std::{env, ffi::OsString, fs, path::Path, path::PathBuf, process::Command, thread};

/// Relative to the crate's folder, in which cargo starts this program: an `assert` in a kernel adds
/// the path of its file to the PTX, which should not say where the repository is.
const FOLDER: &str = "src/ops/cuda";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    let (compiler, kernels) = (&Compiler::new(), kernels());
    let mut errors: Vec<String> = thread::scope(|scope| {
        let start = |kernel| scope.spawn(move || compiler.compile(kernel));
        let threads: Vec<_> = kernels.iter().map(|kernel| start(kernel)).collect();
        let results = threads.into_iter().map(|it| it.join().expect("no panic"));
        results.filter_map(Result::err).collect()
    });
    // A compiler that is missing is missing for each kernel.
    errors.dedup();
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}

/// Returns the paths of the kernels, and makes cargo watch them and what they include.
fn kernels() -> Vec<PathBuf> {
    // ptx.rs lists the modules, so a new file changes it. The other Rust files do not matter here.
    println!("cargo:rerun-if-changed={FOLDER}/ptx.rs");
    let entries = fs::read_dir(FOLDER).expect("the repository has the folder");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("the folder can be read").path())
        .filter(|path| path.extension().is_some_and(|it| it == "cu" || it == "cuh"))
        .collect();
    for path in &paths {
        println!("cargo:rerun-if-changed={}", path.display());
    }
    paths.retain(|path| path.extension().is_some_and(|it| it == "cu"));
    paths
}

struct Compiler {
    nvcc: OsString,
    architecture: String,
    out: PathBuf,
}

impl Compiler {
    fn new() -> Self {
        println!("cargo:rerun-if-env-changed=CUDA_HOME");
        println!("cargo:rerun-if-env-changed=CUDA_COMPUTE_CAP");
        let nvcc = env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("bin/nvcc"));
        let capability = env::var_os("CUDA_COMPUTE_CAP").unwrap_or("90".into());
        let capability = capability.to_string_lossy();
        // `90a` allows instructions that only GPUs of that family have. The kernels use none.
        let number = capability.trim_end_matches(|last: char| last.is_ascii_alphabetic());
        let is_supported = number.parse().is_ok_and(|number: u32| number >= 80);
        assert!(
            is_supported,
            "CUDA_COMPUTE_CAP is {capability:?}, and the kernels need 80 or more"
        );
        Self {
            nvcc: nvcc.unwrap_or("nvcc".into()).into(),
            architecture: format!("-arch=compute_{number}"),
            out: env::var_os("OUT_DIR").expect("cargo sets it").into(),
        }
    }

    /// Writes the PTX of a kernel's file.
    fn compile(&self, kernel: &Path) -> Result<(), String> {
        let name = kernel.file_stem().expect("a file has a name");
        let ptx = self.out.join(name).with_extension("ptx");
        let mut command = Command::new(&self.nvcc);
        // Whether the compiler fuses a multiplication and an addition would depend on the code
        // around them, and with it the bits of two kernels that must agree.
        let flags = ["-ptx", "-O3", "-std=c++17", "-fmad=false"];
        command.args(flags).arg(&self.architecture);
        let output = command.arg("-o").arg(ptx).arg(kernel).output();
        let (nvcc, kernel) = (self.nvcc.display(), kernel.display());
        let output = output.map_err(|error| {
            format!("cannot run {nvcc}: {error}; `make cuda` installs NVIDIA's compiler and builds")
        })?;
        let messages = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            let status = output.status;
            return Err(format!("{nvcc} fails for {kernel} ({status}):\n{messages}"));
        }
        for line in messages.lines() {
            println!("cargo:warning={line}");
        }
        Ok(())
    }
}
