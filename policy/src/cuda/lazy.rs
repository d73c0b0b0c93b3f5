//! Lazy loading of NVIDIA's libraries: each is opened at the first call of one of its functions.
//!
//! candle links against them, so a plain build does not even start on a machine without CUDA. Here
//! each function is a jump through a slot. At first the slot leads to [`cuda_lazy_bind`], which
//! opens the library and fills the slot (like lazy binding of a PLT).
//!
//! Invariant: a call to a missing library returns an error code that the library itself defines.

use std::ffi::{CStr, CString, c_int, c_void};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::functions::cuda_functions;
use super::library::Library;

/// Finds the function of an entry and stores it in the entry's slot.
///
/// # Safety
/// `entry` is one that `lazy_function!` lays out: a slot, then the function's name.
// Exported by name, so that linkers that read archives in order link this file's code with its
// jumps.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuda_lazy_bind(entry: *const AtomicPtr<c_void>) -> *const c_void {
    // SAFETY: by the layout, which never moves.
    let (slot, name) = unsafe { (&*entry, CStr::from_ptr(entry.add(1).cast())) };
    let function = function(name);
    // A race is harmless: all threads find the same function.
    slot.store(function, Ordering::Release);
    function
}

/// Returns the function of this name in its library, or one that returns an error.
pub(super) fn function(name: &CStr) -> *mut c_void {
    let library = Library::of(&name.to_string_lossy());
    match find(library, name) {
        Some(function) => function.as_ptr(),
        None => refusal(library) as *mut c_void,
    }
}

/// Returns a function that returns an error code of this library. Any other number would be an
/// invalid value of cudarc's enums.
fn refusal(library: Library) -> extern "C" fn() -> c_int {
    extern "C" fn refuse<const CODE: c_int>() -> c_int {
        CODE
    }
    match library {
        // CUDA_ERROR_NO_DEVICE, cudaErrorNoDevice
        Library::Driver | Library::Runtime => refuse::<100>,
        // CUBLAS_STATUS_NOT_INITIALIZED
        Library::Cublas | Library::CublasLt => refuse::<1>,
        // CURAND_STATUS_INITIALIZATION_FAILED
        Library::Curand => refuse::<203>,
        // NVRTC_ERROR_INTERNAL_ERROR
        Library::Nvrtc => refuse::<11>,
        // ncclSystemError
        Library::Nccl => refuse::<2>,
    }
}

/// Returns where the loader found a library, or why it did not.
pub(super) fn path(library: Library) -> Result<PathBuf, String> {
    let handle = open(library).as_ref().map_err(String::clone)?;
    let mut path = [0; libc::PATH_MAX as usize];
    // SAFETY: the handle is open; the origin is a folder of at most PATH_MAX bytes, terminator
    // included.
    let answer = unsafe {
        libc::dlinfo(
            handle.0.as_ptr(),
            libc::RTLD_DI_ORIGIN,
            path.as_mut_ptr().cast(),
        )
    };
    let folder = CStr::from_bytes_until_nul(&path)
        .ok()
        .filter(|_| answer == 0);
    let folder = folder.map(CStr::to_string_lossy).unwrap_or_default();
    Ok(PathBuf::from(folder.as_ref()).join(library.file()))
}

/// Returns the functions that the program may call and this library lacks.
pub(super) fn missing_functions(library: Library) -> Vec<&'static str> {
    let of_library = FUNCTIONS
        .iter()
        .copied()
        .filter(|name| Library::of(name) == library);
    let is_missing =
        |name: &&str| CString::new(*name).is_ok_and(|name| find(library, &name).is_none());
    of_library.filter(is_missing).collect()
}

struct Handle(NonNull<c_void>);

// SAFETY: dlsym may be called on a handle from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

fn find(library: Library, name: &CStr) -> Option<NonNull<c_void>> {
    let handle = open(library).as_ref().ok()?;
    // SAFETY: handles are never closed, and the name ends in 0.
    NonNull::new(unsafe { libc::dlsym(handle.0.as_ptr(), name.as_ptr()) })
}

fn open(library: Library) -> &'static Result<Handle, String> {
    static HANDLES: [OnceLock<Result<Handle, String>>; Library::ALL.len()] =
        [const { OnceLock::new() }; Library::ALL.len()];
    HANDLES[library as usize].get_or_init(|| {
        let file = CString::new(library.file()).map_err(|error| error.to_string())?;
        // SAFETY: the name ends in 0. Opening a library runs NVIDIA's initialisers, as a linked
        // library would.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(Handle).ok_or_else(last_error)
    })
}

fn last_error() -> String {
    // SAFETY: the answer is null or a text that is good until this thread's next call of the
    // loader.
    let text = unsafe { libc::dlerror().as_ref().map(|text| CStr::from_ptr(text)) };
    text.map_or_else(
        || "the loader gives no reason".to_owned(),
        |text| text.to_string_lossy().into_owned(),
    )
}

#[cfg(target_arch = "x86_64")]
macro_rules! lazy_function {
    ($name:ident) => {
        std::arch::global_asm!(
            ".pushsection .data.cuda_lazy, \"aw\"",
            ".p2align 3",
            concat!(
                ".Lentry_",
                stringify!($name),
                ": .quad .Lbind_",
                stringify!($name)
            ),
            concat!(".asciz \"", stringify!($name), "\""),
            ".popsection",
            ".pushsection .text.cuda_lazy, \"ax\", @progbits",
            concat!(".globl ", stringify!($name)),
            concat!(".type ", stringify!($name), ", @function"),
            concat!(
                stringify!($name),
                ": jmp qword ptr [rip + .Lentry_",
                stringify!($name),
                "]"
            ),
            concat!(
                ".Lbind_",
                stringify!($name),
                ": lea r11, [rip + .Lentry_",
                stringify!($name),
                "]"
            ),
            "jmp .Lcuda_lazy_first_call",
            concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
            ".popsection",
        );
    };
}

// Saves the argument registers on the stack while the function is looked up. r11 holds the entry,
// then the function: the calling convention passes no argument in it.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text.cuda_lazy, \"ax\", @progbits",
    ".Lcuda_lazy_first_call:",
    "push rbp",
    "mov rbp, rsp",
    "push rdi",
    "push rsi",
    "push rdx",
    "push rcx",
    "push r8",
    "push r9",
    "sub rsp, 128",
    "movups [rsp], xmm0",
    "movups [rsp + 16], xmm1",
    "movups [rsp + 32], xmm2",
    "movups [rsp + 48], xmm3",
    "movups [rsp + 64], xmm4",
    "movups [rsp + 80], xmm5",
    "movups [rsp + 96], xmm6",
    "movups [rsp + 112], xmm7",
    "mov rdi, r11",
    "call {bind}",
    "mov r11, rax",
    "movups xmm0, [rsp]",
    "movups xmm1, [rsp + 16]",
    "movups xmm2, [rsp + 32]",
    "movups xmm3, [rsp + 48]",
    "movups xmm4, [rsp + 64]",
    "movups xmm5, [rsp + 80]",
    "movups xmm6, [rsp + 96]",
    "movups xmm7, [rsp + 112]",
    "add rsp, 128",
    "pop r9",
    "pop r8",
    "pop rcx",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    "pop rbp",
    "jmp r11",
    ".popsection",
    bind = sym cuda_lazy_bind,
);

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!(
    "feature cuda needs Linux on x86-64: the jumps to NVIDIA's libraries are written for it \
     (policy/src/cuda/lazy.rs)"
);

macro_rules! lazy_functions {
    ($($name:ident)*) => {
        $(lazy_function!($name);)*
        const FUNCTIONS: &[&str] = &[$(stringify!($name),)* "cuModuleLoadData"];
    };
}

cuda_functions!(lazy_functions);

#[cfg(test)]
mod tests {
    use candle_core::cuda_backend::cudarc::nvrtc::compile_ptx;

    use super::*;

    #[test]
    fn a_call_reaches_its_library_or_is_refused() {
        // The one library that has work to do without a GPU. Twice: the first call finds the
        // function, the second has it.
        for _ in 0..2 {
            let compiled =
                compile_ptx("extern \"C\" __global__ void nothing(float* x) { x[0] = 1.0f; }");
            match path(Library::Nvrtc) {
                Ok(_) => assert!(compiled.unwrap().to_src().contains("nothing")),
                Err(reason) => {
                    assert!(reason.contains("libnvrtc.so.13"), "{reason}");
                    assert!(compiled.is_err());
                }
            }
        }
    }

    #[test]
    fn every_library_has_functions_in_the_list() {
        for library in Library::ALL {
            let has_any = FUNCTIONS.iter().any(|name| Library::of(name) == library);
            assert!(has_any, "{library:?}");
        }
    }
}
