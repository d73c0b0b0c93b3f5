//! candle's kernels as machine code, so that no driver has to compile them at their first use.
//!
//! candle hands the driver PTX, a module's text at a time, by a function that is ours to answer (see [`super::lazy`]). Where
//! the program carries the machine code of that very text, the driver gets it; the text follows only where the driver refuses
//! (a GPU of another family, an older driver).
//!
//! Invariant: what the driver loads is the module that candle asked for.

use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use candle_core::cuda_backend::cudarc::driver::sys::{CUmodule, CUresult};

use super::lazy;

/// Modules loaded so far as machine code, and those that the driver compiled.
static LOADED: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

/// How many modules of kernels this process has loaded: (as machine code, compiled by the driver).
pub(super) fn loaded() -> (u32, u32) {
    let [carried, compiled] = LOADED.each_ref().map(|count| count.load(Ordering::Relaxed));
    (carried, compiled)
}

type Load = unsafe extern "C" fn(*mut CUmodule, *const c_void) -> CUresult;

/// The driver's function of this name.
///
/// # Safety
/// The driver's: `image` is PTX that ends in 0, a cubin or a fatbin.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult {
    let function = lazy::function(c"cuModuleLoadData");
    // SAFETY: it is the driver's function, or a refusal, which reads no argument.
    let load: Load = unsafe { std::mem::transmute(function) };
    // SAFETY: as the caller's.
    let carried = unsafe { carried(image.cast()) };
    let (how, answer) = load_first(carried, |carried| {
        let image = carried.map_or(image, |cubin| cubin.as_ptr().cast());
        // SAFETY: the module is the caller's; the image is too, or a cubin that ptxas wrote.
        unsafe { load(module, image) }
    });
    if answer == CUresult::CUDA_SUCCESS {
        LOADED[how as usize].fetch_add(1, Ordering::Relaxed);
    }
    answer
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Carried,
    Compiled,
}

/// Loads the carried image, and where there is none or the driver refuses it, the caller's.
fn load_first(
    carried: Option<&[u8]>,
    mut load: impl FnMut(Option<&[u8]>) -> CUresult,
) -> (How, CUresult) {
    if carried.is_some() && load(carried) == CUresult::CUDA_SUCCESS {
        return (How::Carried, CUresult::CUDA_SUCCESS);
    }
    (How::Compiled, load(None))
}

/// The machine code of this image, where it is one of candle's modules.
///
/// # Safety
/// `image` is text that ends in 0, or anything that is no beginning of candle's modules.
unsafe fn carried(image: *const c_char) -> Option<&'static [u8]> {
    let is_image = |(ptx, _): &(&str, &[u8])| {
        let mut bytes = ptx.bytes().chain([0]).enumerate();
        // SAFETY: the first byte that differs ends it, and a shorter text differs where it ends.
        bytes.all(|(at, byte)| unsafe { image.add(at).read() }.cast_unsigned() == byte)
    };
    cubins()
        .iter()
        .find(|cubin| is_image(cubin))
        .map(|&(_, cubin)| cubin)
}

#[cfg(not(feature = "cubins"))]
fn cubins() -> [(&'static str, &'static [u8]); 0] {
    []
}

/// PTX of candle's modules, and what ptxas makes of it (deploy/cuda/kernels.sh).
#[cfg(feature = "cubins")]
fn cubins() -> [(&'static str, &'static [u8]); 11] {
    use candle_core::cuda_backend::kernels;

    /// Aligned as sections of an ELF file want it.
    #[repr(C, align(16))]
    struct Aligned<T: ?Sized>(T);

    macro_rules! cubin {
        ($module:ident, $file:literal) => {{
            static CUBIN: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(
                env!("SQLENV_CUBINS"),
                "/",
                $file,
                ".cubin"
            )));
            (kernels::$module.ptx(), &CUBIN.0)
        }};
    }
    [
        cubin!(AFFINE, "affine"),
        cubin!(BINARY, "binary"),
        cubin!(CAST, "cast"),
        cubin!(CONV, "conv"),
        cubin!(FILL, "fill"),
        cubin!(INDEXING, "indexing"),
        cubin!(QUANTIZED, "quantized"),
        cubin!(REDUCE, "reduce"),
        cubin!(SORT, "sort"),
        cubin!(TERNARY, "ternary"),
        cubin!(UNARY, "unary"),
    ]
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use candle_core::cuda_backend::cudarc::driver::result;
    use candle_core::cuda_backend::kernels;

    use super::*;

    fn carried_for(image: &str) -> Option<&'static [u8]> {
        let image = CString::new(image).unwrap();
        // SAFETY: it ends in 0.
        unsafe { carried(image.as_ptr()) }
    }

    #[test]
    fn only_candles_own_text_has_machine_code() {
        let ptx = kernels::UNARY.ptx();
        let elf = carried_for(ptx).map(|cubin| &cubin[..4]);
        let expected = cfg!(feature = "cubins").then_some(&b"\x7fELF"[..]);
        assert_eq!(elf, expected);
        for other in [
            &ptx[..ptx.len() - 1],
            &format!("{ptx} "),
            &ptx[1..],
            "\u{7f}ELF",
            "",
        ] {
            assert_eq!(carried_for(other), None);
        }
    }

    /// Here without a driver, there without a context.
    #[test]
    fn a_call_of_cudarcs_is_refused_by_an_error_of_the_drivers() {
        let image = CString::new(kernels::FILL.ptx()).unwrap();
        // SAFETY: it ends in 0.
        let answer = unsafe { result::module::load_data(image.as_ptr().cast()) };
        let refused = [
            CUresult::CUDA_ERROR_NO_DEVICE,
            CUresult::CUDA_ERROR_INVALID_CONTEXT,
        ];
        assert!(answer.is_err_and(|error| refused.contains(&error.0)));
    }

    #[test]
    fn every_module_of_candle_is_carried() {
        if cfg!(feature = "cubins") {
            assert_eq!(cubins().len(), kernels::ALL_IDS.len());
        }
    }

    /// The driver is given machine code before text, and text where it refuses.
    #[test]
    fn a_refused_image_is_compiled_by_the_driver() {
        const REFUSED: CUresult = CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU;
        const LOADED: CUresult = CUresult::CUDA_SUCCESS;
        let cubin: Option<&[u8]> = Some(b"cubin");
        let cases = [
            (cubin, vec![LOADED], How::Carried, vec![cubin]),
            (
                cubin,
                vec![REFUSED, LOADED],
                How::Compiled,
                vec![cubin, None],
            ),
            (
                cubin,
                vec![REFUSED, REFUSED],
                How::Compiled,
                vec![cubin, None],
            ),
            (None, vec![LOADED], How::Compiled, vec![None]),
        ];
        for (carried, answers, how, expected) in cases {
            let last = answers[answers.len() - 1];
            let mut images = Vec::new();
            let mut answers = answers.into_iter();
            let found = load_first(carried, |image| {
                images.push(image.map(<[u8]>::to_vec));
                answers.next().unwrap()
            });
            assert_eq!(found, (how, last));
            let expected: Vec<_> = expected
                .into_iter()
                .map(|image| image.map(<[u8]>::to_vec))
                .collect();
            assert_eq!(images, expected);
        }
    }
}
