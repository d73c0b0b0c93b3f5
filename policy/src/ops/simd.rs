//! SIMD over sixteen f32 lanes, with the same bits on every machine.
//!
//! Invariant: a kernel is written once, over [`Simd`], and uses only operations that IEEE 754
//! rounds in one way. So AVX-512, AVX2+FMA and the portable lanes return identical bits.
//! [`dispatch`] picks the widest set of the CPU; nothing else names the lane types.

use std::cell::Cell;

/// Lanes of a [`Simd`] value, the same on every machine: the width of the widest set, so that all
/// sets sum in the same 16 chains.
pub(crate) const LANES: usize = 16;

/// Sixteen f32 lanes.
pub(crate) trait Simd: Copy {
    /// Rows of the matrix-multiplication tile, chosen so that its accumulators fit the registers.
    const TILE_ROWS: usize;
    /// Lane vectors (16 columns each) of that tile: 1 or 2.
    const TILE_VECTORS: usize;
    /// The same for products of bf16, which have two accumulators for each vector of a row.
    const PAIR_ROWS: usize;
    const PAIR_VECTORS: usize;

    fn splat(x: f32) -> Self;
    fn load(x: &[f32; LANES]) -> Self;
    /// Widens pairs of bf16: the low halves and the high halves.
    fn load_pairs(x: &[u32; LANES]) -> (Self, Self);
    fn store(self, out: &mut [f32; LANES]);
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// Returns `self * factor + term`, rounded once.
    fn fma(self, factor: Self, term: Self) -> Self;
    /// Returns `self` where it is greater, else `other` (also where either is NaN).
    fn max(self, other: Self) -> Self;
    /// Returns `self` where it is less, else `other` (also where either is NaN).
    fn min(self, other: Self) -> Self;
    /// Returns `self`, but zero where `x < limit`.
    fn zero_where_below(self, x: Self, limit: Self) -> Self;
    /// Adds the low bits of `n` to the exponent field of `self`.
    fn add_exponent(self, n: Self) -> Self;

    /// Loads up to 16 values and fills the other lanes with `fill`.
    #[inline(always)]
    fn load_some(x: &[f32], fill: f32) -> Self {
        if let Some(whole) = x.first_chunk() {
            return Self::load(whole);
        }
        let mut lanes = [fill; LANES];
        lanes[..x.len()].copy_from_slice(x);
        Self::load(&lanes)
    }

    /// Stores as many of the first lanes as `out` holds.
    #[inline(always)]
    fn store_some(self, out: &mut [f32]) {
        if let Some(whole) = out.first_chunk_mut() {
            return self.store(whole);
        }
        let lanes = self.lanes();
        out.copy_from_slice(&lanes[..out.len()]);
    }

    #[inline(always)]
    fn lanes(self) -> [f32; LANES] {
        let mut lanes = [0.0; LANES];
        self.store(&mut lanes);
        lanes
    }

    /// Returns the sum of the lanes as a tree: 8 + 8, 4 + 4, 2 + 2, 1 + 1.
    #[inline(always)]
    fn sum_lanes(self) -> f32 {
        let mut lanes = self.lanes();
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                lanes[i] += lanes[i + half];
            }
        }
        lanes[0]
    }

    #[inline(always)]
    fn max_lane(self) -> f32 {
        let lanes = self.lanes();
        lanes[1..]
            .iter()
            .fold(lanes[0], |max, &x| if x > max { x } else { max })
    }
}

/// A computation written over any lanes.
pub(crate) trait Kernel {
    type Output;
    /// Runs the computation. Every implementation is `#[inline(always)]`, so that it is compiled
    /// with the instruction set of the lanes.
    fn run<S: Simd>(self) -> Self::Output;
}

/// An instruction set that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstructionSet {
    /// AVX-512, and tiles for products of bf16 (x86-64 AMX-BF16).
    Amx,
    /// AVX-512, and sums of two products of bf16 (x86-64 AVX512-BF16).
    Avx512Bf16,
    /// 512-bit registers (x86-64 AVX-512F).
    Avx512,
    /// 256-bit registers with fused multiply-add (x86-64 AVX2 and FMA).
    Avx2,
    /// `f32::mul_add` on arrays, for the compiler to vectorise.
    Portable,
}

impl InstructionSet {
    /// Returns the sets that this CPU has, widest first.
    pub fn available() -> Vec<Self> {
        let mut sets = Vec::with_capacity(5);
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                if super::amx_permission::Permission::of_process().is_some() {
                    sets.push(Self::Amx);
                }
                if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512bf16") {
                    sets.push(Self::Avx512Bf16);
                }
                sets.push(Self::Avx512);
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                sets.push(Self::Avx2);
            }
        }
        sets.push(Self::Portable);
        sets
    }
}

thread_local! {
    static CHOSEN: Cell<InstructionSet> = Cell::new(InstructionSet::available()[0]);
}

/// Runs `f` with this thread's kernels on `set`, for tests and measurements; the bits are the same.
/// Returns `None` if the CPU lacks the set.
pub fn with_instruction_set<T>(set: InstructionSet, f: impl FnOnce() -> T) -> Option<T> {
    if !InstructionSet::available().contains(&set) {
        return None;
    }
    let _before = ChosenBefore(CHOSEN.replace(set));
    Some(f())
}

/// The set that a thread had before another one was chosen. When it is dropped, also by a panic, it
/// is chosen again.
struct ChosenBefore(InstructionSet);

impl Drop for ChosenBefore {
    fn drop(&mut self) {
        CHOSEN.set(self.0);
    }
}

/// Returns this thread's instruction set.
pub(crate) fn chosen_set() -> InstructionSet {
    CHOSEN.get()
}

/// Runs the kernel on this thread's instruction set: the widest that the CPU has.
pub(crate) fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    match CHOSEN.get() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: CHOSEN only ever holds a set that was detected on this CPU.
        InstructionSet::Amx | InstructionSet::Avx512Bf16 | InstructionSet::Avx512 => unsafe {
            x86::run_avx512(kernel)
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        InstructionSet::Avx2 => unsafe { x86::run_avx2(kernel) },
        _ => kernel.run::<Portable>(),
    }
}

/// Lanes as an array, for any machine.
#[derive(Clone, Copy)]
struct Portable([f32; LANES]);

impl Portable {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

/// Methods that are inlined into their caller, so that they are compiled with its instruction set.
macro_rules! inlined {
    ($(fn $name:ident($($argument:tt)*) $(-> $result:ty)? $body:block)*) => {
        $(#[inline(always)]
        fn $name($($argument)*) $(-> $result)? $body)*
    };
}

impl Simd for Portable {
    const TILE_ROWS: usize = 4;
    const TILE_VECTORS: usize = 1;
    const PAIR_ROWS: usize = 2;
    const PAIR_VECTORS: usize = 1;

    inlined! {
        fn splat(x: f32) -> Self { Self([x; LANES]) }
        fn load(x: &[f32; LANES]) -> Self { Self(*x) }
        fn load_pairs(x: &[u32; LANES]) -> (Self, Self) {
            let low = x.map(|pair| f32::from_bits(pair << 16));
            (Self(low), Self(x.map(|pair| f32::from_bits(pair & 0xffff_0000))))
        }
        fn store(self, out: &mut [f32; LANES]) { *out = self.0; }
        fn add(self, other: Self) -> Self { self.zip(other, |a, b| a + b) }
        fn sub(self, other: Self) -> Self { self.zip(other, |a, b| a - b) }
        fn mul(self, other: Self) -> Self { self.zip(other, |a, b| a * b) }
        fn div(self, other: Self) -> Self { self.zip(other, |a, b| a / b) }
        fn fma(self, factor: Self, term: Self) -> Self {
            Self(std::array::from_fn(|i| self.0[i].mul_add(factor.0[i], term.0[i])))
        }
        fn max(self, other: Self) -> Self { self.zip(other, |a, b| if a > b { a } else { b }) }
        fn min(self, other: Self) -> Self { self.zip(other, |a, b| if a < b { a } else { b }) }
        fn zero_where_below(self, x: Self, limit: Self) -> Self {
            Self(std::array::from_fn(|i| if x.0[i] < limit.0[i] { 0.0 } else { self.0[i] }))
        }
        fn add_exponent(self, n: Self) -> Self {
            self.zip(n, |a, b| f32::from_bits(a.to_bits().wrapping_add(b.to_bits() << 23)))
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Kernel, LANES, Simd};
    use std::arch::x86_64::*;

    /// # Safety
    /// The CPU has AVX-512F.
    #[target_feature(enable = "avx512f,avx2,fma")]
    pub(super) unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Avx512>()
    }

    /// # Safety
    /// The CPU has AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
        kernel.run::<Avx2>()
    }

    /// Methods whose bodies are intrinsics of the instruction set that the type stands for.
    macro_rules! intrinsics {
        ($(fn $name:ident($($argument:tt)*) $(-> $result:ty)? $body:block)*) => {
            $(#[inline(always)]
            fn $name($($argument)*) $(-> $result)? {
                // SAFETY: only `run_avx512` and `run_avx2` name the lane types, and they run on
                // CPUs that have the instructions; loads and stores go through references to 16
                // floats.
                unsafe { $body }
            })*
        };
    }

    /// One 512-bit register.
    #[derive(Clone, Copy)]
    pub(super) struct Avx512(__m512);

    impl Simd for Avx512 {
        const TILE_ROWS: usize = 12;
        const TILE_VECTORS: usize = 2;
        const PAIR_ROWS: usize = 6;
        const PAIR_VECTORS: usize = 2;

        intrinsics! {
            fn splat(x: f32) -> Self { Self(_mm512_set1_ps(x)) }
            fn load(x: &[f32; LANES]) -> Self { Self(_mm512_loadu_ps(x.as_ptr())) }
            fn load_pairs(x: &[u32; LANES]) -> (Self, Self) {
                let pairs = _mm512_loadu_si512(x.as_ptr().cast());
                let low = _mm512_slli_epi32::<16>(pairs);
                let high = _mm512_and_si512(pairs, _mm512_set1_epi32(-65_536));
                (Self(_mm512_castsi512_ps(low)), Self(_mm512_castsi512_ps(high)))
            }
            fn store(self, out: &mut [f32; LANES]) { _mm512_storeu_ps(out.as_mut_ptr(), self.0) }
            fn add(self, other: Self) -> Self { Self(_mm512_add_ps(self.0, other.0)) }
            fn sub(self, other: Self) -> Self { Self(_mm512_sub_ps(self.0, other.0)) }
            fn mul(self, other: Self) -> Self { Self(_mm512_mul_ps(self.0, other.0)) }
            fn div(self, other: Self) -> Self { Self(_mm512_div_ps(self.0, other.0)) }
            fn fma(self, factor: Self, term: Self) -> Self {
                Self(_mm512_fmadd_ps(self.0, factor.0, term.0))
            }
            fn max(self, other: Self) -> Self { Self(_mm512_max_ps(self.0, other.0)) }
            fn min(self, other: Self) -> Self { Self(_mm512_min_ps(self.0, other.0)) }
            fn zero_where_below(self, x: Self, limit: Self) -> Self {
                let keep = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x.0, limit.0);
                Self(_mm512_maskz_mov_ps(keep, self.0))
            }
            fn add_exponent(self, n: Self) -> Self {
                let shifted = _mm512_slli_epi32::<23>(_mm512_castps_si512(n.0));
                Self(_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(self.0), shifted)))
            }
        }
    }

    /// Two 256-bit registers.
    #[derive(Clone, Copy)]
    pub(super) struct Avx2(__m256, __m256);

    impl Simd for Avx2 {
        const TILE_ROWS: usize = 6;
        const TILE_VECTORS: usize = 1;
        const PAIR_ROWS: usize = 2;
        const PAIR_VECTORS: usize = 1;

        intrinsics! {
            fn splat(x: f32) -> Self { Self(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
            fn load(x: &[f32; LANES]) -> Self {
                Self(_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8)))
            }
            fn load_pairs(x: &[u32; LANES]) -> (Self, Self) {
                let high_halves = _mm256_set1_epi32(-65_536);
                let widened = |half: usize| {
                    let pairs = _mm256_loadu_si256(x.as_ptr().add(half * 8).cast());
                    let low = _mm256_slli_epi32::<16>(pairs);
                    let high = _mm256_and_si256(pairs, high_halves);
                    (_mm256_castsi256_ps(low), _mm256_castsi256_ps(high))
                };
                let (left, right) = (widened(0), widened(1));
                (Self(left.0, right.0), Self(left.1, right.1))
            }
            fn store(self, out: &mut [f32; LANES]) {
                _mm256_storeu_ps(out.as_mut_ptr(), self.0);
                _mm256_storeu_ps(out.as_mut_ptr().add(8), self.1);
            }
            fn add(self, other: Self) -> Self {
                Self(_mm256_add_ps(self.0, other.0), _mm256_add_ps(self.1, other.1))
            }
            fn sub(self, other: Self) -> Self {
                Self(_mm256_sub_ps(self.0, other.0), _mm256_sub_ps(self.1, other.1))
            }
            fn mul(self, other: Self) -> Self {
                Self(_mm256_mul_ps(self.0, other.0), _mm256_mul_ps(self.1, other.1))
            }
            fn div(self, other: Self) -> Self {
                Self(_mm256_div_ps(self.0, other.0), _mm256_div_ps(self.1, other.1))
            }
            fn fma(self, factor: Self, term: Self) -> Self {
                Self(
                    _mm256_fmadd_ps(self.0, factor.0, term.0),
                    _mm256_fmadd_ps(self.1, factor.1, term.1),
                )
            }
            fn max(self, other: Self) -> Self {
                Self(_mm256_max_ps(self.0, other.0), _mm256_max_ps(self.1, other.1))
            }
            fn min(self, other: Self) -> Self {
                Self(_mm256_min_ps(self.0, other.0), _mm256_min_ps(self.1, other.1))
            }
            fn zero_where_below(self, x: Self, limit: Self) -> Self {
                let keep = (
                    _mm256_cmp_ps::<_CMP_NLT_UQ>(x.0, limit.0),
                    _mm256_cmp_ps::<_CMP_NLT_UQ>(x.1, limit.1),
                );
                Self(_mm256_and_ps(keep.0, self.0), _mm256_and_ps(keep.1, self.1))
            }
            fn add_exponent(self, n: Self) -> Self {
                let add = |x: __m256, n: __m256| {
                    let shifted = _mm256_slli_epi32::<23>(_mm256_castps_si256(n));
                    _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), shifted))
                };
                Self(add(self.0, n.0), add(self.1, n.1))
            }
        }
    }
}
