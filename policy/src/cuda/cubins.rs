//! The kernels, candle's and those of `policy/src/ops/cuda`, as machine code (cubins), so that no
//! driver has to compile them at their first use.
//!
//! candle passes the driver PTX, its own and ours, one module at a time, through
//! `cuModuleLoadData`, which this file defines (see [`super::lazy`]). If the program carries the
//! machine code of that PTX, the driver gets it first. The PTX follows only if the driver refuses
//! the cubin (a GPU of another family, an older driver).
//!
//! Invariant: a cubin is loaded only for the PTX that it was compiled from; length and CRC-32
//! identify the PTX.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use candle_core::cuda_backend::cudarc::driver::sys::{CUmodule, CUresult};

use super::lazy;

/// Modules loaded so far: as cubins, and as PTX that the driver compiled.
static LOADED: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

/// Returns how many modules this process has loaded: (as cubins, as PTX that the driver compiled).
pub(super) fn loaded() -> (u32, u32) {
    let [cubins, compiled] = LOADED.each_ref().map(|count| count.load(Ordering::Relaxed));
    (cubins, compiled)
}

type Load = unsafe extern "C" fn(*mut CUmodule, *const c_void) -> CUresult;

/// Replaces the driver's function of this name.
///
/// # Safety
/// As of the driver: `image` is PTX that ends in 0, a cubin or a fatbin.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult {
    let function = lazy::function(c"cuModuleLoadData");
    // SAFETY: it is the driver's function, or a refusal, which reads no argument.
    let load: Load = unsafe { std::mem::transmute(function) };
    // SAFETY: as the caller's.
    let cubin = unsafe { embedded_cubin(image.cast()) };
    let (image_kind, answer) = load_first(cubin, |cubin| {
        let image = cubin.map_or(image, |cubin| cubin.as_ptr().cast());
        // SAFETY: the module is the caller's; the image is too, or a cubin that ptxas wrote.
        unsafe { load(module, image) }
    });
    if answer == CUresult::CUDA_SUCCESS {
        LOADED[image_kind as usize].fetch_add(1, Ordering::Relaxed);
    }
    answer
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModuleImage {
    Cubin,
    Ptx,
}

/// Loads the cubin, and if there is none or the driver refuses it, the caller's image.
fn load_first(
    cubin: Option<&[u8]>,
    mut load: impl FnMut(Option<&[u8]>) -> CUresult,
) -> (ModuleImage, CUresult) {
    if cubin.is_some() {
        match load(cubin) {
            CUresult::CUDA_SUCCESS => return (ModuleImage::Cubin, CUresult::CUDA_SUCCESS),
            answer => tracing::warn!(
                ?answer,
                "the driver refuses the embedded cubin and compiles the PTX instead"
            ),
        }
    }
    (ModuleImage::Ptx, load(None))
}

/// Returns the cubin of this image if the program carries it.
///
/// # Safety
/// `image` has two bytes or more; if they begin a comment it is text that ends in 0.
unsafe fn embedded_cubin(image: *const c_char) -> Option<&'static [u8]> {
    // SAFETY: the caller's.
    let is_text = unsafe { image.cast::<[u8; 2]>().read() } == *b"//";
    if !is_text {
        return None;
    }
    // SAFETY: as above.
    let key = key(unsafe { CStr::from_ptr(image) }.to_bytes());
    let cubins = cubins();
    let found = cubins.iter().find(|(of, _)| of.trim() == key);
    found.map(|&(_, cubin)| cubin)
}

/// Returns the key of a PTX text, as deploy/cuda/kernels.sh writes it.
fn key(text: &[u8]) -> String {
    format!("{} {}", text.len(), crc32fast::hash(text))
}

#[cfg(not(feature = "cubins"))]
fn cubins() -> [(&'static str, &'static [u8]); 0] {
    []
}

/// Returns the key of each module, candle's and then ours, with its cubin from ptxas.
#[cfg(feature = "cubins")]
fn cubins() -> [(&'static str, &'static [u8]); 17] {
    /// The alignment that sections of an ELF file need.
    #[repr(C, align(16))]
    struct Aligned<T: ?Sized>(T);

    macro_rules! cubins {
        ($($name:literal)*) => {
            [$({
                static CUBIN: &Aligned<[u8]> =
                    &Aligned(*include_bytes!(concat!(env!("SQLENV_CUBINS"), "/", $name, ".cubin")));
                let key = include_str!(concat!(env!("SQLENV_CUBINS"), "/", $name, ".key"));
                (key, &CUBIN.0)
            }),*]
        };
    }
    cubins!("affine" "binary" "cast" "conv" "fill" "indexing" "quantized" "reduce" "sort" "ternary"
            "unary" "matmul" "attention" "attention_backward" "optimizer" "rows" "logprobs")
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use candle_core::cuda_backend::cudarc::driver::result;
    use candle_core::cuda_backend::kernels;

    use super::*;
    use crate::ops::cuda::ptx;

    fn cubin_for(image: &str) -> Option<&'static [u8]> {
        let image = CString::new(image).unwrap();
        // SAFETY: it ends in 0.
        unsafe { embedded_cubin(image.as_ptr()) }
    }

    const CANDLES: [kernels::Module; 11] = [
        kernels::AFFINE,
        kernels::BINARY,
        kernels::CAST,
        kernels::CONV,
        kernels::FILL,
        kernels::INDEXING,
        kernels::QUANTIZED,
        kernels::REDUCE,
        kernels::SORT,
        kernels::TERNARY,
        kernels::UNARY,
    ];

    /// Each kernel of the PTX is in the cubin that is embedded for it.
    #[test]
    fn machine_code_is_that_of_the_text() {
        assert_eq!(CANDLES.len(), kernels::ALL_IDS.len());
        let candles = CANDLES.map(|module| module.ptx());
        let ours = ptx::MODULES.map(|(_, text)| text);
        for text in candles.into_iter().chain(ours) {
            let cubin = cubin_for(text);
            assert_eq!(cubin.is_some(), cfg!(feature = "cubins"));
            let Some(cubin) = cubin else { continue };
            assert_eq!(&cubin[..4], b"\x7fELF");
            let names = String::from_utf8_lossy(cubin);
            let entries = text.lines().filter_map(|line| line.split(".entry ").nth(1));
            let mut count = 0;
            for entry in entries {
                let name = entry.trim_end_matches(['(', ')', ' ']);
                assert!(names.contains(&format!(".text.{name}\0")), "{name}");
                count += 1;
            }
            assert!(count > 0);
        }
    }

    #[test]
    fn other_images_are_left_alone() {
        let ptx = kernels::UNARY.ptx();
        let others = [&ptx[..ptx.len() - 1], &format!("{ptx} "), "\u{7f}ELF", "//"];
        assert!(others.into_iter().all(|other| cubin_for(other).is_none()));
    }

    /// Without a driver, without a device, before it is initialised or without a context.
    #[test]
    fn a_call_of_cudarcs_is_refused_by_an_error_of_the_drivers() {
        let image = CString::new(kernels::FILL.ptx()).unwrap();
        // SAFETY: it ends in 0.
        let answer = unsafe { result::module::load_data(image.as_ptr().cast()) };
        let refused = [
            CUresult::CUDA_ERROR_NO_DEVICE,
            CUresult::CUDA_ERROR_NOT_INITIALIZED,
            CUresult::CUDA_ERROR_INVALID_CONTEXT,
        ];
        assert!(answer.is_err_and(|error| refused.contains(&error.0)));
    }

    /// The driver gets the cubin before the PTX, and the PTX if it refuses the cubin.
    #[test]
    fn a_refused_image_is_compiled_by_the_driver() {
        const REFUSED: CUresult = CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU;
        const LOADED: CUresult = CUresult::CUDA_SUCCESS;
        let cubin: Option<&[u8]> = Some(b"cubin");
        let cases = [
            (cubin, vec![LOADED], ModuleImage::Cubin, vec![cubin]),
            (
                cubin,
                vec![REFUSED, LOADED],
                ModuleImage::Ptx,
                vec![cubin, None],
            ),
            (
                cubin,
                vec![REFUSED, REFUSED],
                ModuleImage::Ptx,
                vec![cubin, None],
            ),
            (None, vec![LOADED], ModuleImage::Ptx, vec![None]),
        ];
        for (cubin, answers, image_kind, expected) in cases {
            let last = answers[answers.len() - 1];
            let mut images = Vec::new();
            let mut answers = answers.into_iter();
            let found = load_first(cubin, |image| {
                images.push(image.map(<[u8]>::to_vec));
                answers.next().unwrap()
            });
            assert_eq!(found, (image_kind, last));
            let expected: Vec<_> = expected
                .into_iter()
                .map(|image| image.map(<[u8]>::to_vec))
                .collect();
            assert_eq!(images, expected);
        }
    }
}
