// The backward pass of attention over a batch without pages (FlashAttention-2, Dao,
// arXiv:2307.08691): scores are computed again, and nothing is added by atomics, so that the bits
// are the same at every run.
//
// With scale s = 1 / sqrt(D), weights P = softmax(s q kT) and delta = sum(out * dout) of a query:
//   dv = PT dout, dS = P * (dout vT - delta), dq = s dS k, dk = s dST q.
#include "attention.cuh"

namespace {

// delta [T * H] of each query and head: a warp for each.
template <int D>
__device__ __forceinline__ void delta(const bf16 *out, const bf16 *dout, float *deltas, int count) {
  int at = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
  if (at >= count) return;
  float sum = 0;
  for (int i = threadIdx.x % LANES; i < D; i += LANES) {
    size_t place = static_cast<size_t>(at) * D + i;
    sum += __bfloat162float(out[place]) * __bfloat162float(dout[place]);
  }
  sum = sum_of_lanes(sum);
  if (threadIdx.x % LANES == 0) deltas[at] = sum;
}

constexpr int WARPS = 4, THREADS = WARPS * LANES;

// dq of a tile of 64 queries. The grid is that of attention's forward pass.
template <int D>
__device__ __forceinline__ void query_gradient(const bf16 *q, const bf16 *keys, const bf16 *values,
                                               const Row *rows, const int2 *tiles,
                                               KeyLayout layout, const bf16 *dout,
                                               const float *log_sums, const float *deltas, bf16 *dq,
                                               int heads, int kv_heads) {
  constexpr int QUERIES = 16 * WARPS, CHUNKS = D / CHUNK;
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t query_tile = shared_address(shared), dout_tile = query_tile + QUERIES * D * 2;
  const uint32_t key_tile = dout_tile + QUERIES * D * 2, value_tile = key_tile + KEYS * D * 2;

  const int kv_head = blockIdx.y, group = heads / kv_heads;
  const Row row = rows[tiles[blockIdx.x].x];
  const int first = tiles[blockIdx.x].y, tokens = min(QUERIES / group, row.len - first);
  const int end = row.past + first + tokens, blocks = (end + KEYS - 1) / KEYS;
  const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  load_queries<D, QUERIES, THREADS>(query_tile, q, row, kv_head, first, heads, group);
  load_queries<D, QUERIES, THREADS>(dout_tile, dout, row, kv_head, first, heads, group);

  int position[2];
  float log_sum[2], of_delta[2];
  size_t place[2];
  bool valid[2];
  for (int half = 0; half < 2; half++) {
    int query = 16 * warp + lane / 4 + 8 * half;
    valid[half] = query < tokens * group;
    int token = row.first + first + query / group;
    position[half] = row.past + first + query / group;
    place[half] = static_cast<size_t>(token) * heads + kv_head * group + query % group;
    log_sum[half] = valid[half] ? log_sums[place[half]] : INFINITY;
    of_delta[half] = valid[half] ? deltas[place[half]] : 0.0f;
  }
  const float scale = rsqrtf(static_cast<float>(D));
  float gradient[D / 8][4] = {};

  for (int block = 0; block < blocks; block++) {
    load_keys<D, THREADS>(key_tile, keys, layout, row, kv_head, block * KEYS, end);
    load_keys<D, THREADS>(value_tile, values, layout, row, kv_head, block * KEYS, end);
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    float scores[KEYS / 8][4] = {}, products[KEYS / 8][4] = {};
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
      uint32_t of_q[4], of_dout[4], b[4];
      load_left<CHUNKS>(of_q, query_tile, 16 * warp, 2 * i);
      load_left<CHUNKS>(of_dout, dout_tile, 16 * warp, 2 * i);
#pragma unroll
      for (int j = 0; j < KEYS / 16; j++) {
        load_right<CHUNKS>(b, key_tile, 16 * j, 2 * i);
        multiply_add(scores[2 * j], of_q, b[0], b[1]);
        multiply_add(scores[2 * j + 1], of_q, b[2], b[3]);
        load_right<CHUNKS>(b, value_tile, 16 * j, 2 * i);
        multiply_add(products[2 * j], of_dout, b[0], b[1]);
        multiply_add(products[2 * j + 1], of_dout, b[2], b[3]);
      }
    }
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        int key = block * KEYS + 8 * j + 2 * (lane % 4) + e % 2;
        float weight = exp2f(scores[j][e] * (scale * LOG2_E) - log_sum[e / 2]);
        bool seen = key <= position[e / 2];
        scores[j][e] = seen ? weight * (products[j][e] - of_delta[e / 2]) : 0.0f;
      }
    }
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++) {
      uint32_t a[4], b[4];
      as_left(a, scores[2 * j], scores[2 * j + 1]);
#pragma unroll
      for (int i = 0; i < D / 16; i++) {
        load_right_transposed<CHUNKS>(b, key_tile, 16 * j, 2 * i);
        multiply_add(gradient[2 * i], a, b[0], b[1]);
        multiply_add(gradient[2 * i + 1], a, b[2], b[3]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int half = 0; half < 2; half++) {
    if (!valid[half]) continue;
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
      *reinterpret_cast<uint32_t *>(dq + place[half] * D + 8 * i + 2 * (lane % 4)) =
          packed(gradient[i][2 * half] * scale, gradient[i][2 * half + 1] * scale);
    }
  }
}

// dk and dv of 64 keys of a row, from the row's own queries and those of the rows that continue it:
// `continued` lists these, and row r has continued[starts[r]..starts[r + 1]]. The grid has a block
// for each {row, its first key in the row}, and for each key-value head.
template <int D>
__device__ __forceinline__ void key_gradient(const bf16 *q, const bf16 *keys, const bf16 *values,
                                             const Row *rows, const int2 *tiles, const int *starts,
                                             const int *continued, const bf16 *dout,
                                             const float *log_sums, const float *deltas, bf16 *dk,
                                             bf16 *dv, int heads, int kv_heads) {
  constexpr int QUERIES = 32, CHUNKS = D / CHUNK;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float tile_log_sums[QUERIES], tile_deltas[QUERIES];
  __shared__ int tile_positions[QUERIES];
  const uint32_t key_tile = shared_address(shared), value_tile = key_tile + KEYS * D * 2;
  const uint32_t query_tile = value_tile + KEYS * D * 2, dout_tile = query_tile + QUERIES * D * 2;

  const int kv_head = blockIdx.y, group = heads / kv_heads;
  const int number = tiles[blockIdx.x].x, first_key = tiles[blockIdx.x].y;
  const Row own = rows[number];
  const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  // The row's own keys begin at its first token. Their positions count from its past on.
  const KeyLayout layout = {nullptr, D, static_cast<size_t>(kv_heads) * D};
  const int first_position = own.past + first_key, end = own.past + own.len;
  load_keys<D, THREADS>(key_tile, keys, layout, own, kv_head, first_position, end);
  load_keys<D, THREADS>(value_tile, values, layout, own, kv_head, first_position, end);

  const float scale = rsqrtf(static_cast<float>(D));
  float key_gradients[D / 8][4] = {}, value_gradients[D / 8][4] = {};
  const int others = starts[number + 1] - starts[number];
  for (int source = -1; source < others; source++) {
    const Row row = source < 0 ? own : rows[continued[starts[number] + source]];
    // Queries before the first key do not see it.
    const int step = QUERIES / group;
    const int unseen = max(0, first_position - row.past);
    // A row that continues this one sees only the keys before its own.
    const int seen_end = source < 0 ? end : min(end, row.past);
    if (first_position >= seen_end) continue;
    for (int first = unseen / step * step; first < row.len; first += step) {
      load_queries<D, QUERIES, THREADS>(query_tile, q, row, kv_head, first, heads, group);
      load_queries<D, QUERIES, THREADS>(dout_tile, dout, row, kv_head, first, heads, group);
      commit_copies();
      if (threadIdx.x < QUERIES) {
        int query = threadIdx.x, token = first + query / group;
        bool valid = query < step * group && token < row.len;
        size_t place =
            static_cast<size_t>(row.first + token) * heads + kv_head * group + query % group;
        tile_positions[query] = min(row.past + token, seen_end - 1);
        tile_log_sums[query] = valid ? log_sums[place] : INFINITY;
        tile_deltas[query] = valid ? deltas[place] : 0.0f;
      }
      wait_copies<0>();
      __syncthreads();

      // Weights and products are transposed: keys down, queries across.
      float scores[QUERIES / 8][4] = {}, products[QUERIES / 8][4] = {};
#pragma unroll
      for (int i = 0; i < D / 16; i++) {
        uint32_t of_keys[4], of_values[4], b[4];
        load_left<CHUNKS>(of_keys, key_tile, 16 * warp, 2 * i);
        load_left<CHUNKS>(of_values, value_tile, 16 * warp, 2 * i);
#pragma unroll
        for (int j = 0; j < QUERIES / 16; j++) {
          load_right<CHUNKS>(b, query_tile, 16 * j, 2 * i);
          multiply_add(scores[2 * j], of_keys, b[0], b[1]);
          multiply_add(scores[2 * j + 1], of_keys, b[2], b[3]);
          load_right<CHUNKS>(b, dout_tile, 16 * j, 2 * i);
          multiply_add(products[2 * j], of_values, b[0], b[1]);
          multiply_add(products[2 * j + 1], of_values, b[2], b[3]);
        }
      }
#pragma unroll
      for (int j = 0; j < QUERIES / 8; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
          int key = first_position + 16 * warp + lane / 4 + e / 2 * 8;
          int query = 8 * j + 2 * (lane % 4) + e % 2;
          float weight = exp2f(scores[j][e] * (scale * LOG2_E) - tile_log_sums[query]);
          weight = key <= tile_positions[query] ? weight : 0.0f;
          scores[j][e] = weight;
          products[j][e] = weight * (products[j][e] - tile_deltas[query]);
        }
      }
#pragma unroll
      for (int j = 0; j < QUERIES / 16; j++) {
        uint32_t weights[4], gradients[4], b[4];
        as_left(weights, scores[2 * j], scores[2 * j + 1]);
        as_left(gradients, products[2 * j], products[2 * j + 1]);
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
          load_right_transposed<CHUNKS>(b, dout_tile, 16 * j, 2 * i);
          multiply_add(value_gradients[2 * i], weights, b[0], b[1]);
          multiply_add(value_gradients[2 * i + 1], weights, b[2], b[3]);
          load_right_transposed<CHUNKS>(b, query_tile, 16 * j, 2 * i);
          multiply_add(key_gradients[2 * i], gradients, b[0], b[1]);
          multiply_add(key_gradients[2 * i + 1], gradients, b[2], b[3]);
        }
      }
      __syncthreads();
    }
  }
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int key = first_key + 16 * warp + lane / 4 + 8 * half;
    if (key >= own.len) continue;
    size_t to = (static_cast<size_t>(own.first + key) * kv_heads + kv_head) * D;
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
      size_t at = to + 8 * i + 2 * (lane % 4);
      *reinterpret_cast<uint32_t *>(dk + at) =
          packed(key_gradients[i][2 * half] * scale, key_gradients[i][2 * half + 1] * scale);
      *reinterpret_cast<uint32_t *>(dv + at) =
          packed(value_gradients[i][2 * half], value_gradients[i][2 * half + 1]);
    }
  }
}

}  // namespace

#define ATTENTION_BACKWARD(D)                                                                       \
  extern "C" __global__ void attention_delta_##D(const bf16 *out, const bf16 *dout, float *deltas,  \
                                                 int count) {                                       \
    delta<D>(out, dout, deltas, count);                                                             \
  }                                                                                                 \
  extern "C" __global__ void __launch_bounds__(THREADS) attention_query_gradient_##D(               \
      const bf16 *q, const bf16 *keys, const bf16 *values, const Row *rows, const int2 *tiles,      \
      const bf16 *dout, const float *log_sums, const float *deltas, bf16 *dq, int heads,            \
      int kv_heads) {                                                                               \
    KeyLayout layout = {nullptr, D, static_cast<size_t>(kv_heads) * D};                             \
    query_gradient<D>(q, keys, values, rows, tiles, layout, dout, log_sums, deltas, dq, heads,      \
                      kv_heads);                                                                    \
  }                                                                                                 \
  extern "C" __global__ void __launch_bounds__(THREADS) attention_key_gradient_##D(                 \
      const bf16 *q, const bf16 *keys, const bf16 *values, const Row *rows, const int2 *tiles,      \
      const int *starts, const int *continued, const bf16 *dout, const float *log_sums,             \
      const float *deltas, bf16 *dk, bf16 *dv, int heads, int kv_heads) {                           \
    key_gradient<D>(q, keys, values, rows, tiles, starts, continued, dout, log_sums, deltas, dk,    \
                    dv, heads, kv_heads);                                                           \
  }

ATTENTION_BACKWARD(32)
ATTENTION_BACKWARD(64)
ATTENTION_BACKWARD(128)
