// Causal grouped-query attention with keys in pages (PagedAttention, Kwon et al., arXiv:2309.06180)
// or in the batch itself, by an online softmax over blocks of keys (FlashAttention-2, Dao,
// arXiv:2307.08691).
//
// Invariant: a query's bits depend on its row alone. It visits its keys in blocks of KEYS from
// position 0 on, by the same instructions whatever the tile around it. A key that it may not see
// has a weight of exactly zero, and a block of such keys changes nothing, as long as all values are
// finite.
#include "attention.cuh"

namespace {

// Turns scores of eight keys into softmax weights, for the two queries of a lane.
__device__ __forceinline__ void weigh(float (&scores)[4], const float (&most)[2]) {
#pragma unroll
  for (int e = 0; e < 4; e++) scores[e] = exp2f(scores[e] - most[e / 2]);
}

// A lane's part of the sum of the weights of 16 keys, for one of its queries.
__device__ __forceinline__ float sum_of_keys(const float (&left)[4], const float (&right)[4],
                                             int half) {
  return (left[2 * half] + left[2 * half + 1]) + (right[2 * half] + right[2 * half + 1]);
}

// Scales the scores of eight keys from `first` on, hides those that the two queries of a lane do
// not see, and returns the largest in `most`.
__device__ __forceinline__ void scale_and_mask(float (&scores)[4], int first,
                                               const int (&position)[2], float scale,
                                               float (&most)[2]) {
#pragma unroll
  for (int e = 0; e < 4; e++) {
    int key = first + 2 * (threadIdx.x % 4) + e % 2;
    scores[e] = key <= position[e / 2] ? scores[e] * scale : -INFINITY;
    most[e / 2] = fmaxf(most[e / 2], scores[e]);
  }
}

// The largest of the four lanes that share a query.
__device__ __forceinline__ float largest_of_four(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

// Many queries: each of four warps has 16, and visits all keys.
template <int D>
__device__ __forceinline__ void prefill(const bf16 *q, const bf16 *keys, const bf16 *values,
                                        const Row *rows, const int2 *tiles, KeyLayout layout,
                                        bf16 *out, float *log_sums, int heads, int kv_heads) {
  constexpr int WARPS = 4;
  constexpr int QUERIES = 16 * WARPS, THREADS = LANES * WARPS, CHUNKS = D / CHUNK;
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t query_tile = shared_address(shared);
  const uint32_t key_tile = query_tile + QUERIES * D * 2, value_tile = key_tile + KEYS * D * 2;

  const int kv_head = blockIdx.y, group = heads / kv_heads;
  const Row row = rows[tiles[blockIdx.x].x];
  const int first = tiles[blockIdx.x].y, tokens = min(QUERIES / group, row.len - first);
  const int end = row.past + first + tokens, blocks = (end + KEYS - 1) / KEYS;
  auto load = [&](uint32_t tile, const bf16 *from, int block) {
    if (block < blocks) {
      load_keys<D, THREADS>(tile, from, layout, row, kv_head, block * KEYS, end);
    }
    commit_copies();
  };

  const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  load_queries<D, QUERIES, THREADS>(query_tile, q, row, kv_head, first, heads, group);
  load(key_tile, keys, 0);
  load(value_tile, values, 0);
  wait_copies<1>();
  __syncthreads();
  uint32_t queries[D / 16][4];
#pragma unroll
  for (int i = 0; i < D / 16; i++) load_left<CHUNKS>(queries[i], query_tile, 16 * warp, 2 * i);

  // A lane computes two queries, and shares them with the three lanes beside it.
  int position[2];
  for (int half = 0; half < 2; half++) {
    position[half] = row.past + first + (16 * warp + lane / 4 + 8 * half) / group;
  }
  const float scale = LOG2_E * rsqrtf(static_cast<float>(D));
  float most[2] = {-INFINITY, -INFINITY}, sums[2] = {}, weighted[D / 8][4] = {};

  for (int block = 0; block < blocks; block++) {
    float scores[KEYS / 8][4] = {};
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++) {
#pragma unroll
      for (int i = 0; i < D / 16; i++) {
        uint32_t b[4];
        load_right<CHUNKS>(b, key_tile, 16 * j, 2 * i);
        multiply_add(scores[2 * j], queries[i], b[0], b[1]);
        multiply_add(scores[2 * j + 1], queries[i], b[2], b[3]);
      }
    }
    __syncthreads();
    load(key_tile, keys, block + 1);

    float block_most[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++) {
      scale_and_mask(scores[j], block * KEYS + 8 * j, position, scale, block_most);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
      // The first block has a key that the query sees, so the largest score is finite from then on.
      float all = fmaxf(most[half], largest_of_four(block_most[half]));
      float rescale = exp2f(most[half] - all);
      most[half] = all;
      sums[half] *= rescale;
#pragma unroll
      for (int i = 0; i < D / 8; i++) {
        weighted[i][2 * half] *= rescale;
        weighted[i][2 * half + 1] *= rescale;
      }
    }
    float block_sums[2] = {};
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++) {
      weigh(scores[2 * j], most);
      weigh(scores[2 * j + 1], most);
      for (int half = 0; half < 2; half++) {
        block_sums[half] += sum_of_keys(scores[2 * j], scores[2 * j + 1], half);
      }
    }
    for (int half = 0; half < 2; half++) sums[half] += block_sums[half];

    wait_copies<1>();
    __syncthreads();
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++) {
      uint32_t a[4];
      as_left(a, scores[2 * j], scores[2 * j + 1]);
#pragma unroll
      for (int i = 0; i < D / 16; i++) {
        uint32_t b[4];
        load_right_transposed<CHUNKS>(b, value_tile, 16 * j, 2 * i);
        multiply_add(weighted[2 * i], a, b[0], b[1]);
        multiply_add(weighted[2 * i + 1], a, b[2], b[3]);
      }
    }
    __syncthreads();
    load(value_tile, values, block + 1);
    wait_copies<1>();
    __syncthreads();
  }

#pragma unroll
  for (int half = 0; half < 2; half++) {
    float all = sums[half];
    all += __shfl_xor_sync(0xffffffffu, all, 1);
    all += __shfl_xor_sync(0xffffffffu, all, 2);
    int query = 16 * warp + lane / 4 + 8 * half;
    if (query >= tokens * group) continue;
    int token = row.first + first + query / group, head = kv_head * group + query % group;
    size_t of = static_cast<size_t>(token) * heads + head;
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
      float left = weighted[i][2 * half] / all, right = weighted[i][2 * half + 1] / all;
      *reinterpret_cast<uint32_t *>(out + of * D + 8 * i + 2 * (lane % 4)) = packed(left, right);
    }
    // The logarithm to base 2 of the sum of 2^score, which the backward pass reads.
    if (log_sums != nullptr && lane % 4 == 0) log_sums[of] = most[half] + log2f(all);
  }
}

// Up to 16 queries: four warps share them. For the scores each warp has a quarter of a block's
// keys, and for the weighted sum a part of the columns. The results are those of `prefill` bit for
// bit.
template <int D>
__device__ __forceinline__ void decode(const bf16 *q, const bf16 *keys, const bf16 *values,
                                       const Row *rows, const int2 *tiles, KeyLayout layout,
                                       bf16 *out, float *log_sums, int heads, int kv_heads) {
  constexpr int WARPS = 4, QUERIES = 16, THREADS = LANES * WARPS, CHUNKS = D / CHUNK;
  // Columns of a warp. Heads of 32 leave two warps without any.
  constexpr int COLUMNS = D / WARPS < 16 ? 16 : D / WARPS;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float warp_most[WARPS][QUERIES], warp_sums[WARPS][2][LANES];
  const uint32_t query_tile = shared_address(shared);
  const uint32_t key_tile = query_tile + QUERIES * D * 2, value_tile = key_tile + KEYS * D * 2;
  const uint32_t weight_tile = value_tile + KEYS * D * 2;

  const int kv_head = blockIdx.y, group = heads / kv_heads;
  const Row row = rows[tiles[blockIdx.x].x];
  const int first = tiles[blockIdx.x].y, tokens = min(QUERIES / group, row.len - first);
  const int end = row.past + first + tokens, blocks = (end + KEYS - 1) / KEYS;
  auto load = [&](uint32_t tile, const bf16 *from, int block) {
    if (block < blocks) {
      load_keys<D, THREADS>(tile, from, layout, row, kv_head, block * KEYS, end);
    }
    commit_copies();
  };

  const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  const bool has_columns = warp * COLUMNS < D;
  load_queries<D, QUERIES, THREADS>(query_tile, q, row, kv_head, first, heads, group);
  load(key_tile, keys, 0);
  load(value_tile, values, 0);
  wait_copies<1>();
  __syncthreads();
  uint32_t queries[D / 16][4];
#pragma unroll
  for (int i = 0; i < D / 16; i++) load_left<CHUNKS>(queries[i], query_tile, 0, 2 * i);

  int position[2];
  for (int half = 0; half < 2; half++) {
    position[half] = row.past + first + (lane / 4 + 8 * half) / group;
  }
  const float scale = LOG2_E * rsqrtf(static_cast<float>(D));
  float most[2] = {-INFINITY, -INFINITY}, sums[2] = {}, weighted[COLUMNS / 8][4] = {};

  for (int block = 0; block < blocks; block++) {
    float scores[2][4] = {};
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
      uint32_t b[4];
      load_right<CHUNKS>(b, key_tile, 16 * warp, 2 * i);
      multiply_add(scores[0], queries[i], b[0], b[1]);
      multiply_add(scores[1], queries[i], b[2], b[3]);
    }
    float block_most[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int j = 0; j < 2; j++) {
      scale_and_mask(scores[j], block * KEYS + 16 * warp + 8 * j, position, scale, block_most);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
      block_most[half] = largest_of_four(block_most[half]);
      if (lane % 4 == 0) warp_most[warp][lane / 4 + 8 * half] = block_most[half];
    }
    __syncthreads();
    load(key_tile, keys, block + 1);

    float rescale[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float all = most[half];
#pragma unroll
      for (int w = 0; w < WARPS; w++) all = fmaxf(all, warp_most[w][lane / 4 + 8 * half]);
      rescale[half] = exp2f(most[half] - all);
      most[half] = all;
    }
    weigh(scores[0], most);
    weigh(scores[1], most);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      warp_sums[warp][half][lane] = sum_of_keys(scores[0], scores[1], half);
      int query = lane / 4 + 8 * half;
#pragma unroll
      for (int j = 0; j < 2; j++) {
        // Two weights of a row of 64 keys.
        uint32_t place = tile_address<KEYS / CHUNK>(weight_tile, query, 2 * warp + j);
        uint32_t two = packed(scores[j][2 * half], scores[j][2 * half + 1]);
        asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(place + lane % 4 * 4), "r"(two) : "memory");
      }
    }
    wait_copies<1>();
    __syncthreads();

#pragma unroll
    for (int half = 0; half < 2; half++) {
      float block_sum = 0;
#pragma unroll
      for (int w = 0; w < WARPS; w++) block_sum += warp_sums[w][half][lane];
      sums[half] = sums[half] * rescale[half] + block_sum;
#pragma unroll
      for (int i = 0; i < COLUMNS / 8; i++) {
        weighted[i][2 * half] *= rescale[half];
        weighted[i][2 * half + 1] *= rescale[half];
      }
    }
    if (has_columns) {
#pragma unroll
      for (int j = 0; j < KEYS / 16; j++) {
        uint32_t a[4];
        load_left<KEYS / CHUNK>(a, weight_tile, 0, 2 * j);
#pragma unroll
        for (int i = 0; i < COLUMNS / 16; i++) {
          uint32_t b[4];
          load_right_transposed<CHUNKS>(b, value_tile, 16 * j, warp * COLUMNS / CHUNK + 2 * i);
          multiply_add(weighted[2 * i], a, b[0], b[1]);
          multiply_add(weighted[2 * i + 1], a, b[2], b[3]);
        }
      }
    }
    __syncthreads();
    load(value_tile, values, block + 1);
    wait_copies<1>();
    __syncthreads();
  }

#pragma unroll
  for (int half = 0; half < 2; half++) {
    float all = sums[half];
    all += __shfl_xor_sync(0xffffffffu, all, 1);
    all += __shfl_xor_sync(0xffffffffu, all, 2);
    int query = lane / 4 + 8 * half;
    if (query >= tokens * group || !has_columns) continue;
    int token = row.first + first + query / group, head = kv_head * group + query % group;
    size_t of = static_cast<size_t>(token) * heads + head;
#pragma unroll
    for (int i = 0; i < COLUMNS / 8; i++) {
      float left = weighted[i][2 * half] / all, right = weighted[i][2 * half + 1] / all;
      size_t column = warp * COLUMNS + 8 * i + 2 * (lane % 4);
      *reinterpret_cast<uint32_t *>(out + of * D + column) = packed(left, right);
    }
    if (log_sums != nullptr && warp == 0 && lane % 4 == 0) log_sums[of] = most[half] + log2f(all);
  }
}

}  // namespace

// The grid has a block for each tile of queries, {row, its first token in the row}, and for each
// key-value head. A block has 128 threads.
#define ATTENTION(NAME, FUNCTION, D)                                                                \
  extern "C" __global__ void __launch_bounds__(128)                                                 \
      NAME(const bf16 *q, const bf16 *keys, const bf16 *values, const Row *rows, const int2 *tiles, \
           const uint32_t *tables, size_t head_stride, size_t slot_stride, bf16 *out,               \
           float *log_sums, int heads, int kv_heads) {                                              \
    KeyLayout layout = {tables, head_stride, slot_stride};                                          \
    FUNCTION<D>(q, keys, values, rows, tiles, layout, out, log_sums, heads, kv_heads);              \
  }

ATTENTION(attention_32_decode, decode, 32)
ATTENTION(attention_64_decode, decode, 64)
ATTENTION(attention_128_decode, decode, 128)
ATTENTION(attention_32_prefill, prefill, 32)
ATTENTION(attention_64_prefill, prefill, 64)
ATTENTION(attention_128_prefill, prefill, 128)
