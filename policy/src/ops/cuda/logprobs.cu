// Log-probabilities, entropies, their gradients, and samples of rows of logits [rows, columns] in
// f32. A block of THREADS threads works on one row.
//
// Invariant: a row's softmax has one definition, `softmax_statistics`, for sampling and training.
// Its sums run over segments of columns in one order.
#include "common.cuh"

namespace {

constexpr int THREADS = 1024, WARPS = THREADS / LANES;
// Columns of a segment, and the most segments of a row.
constexpr int SEGMENT = 1024, SEGMENTS = 512;
// The lowest shifted logit. Its exponential is zero, and zero times it is zero, where zero times
// minus infinity would be NaN.
constexpr float LOWEST = -1e4f;

struct Softmax {
  // The largest scaled logit; the sum of e^(z - largest); that of e^(z - largest) (z - largest).
  float largest, sum, weighted;

  // NaN stays NaN.
  __device__ __forceinline__ float shifted(float logit, float scale) const {
    float difference = logit * scale - largest;
    return difference < LOWEST ? LOWEST : difference;
  }
  __device__ __forceinline__ float logprob(float logit, float scale) const {
    return (logit * scale - largest) - logf(sum);
  }
  __device__ __forceinline__ float entropy() const { return logf(sum) - weighted / sum; }
};

__device__ __forceinline__ float largest_of_block(float x) {
  __shared__ float of_warps[WARPS];
  x = max_of_lanes(x);
  if (threadIdx.x % LANES == 0) of_warps[threadIdx.x / LANES] = x;
  __syncthreads();
  x = max_of_lanes(of_warps[threadIdx.x % LANES]);
  __syncthreads();
  return x;
}

// Sums numbers of shared memory in one order.
__device__ __forceinline__ float sum_of_segments(const float *of_segments, int segments) {
  float sum = 0;
  for (int at = threadIdx.x % LANES; at < segments; at += LANES) sum += of_segments[at];
  return sum_of_lanes(sum);
}

// Returns the statistics of a row to every thread. `drawable`, if given, receives the weight of
// each segment of the first `vocabulary` columns.
__device__ __forceinline__ Softmax softmax_statistics(const float *logits, int columns, float scale,
                                                      float *drawable, int vocabulary) {
  __shared__ float sums[SEGMENTS], weighted_sums[SEGMENTS];
  float largest = -INFINITY;
  for (int at = threadIdx.x; at < columns; at += THREADS) {
    largest = fmaxf(largest, logits[at] * scale);
  }
  Softmax found = {largest_of_block(largest), 0, 0};
  const int segments = (columns + SEGMENT - 1) / SEGMENT, lane = threadIdx.x % LANES;
  for (int segment = threadIdx.x / LANES; segment < segments; segment += WARPS) {
    float sum = 0, weighted = 0, drawn = 0;
    int last = min(columns, (segment + 1) * SEGMENT);
    for (int at = segment * SEGMENT + lane; at < last; at += LANES) {
      float shifted = found.shifted(logits[at], scale), weight = expf(shifted);
      sum += weight;
      weighted += weight * shifted;
      if (at < vocabulary) drawn += weight;
    }
    sum = sum_of_lanes(sum);
    weighted = sum_of_lanes(weighted);
    drawn = sum_of_lanes(drawn);
    if (lane == 0) {
      sums[segment] = sum;
      weighted_sums[segment] = weighted;
      if (drawable != nullptr) drawable[segment] = drawn;
    }
  }
  __syncthreads();
  found.sum = sum_of_segments(sums, segments);
  found.weighted = sum_of_segments(weighted_sums, segments);
  __syncthreads();
  return found;
}

}  // namespace

// Replaces the logits of tokens that a row may not choose: those whose bit of words [rows,
// row_words] is 0. Bit i of word w is column 32 w + i.
extern "C" __global__ void restrict_tokens(float *logits, const uint32_t *words, int columns,
                                           int row_words, float excluded) {
  int column = blockIdx.y * blockDim.x + threadIdx.x, row = blockIdx.x;
  if (column >= columns) return;
  uint32_t word = words[static_cast<size_t>(row) * row_words + column / 32];
  if ((word >> (column % 32) & 1) == 0) {
    logits[static_cast<size_t>(row) * columns + column] = excluded;
  }
}

// Writes log softmax(logits * scale) at the targets, and the entropies if they are asked for.
extern "C" __global__ void __launch_bounds__(THREADS)
    token_logprobs(const float *logits, const uint32_t *targets, const float *scales,
                   float *logprobs, float *entropies, int columns) {
  int row = blockIdx.x;
  logits += static_cast<size_t>(row) * columns;
  float scale = scales[row];
  Softmax softmax = softmax_statistics(logits, columns, scale, nullptr, 0);
  if (threadIdx.x == 0) {
    logprobs[row] = softmax.logprob(logits[targets[row]], scale);
    if (entropies != nullptr) entropies[row] = softmax.entropy();
  }
}

// Writes the gradient of the logits in bf16:
// (dlogprob (1[target] - p) - dentropy p (log p + entropy)) * scale.
extern "C" __global__ void __launch_bounds__(THREADS)
    token_logprobs_backward(const float *logits, const uint32_t *targets, const float *scales,
                            const float *dlogprobs, const float *dentropies, bf16 *dlogits,
                            int columns) {
  int row = blockIdx.x;
  logits += static_cast<size_t>(row) * columns;
  dlogits += static_cast<size_t>(row) * columns;
  float scale = scales[row], dlogprob = dlogprobs[row];
  float dentropy = dentropies != nullptr ? dentropies[row] : 0.0f;
  Softmax softmax = softmax_statistics(logits, columns, scale, nullptr, 0);
  float log_sum = logf(softmax.sum), entropy = softmax.entropy();
  int target = static_cast<int>(targets[row]);
  for (int at = threadIdx.x; at < columns; at += THREADS) {
    float logprob = softmax.shifted(logits[at], scale) - log_sum;
    float pull = dlogprob + dentropy * (logprob + entropy);
    float gradient = (at == target ? dlogprob : 0.0f) - expf(logprob) * pull;
    dlogits[at] = __float2bfloat16(gradient * scale);
  }
}

// Samples one of the first `vocabulary` columns of each row: the column whose share of
// softmax(logits * scale), in order of columns, contains the row's uniform number in [0, 1). A
// negative number takes the most probable column, the first of equals. Writes the columns and their
// log-probabilities over all columns.
extern "C" __global__ void __launch_bounds__(THREADS)
    draw_tokens(const float *logits, const float *scales, const double *uniforms, uint32_t *tokens,
                float *logprobs, int columns, int vocabulary) {
  __shared__ float drawable[SEGMENTS];
  __shared__ float bests[WARPS];
  __shared__ int places[WARPS];
  int row = blockIdx.x, lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
  logits += static_cast<size_t>(row) * columns;
  float scale = scales[row];
  double uniform = uniforms[row];
  Softmax softmax = softmax_statistics(logits, columns, scale, drawable, vocabulary);

  const int segments = (vocabulary + SEGMENT - 1) / SEGMENT;
  double total = 0;
  for (int segment = 0; segment < segments; segment++) total += drawable[segment];
  int token = 0;
  // Beside a far larger logit of padding, the weights of all columns that may be drawn are zero.
  if (uniform < 0 || total == 0) {
    float best = -INFINITY;
    int place = vocabulary;
    for (int at = threadIdx.x; at < vocabulary; at += THREADS) {
      if (logits[at] > best) {
        best = logits[at];
        place = at;
      }
    }
    auto take = [&](float other, int other_place) {
      if (other > best || (other == best && other_place < place)) {
        best = other;
        place = other_place;
      }
    };
    for (int distance = LANES / 2; distance > 0; distance /= 2) {
      float other = __shfl_xor_sync(0xffffffffu, best, distance);
      int other_place = __shfl_xor_sync(0xffffffffu, place, distance);
      take(other, other_place);
    }
    if (lane == 0) {
      bests[warp] = best;
      places[warp] = place;
    }
    __syncthreads();
    for (int i = 0; i < WARPS; i++) take(bests[i], places[i]);
    token = min(place, vocabulary - 1);
  } else if (warp == 0) {
    double target = uniform * total, before = 0;
    int held = 0;
    double held_before = 0;
    for (int segment = 0; segment < segments; segment++) {
      if (drawable[segment] > 0) {
        held = segment;
        held_before = before;
      }
      before += drawable[segment];
      if (target < before) break;
    }
    // Rounding can leave the sum a little below the target: then the last column with weight is
    // taken.
    int last = min(vocabulary, (held + 1) * SEGMENT), last_with_weight = held * SEGMENT;
    bool found = false;
    for (int first = held * SEGMENT; first < last && !found; first += LANES) {
      int at = first + lane;
      float weight = at < last ? expf(softmax.shifted(logits[at], scale)) : 0.0f;
      float prefix = weight;
      for (int distance = 1; distance < LANES; distance *= 2) {
        float other = __shfl_up_sync(0xffffffffu, prefix, distance);
        if (lane >= distance) prefix += other;
      }
      unsigned holds = __ballot_sync(0xffffffffu, weight > 0 && target < held_before + prefix);
      unsigned with_weight = __ballot_sync(0xffffffffu, weight > 0);
      if (with_weight != 0) last_with_weight = first + 31 - __clz(with_weight);
      if (holds != 0) {
        token = first + __ffs(holds) - 1;
        found = true;
      }
      held_before += __shfl_sync(0xffffffffu, prefix, LANES - 1);
    }
    if (!found) token = last_with_weight;
  }
  if (threadIdx.x == 0) {
    tokens[row] = token;
    logprobs[row] = softmax.logprob(logits[token], scale);
  }
}
