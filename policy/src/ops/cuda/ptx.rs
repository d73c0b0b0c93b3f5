//! The kernels of this folder as PTX, which `policy/build.rs` compiles from the `.cu` files.

/// The modules by name. Each is the PTX of the `.cu` file of that name. [`crate::cuda`] replaces it
/// by machine code if the program carries that.
pub(crate) const MODULES: [(&str, &str); 6] = [
    (
        "matmul",
        include_str!(concat!(env!("OUT_DIR"), "/matmul.ptx")),
    ),
    (
        "attention",
        include_str!(concat!(env!("OUT_DIR"), "/attention.ptx")),
    ),
    (
        "attention_backward",
        include_str!(concat!(env!("OUT_DIR"), "/attention_backward.ptx")),
    ),
    (
        "optimizer",
        include_str!(concat!(env!("OUT_DIR"), "/optimizer.ptx")),
    ),
    ("rows", include_str!(concat!(env!("OUT_DIR"), "/rows.ptx"))),
    (
        "logprobs",
        include_str!(concat!(env!("OUT_DIR"), "/logprobs.ptx")),
    ),
];

/// Returns the PTX of a module.
pub(super) fn text(name: &str) -> &'static str {
    let module = MODULES.iter().find(|(module, _)| *module == name);
    module
        .expect("every module is in the list: this is a bug")
        .1
}
