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
  constexpr int THREADS = 256;
  __shared__ double sums[THREADS];
  size_t start = static_cast<size_t>(blockIdx.x) * strip;
  size_t end = min(count, start + strip);
  double sum = 0;
#pragma unroll 8
  for (size_t at = start + threadIdx.x; at < end; at += THREADS) {
    double value = x[at];
    sum += value * value;
  }
  sums[threadIdx.x] = sum;
  for (int half = THREADS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) partial[offset + blockIdx.x] = sums[0];
}
