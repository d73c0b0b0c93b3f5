// What the kernels share: copies to shared memory and products of tensor cores.
//
// A product of tensor cores (mma.sync m16n8k16, bf16 with sums in f32) has a fixed layout over the
// 32 lanes of a warp (PTX ISA, "Matrix Fragments for mma.m16n8k16"). With r = lane / 4 and
// c = 2 * (lane % 4):
//   A [16, 16]: a0 = (r, c..c+1), a1 = (r + 8, c..), a2 = (r, c + 8..), a3 = (r + 8, c + 8..)
//   B [16, 8]:  b0 = (c..c+1, r), b1 = (c + 8.., r)
//   C [16, 8]:  c0, c1 = (r, c..c+1), c2, c3 = (r + 8, c..c+1)
#pragma once

#include <cstdint>
#include <cuda_bf16.h>

using bf16 = __nv_bfloat16;

constexpr int LANES = 32;
// The values of a copy of 16 bytes.
constexpr int CHUNK = 8;

__device__ __forceinline__ uint32_t shared_address(const void *pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Starts a copy of 16 bytes to shared memory, or of zeros if it is not `valid`.
__device__ __forceinline__ void copy_async(uint32_t to, const void *from, bool valid) {
  int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes));
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;\n"); }

// Waits until at most PENDING of the committed groups of copies are under way.
template <int PENDING> __device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(PENDING));
}

// The address of a chunk in a tile whose rows have CHUNKS chunks. The chunks of a row are permuted
// so that eight rows of one column lie in different banks of shared memory.
template <int CHUNKS>
__device__ __forceinline__ uint32_t tile_address(uint32_t tile, int row, int chunk) {
  int permuted = CHUNKS >= 8 ? chunk ^ (row & 7) : chunk ^ ((row >> 1) & (CHUNKS - 1));
  return tile + (row * CHUNKS + permuted) * 16;
}

__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address));
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address));
}

// Loads the left factor [16, 16] at (row, 8 * chunk) of a tile.
template <int CHUNKS>
__device__ __forceinline__ void load_left(uint32_t (&a)[4], uint32_t tile, int row, int chunk) {
  int lane = threadIdx.x % LANES;
  load_matrices(a, tile_address<CHUNKS>(tile, row + lane % 16, chunk + lane / 16));
}

// Loads two right factors [16, 8] from a tile whose rows are their columns: columns row.. and
// row + 8.., at a chunk of the sum's dimension. b[0..2] is the first, b[2..4] the second.
template <int CHUNKS>
__device__ __forceinline__ void load_right(uint32_t (&b)[4], uint32_t tile, int row, int chunk) {
  int lane = threadIdx.x % LANES;
  int column = row + lane / 16 * 8 + lane % 8;
  load_matrices(b, tile_address<CHUNKS>(tile, column, chunk + lane / 8 % 2));
}

// Loads two right factors [16, 8] from a tile whose rows run along the sum's dimension: rows row..,
// and the columns of two neighbouring chunks.
template <int CHUNKS>
__device__ __forceinline__ void load_right_transposed(uint32_t (&b)[4], uint32_t tile, int row,
                                                      int chunk) {
  int lane = threadIdx.x % LANES;
  int along = row + lane / 8 % 2 * 8 + lane % 8;
  load_matrices_transposed(b, tile_address<CHUNKS>(tile, along, chunk + lane / 16));
}

// c += a b.
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t packed(float low, float high) {
  __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<uint32_t *>(&both);
}

// Turns a product [16, 16], two neighbouring results of multiply_add, into a left factor in bf16.
__device__ __forceinline__ void as_left(uint32_t (&a)[4], const float (&left)[4],
                                        const float (&right)[4]) {
  a[0] = packed(left[0], left[1]);
  a[1] = packed(left[2], left[3]);
  a[2] = packed(right[0], right[1]);
  a[3] = packed(right[2], right[3]);
}

// Eight values of bf16.
struct Eight {
  uint4 bits;

  __device__ __forceinline__ static Eight load(const bf16 *from) {
    return Eight{*reinterpret_cast<const uint4 *>(from)};
  }
  __device__ __forceinline__ void store(bf16 *to) const { *reinterpret_cast<uint4 *>(to) = bits; }
  __device__ __forceinline__ void widen(float (&to)[8]) const {
    const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
    for (int i = 0; i < 4; i++) {
      to[2 * i] = __uint_as_float(words[i] << 16);
      to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
  __device__ __forceinline__ static Eight rounded(const float (&x)[8]) {
    return Eight{make_uint4(packed(x[0], x[1]), packed(x[2], x[3]), packed(x[4], x[5]),
                            packed(x[6], x[7]))};
  }
};

// The sum over the lanes of a warp, in one order.
__device__ __forceinline__ float sum_of_lanes(float x) {
  for (int distance = LANES / 2; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, distance);
  }
  return x;
}

__device__ __forceinline__ float max_of_lanes(float x) {
  for (int distance = LANES / 2; distance > 0; distance /= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, distance));
  }
  return x;
}
