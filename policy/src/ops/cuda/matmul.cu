// Products of linear layers: y [M, N] = x [M, K] wT, with w [N, K] as Hugging Face stores it.
//
// Invariant: every element is a sum over K in steps of 16 in order, by one instruction. So a row's
// bits depend neither on the number of rows nor on the tile that computes them, and sampling equals
// training.
//
// A block computes a tile [ROWS, COLUMNS]. STAGES steps of K are on their way from memory at once.
// Up to three weights that read the same x share a launch.
#include "common.cuh"

namespace {

// The values of K of one step. A row of a tile has 128 bytes.
constexpr int DEPTH = 64;
constexpr int CHUNKS = DEPTH / CHUNK;
constexpr int ROW_BYTES = DEPTH * 2;

struct Weights {
  const bf16 *weight[3];
  void *output[3];
  int columns[3];
};

template <typename T> __device__ __forceinline__ void store_two(T *to, float a, float b);
template <> __device__ __forceinline__ void store_two(bf16 *to, float a, float b) {
  *reinterpret_cast<uint32_t *>(to) = packed(a, b);
}
template <> __device__ __forceinline__ void store_two(float *to, float a, float b) {
  *reinterpret_cast<float2 *>(to) = make_float2(a, b);
}

// Copies COUNT rows of a matrix [rows, k], DEPTH columns at a time. Each thread copies one chunk of
// every (THREADS / CHUNKS)th row.
template <int COUNT, int THREADS> struct TileLoader {
  static constexpr int APART = THREADS / CHUNKS, COPIES = COUNT / APART;
  static_assert(COUNT % APART == 0, "every thread copies the same number of chunks");
  const bf16 *from;
  size_t apart;
  int rows_left, columns_left;

  __device__ __forceinline__ TileLoader(const bf16 *matrix, int first, int rows, int k) {
    int row = threadIdx.x / CHUNKS, column = threadIdx.x % CHUNKS * CHUNK;
    from = matrix + static_cast<size_t>(first + row) * k + column;
    apart = static_cast<size_t>(APART) * k;
    rows_left = rows - first - row;
    columns_left = k - column;
  }

  // Starts the copies of the next step.
  __device__ __forceinline__ void next(uint32_t tile) {
    int row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
      // Nothing is read from where no value is.
      bool valid = i * APART < rows_left && columns_left > 0;
      copy_async(tile_address<CHUNKS>(tile, row + i * APART, chunk), from + i * apart, valid);
    }
    from += DEPTH;
    columns_left -= DEPTH;
  }
};

template <int ROWS, int COLUMNS, int WARP_ROWS, int WARP_COLUMNS, int STAGES, typename Output>
__device__ __forceinline__ void matmul(const bf16 *x, const Weights &weights, int rows, int k) {
  constexpr int THREADS = WARP_ROWS * WARP_COLUMNS * LANES;
  // Each warp computes a tile [16 * DOWN, 8 * ACROSS].
  constexpr int DOWN = ROWS / WARP_ROWS / 16, ACROSS = COLUMNS / WARP_COLUMNS / 8;
  constexpr int STAGE_BYTES = (ROWS + COLUMNS) * ROW_BYTES;
  static_assert(ACROSS % 2 == 0, "right factors are loaded in pairs");
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t stages = shared_address(shared);

  int tile = blockIdx.x, of = 0;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    int tiles = (weights.columns[i] + COLUMNS - 1) / COLUMNS;
    if (of == i && tile >= tiles) {
      tile -= tiles;
      of++;
    }
  }
  // Chosen by conditions, since an index would put the pointers into local memory.
  const bf16 *weight = of == 0 ? weights.weight[0] : of == 1 ? weights.weight[1] : weights.weight[2];
  void *to = of == 0 ? weights.output[0] : of == 1 ? weights.output[1] : weights.output[2];
  const int columns = of == 0   ? weights.columns[0]
                      : of == 1 ? weights.columns[1]
                                : weights.columns[2];
  const int first_row = blockIdx.y * ROWS, first_column = tile * COLUMNS;
  const int steps = (k + DEPTH - 1) / DEPTH;
  TileLoader<ROWS, THREADS> left_loader(x, first_row, rows, k);
  TileLoader<COLUMNS, THREADS> right_loader(weight, first_column, columns, k);
  uint32_t write_stage = stages;
  auto load = [&](bool any_left) {
    if (any_left) {
      left_loader.next(write_stage);
      right_loader.next(write_stage + ROWS * ROW_BYTES);
      write_stage += STAGE_BYTES;
      if (write_stage == stages + STAGES * STAGE_BYTES) write_stage = stages;
    }
    commit_copies();
  };

  const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  const int warp_row = warp / WARP_COLUMNS * DOWN * 16;
  const int warp_column = warp % WARP_COLUMNS * ACROSS * 8;
  // Where this lane's part of a factor lies in a stage, at the first chunk. The rows of one lane
  // are multiples of 8 apart, so a chunk's place differs by the same bits in all.
  const uint32_t left_place = tile_address<CHUNKS>(0, warp_row + lane % 16, lane / 16);
  const uint32_t right_place =
      ROWS * ROW_BYTES +
      tile_address<CHUNKS>(0, warp_column + lane / 16 * 8 + lane % 8, lane / 8 % 2);
  float sums[DOWN][ACROSS][4] = {};

  for (int step = 0; step < STAGES - 1; step++) load(step < steps);
  uint32_t read_stage = stages;
  for (int step = 0; step < steps; step++) {
    wait_copies<STAGES - 2>();
    __syncthreads();
    load(step + STAGES - 1 < steps);
    uint32_t a[2][DOWN][4], b[2][ACROSS / 2][4];
    auto load_factors = [&](int chunk, int buffer) {
#pragma unroll
      for (int i = 0; i < DOWN; i++) {
        uint32_t place = (read_stage + left_place) ^ (chunk * 16);
        load_matrices(a[buffer][i], place + i * 16 * ROW_BYTES);
      }
#pragma unroll
      for (int j = 0; j < ACROSS / 2; j++) {
        uint32_t place = (read_stage + right_place) ^ (chunk * 16);
        load_matrices(b[buffer][j], place + j * 16 * ROW_BYTES);
      }
    };
    load_factors(0, 0);
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk += 2) {
      const int buffer = chunk / 2 % 2;
      if (chunk + 2 < CHUNKS) load_factors(chunk + 2, 1 - buffer);
#pragma unroll
      for (int i = 0; i < DOWN; i++) {
#pragma unroll
        for (int j = 0; j < ACROSS; j++) {
          const uint32_t(&right)[4] = b[buffer][j / 2];
          multiply_add(sums[i][j], a[buffer][i], right[j % 2 * 2], right[j % 2 * 2 + 1]);
        }
      }
    }
    read_stage += STAGE_BYTES;
    if (read_stage == stages + STAGES * STAGE_BYTES) read_stage = stages;
  }

  Output *output = static_cast<Output *>(to);
#pragma unroll
  for (int i = 0; i < DOWN; i++) {
#pragma unroll
    for (int j = 0; j < ACROSS; j++) {
      int row = first_row + warp_row + 16 * i + lane / 4;
      int column = first_column + warp_column + 8 * j + 2 * (lane % 4);
      if (column >= columns) continue;
      Output *at = output + static_cast<size_t>(row) * columns + column;
      if (row < rows) store_two(at, sums[i][j][0], sums[i][j][1]);
      if (row + 8 < rows) {
        store_two(at + static_cast<size_t>(8) * columns, sums[i][j][2], sums[i][j][3]);
      }
    }
  }
}

}  // namespace

// The grid has a block for each tile of all weights, and for each tile of rows. BLOCKS is how many
// blocks a multiprocessor should hold at least.
#define MATMUL(NAME, OUTPUT, ROWS, COLUMNS, WARP_ROWS, WARP_COLUMNS, STAGES, BLOCKS)                \
  extern "C" __global__ void __launch_bounds__(WARP_ROWS *WARP_COLUMNS *LANES, BLOCKS)              \
      NAME(const bf16 *x, const bf16 *w0, const bf16 *w1, const bf16 *w2, OUTPUT *y0, OUTPUT *y1,   \
           OUTPUT *y2, int n0, int n1, int n2, int rows, int k) {                                   \
    Weights weights = {{w0, w1, w2}, {y0, y1, y2}, {n0, n1, n2}};                                   \
    matmul<ROWS, COLUMNS, WARP_ROWS, WARP_COLUMNS, STAGES, OUTPUT>(x, weights, rows, k);            \
  }
#define MATMULS(ROWS, COLUMNS, WARP_ROWS, WARP_COLUMNS, STAGES, BLOCKS)                             \
  MATMUL(matmul_##ROWS##x##COLUMNS##_bf16, bf16, ROWS, COLUMNS, WARP_ROWS, WARP_COLUMNS, STAGES,    \
         BLOCKS)                                                                                    \
  MATMUL(matmul_##ROWS##x##COLUMNS##_f32, float, ROWS, COLUMNS, WARP_ROWS, WARP_COLUMNS, STAGES,    \
         BLOCKS)

// For up to 16 rows; for some more, where narrow tiles keep a GPU busy; and for many.
MATMULS(16, 16, 1, 1, 12, 4)
MATMULS(64, 16, 4, 1, 8, 2)
MATMULS(64, 32, 4, 1, 6, 2)
MATMULS(64, 64, 2, 2, 5, 2)
MATMULS(128, 128, 2, 4, 3, 2)
