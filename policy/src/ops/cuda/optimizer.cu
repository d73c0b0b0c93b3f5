// The optimizer's passes over f32 values: the update of AdamW and the sum of squares.
//
// The learner's loop for the CPU (learner/src/optimizer/update.rs) computes the same sequence of
// operations, each of them rounded to the nearest value, so both give the same bits.
#include <cstddef>

// One update of `count` values with their gradients and moments. One thread for each value. The
// constants are those of `AdamWConstants`.
extern "C" __global__ void adamw(const float *values, const float *gradients, const float *first,
                                 const float *second, float *new_values, float *new_first,
                                 float *new_second, size_t count, float gradient_factor, float keep,
                                 float first_rate, float second_keep, float second_rate,
                                 float step_size, float second_correction, float epsilon) {
  size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= count) return;
  float gradient = gradient_factor * gradients[at];
  float mean = first[at];
  mean += first_rate * (gradient - mean);
  float squares = second_keep * second[at] + second_rate * gradient * gradient;
  float denominator = sqrtf(squares) / second_correction + epsilon;
  new_values[at] = keep * values[at] - step_size * (mean / denominator);
  new_first[at] = mean;
  new_second[at] = squares;
}

// partial[offset + block] = the sum of the squares of the block's `strip` values, in one order. A
// square of an f32 value does not overflow in f64, so the sum is finite only if all values are.
// The block has 256 threads.
extern "C" __global__ void sums_of_squares(const float *x, double *partial, size_t count, int strip,
                                           int offset) {
  constexpr int THREADS = 256, AT_ONCE = 8;
  __shared__ double sums[THREADS];
  size_t start = static_cast<size_t>(blockIdx.x) * strip;
  size_t end = min(count, start + strip);
  size_t at = start + threadIdx.x;
  double sum = 0;
  // So many loads are under way at once. With an exit after each of them a thread would wait for
  // it.
  for (; at + (AT_ONCE - 1) * THREADS < end; at += AT_ONCE * THREADS) {
    float values[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) values[i] = x[at + i * THREADS];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) sum += static_cast<double>(values[i]) * values[i];
  }
  for (; at < end; at += THREADS) sum += static_cast<double>(x[at]) * x[at];
  sums[threadIdx.x] = sum;
  for (int half = THREADS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) partial[offset + blockIdx.x] = sums[0];
}
