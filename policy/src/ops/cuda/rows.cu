// Operations on rows and elements: RMSNorm, rotary embedding, SwiGLU, and writes to the KV cache.
//
// Values are computed in f32 and rounded once. Sums run in one order, whatever the number of rows.
#include "common.cuh"

// y [rows, width] = x / sqrt(mean(x^2) + eps) * weight, and 1 / sqrt(...) of each row if `inverses`
// is given. One warp for each row.
extern "C" __global__ void rms_norm(const bf16 *x, const bf16 *weight, bf16 *y, float *inverses,
                                    int rows, int width, float eps) {
  int row = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
  if (row >= rows) return;
  int lane = threadIdx.x % LANES;
  x += static_cast<size_t>(row) * width;
  y += static_cast<size_t>(row) * width;
  float squares = 0, values[8], scales[8];
  for (int at = lane * 8; at < width; at += LANES * 8) {
    Eight::load(x + at).widen(values);
    for (int i = 0; i < 8; i++) squares += values[i] * values[i];
  }
  float inverse = 1.0f / sqrtf(sum_of_lanes(squares) / width + eps);
  for (int at = lane * 8; at < width; at += LANES * 8) {
    Eight::load(x + at).widen(values);
    Eight::load(weight + at).widen(scales);
    for (int i = 0; i < 8; i++) values[i] = values[i] * inverse * scales[i];
    Eight::rounded(values).store(y + at);
  }
  if (inverses != nullptr && lane == 0) inverses[row] = inverse;
}

// sum = x + y [rows, width], rounded, and normed = rms_norm(sum). One warp for each row.
extern "C" __global__ void add_and_norm(const bf16 *x, const bf16 *y, const bf16 *weight, bf16 *sum,
                                        bf16 *normed, int rows, int width, float eps) {
  int row = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
  if (row >= rows) return;
  int lane = threadIdx.x % LANES;
  size_t offset = static_cast<size_t>(row) * width;
  float squares = 0, values[8], others[8];
  for (int at = lane * 8; at < width; at += LANES * 8) {
    Eight::load(x + offset + at).widen(values);
    Eight::load(y + offset + at).widen(others);
    for (int i = 0; i < 8; i++) values[i] += others[i];
    Eight rounded = Eight::rounded(values);
    rounded.store(sum + offset + at);
    rounded.widen(values);
    for (int i = 0; i < 8; i++) squares += values[i] * values[i];
  }
  float inverse = 1.0f / sqrtf(sum_of_lanes(squares) / width + eps);
  // A lane reads what it wrote itself.
  for (int at = lane * 8; at < width; at += LANES * 8) {
    Eight::load(sum + offset + at).widen(values);
    Eight::load(weight + at).widen(others);
    for (int i = 0; i < 8; i++) values[i] = values[i] * inverse * others[i];
    Eight::rounded(values).store(normed + offset + at);
  }
}

// The gradient of x: with n = x * inverse and u = dy * weight, (u - n mean(u n)) * inverse, plus
// `residual` if it is given. Writes the inverses too. One warp for each row.
extern "C" __global__ void rms_norm_backward(const bf16 *x, const bf16 *weight, const bf16 *dy,
                                             const bf16 *residual, bf16 *dx, float *inverses,
                                             int rows, int width, float eps) {
  int row = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
  if (row >= rows) return;
  int lane = threadIdx.x % LANES;
  size_t offset = static_cast<size_t>(row) * width;
  float squares = 0, dot = 0, values[8], scales[8], gradients[8], added[8];
  for (int at = lane * 8; at < width; at += LANES * 8) {
    Eight::load(x + offset + at).widen(values);
    Eight::load(weight + at).widen(scales);
    Eight::load(dy + offset + at).widen(gradients);
    for (int i = 0; i < 8; i++) {
      squares += values[i] * values[i];
      dot += gradients[i] * scales[i] * values[i];
    }
  }
  float inverse = 1.0f / sqrtf(sum_of_lanes(squares) / width + eps);
  float mean = sum_of_lanes(dot) * inverse / width;
  for (int at = lane * 8; at < width; at += LANES * 8) {
    Eight::load(x + offset + at).widen(values);
    Eight::load(weight + at).widen(scales);
    Eight::load(dy + offset + at).widen(gradients);
    if (residual != nullptr) Eight::load(residual + offset + at).widen(added);
    for (int i = 0; i < 8; i++) {
      float gradient = (gradients[i] * scales[i] - values[i] * inverse * mean) * inverse;
      values[i] = residual != nullptr ? gradient + added[i] : gradient;
    }
    Eight::rounded(values).store(dx + offset + at);
  }
  if (lane == 0) inverses[row] = inverse;
}

// Partial sums [gridDim.x, width] of dy * x * inverse over strips of `strip` rows: the gradient of
// a norm's weight. One thread for each column.
extern "C" __global__ void rms_norm_weight_gradient(const bf16 *x, const bf16 *dy,
                                                    const float *inverses, float *partial, int rows,
                                                    int width, int strip) {
  int column = blockIdx.y * blockDim.x + threadIdx.x;
  if (column >= width) return;
  int first = blockIdx.x * strip, last = min(rows, first + strip);
  float sum = 0;
  for (int row = first; row < last; row++) {
    size_t at = static_cast<size_t>(row) * width + column;
    sum += __bfloat162float(dy[at]) * (__bfloat162float(x[at]) * inverses[row]);
  }
  partial[static_cast<size_t>(blockIdx.x) * width + column] = sum;
}

// Rotates the pairs (i, i + width / 2) of x [tokens, heads, width] by the angles whose cosines and
// then sines are cos_sin [tokens, width]; `sign` -1 rotates back.
extern "C" __global__ void rope(const bf16 *x, const float *cos_sin, bf16 *y, int tokens, int heads,
                                int width, float sign) {
  int half = width / 2;
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= tokens * heads * half) return;
  int i = at % half, head = at / half, token = head / heads;
  float cos = cos_sin[token * width + i], sin = sign * cos_sin[token * width + half + i];
  size_t from = static_cast<size_t>(head) * width + i;
  float left = __bfloat162float(x[from]), right = __bfloat162float(x[from + half]);
  y[from] = __float2bfloat16(left * cos - right * sin);
  y[from + half] = __float2bfloat16(right * cos + left * sin);
}

// Norms the heads of queries [tokens, heads, width] and keys [tokens, kv_heads, width], if weights
// are given, and rotates them. One warp for each head; width is 32, 64 or 128.
extern "C" __global__ void norm_and_rope(const bf16 *q, const bf16 *k, const bf16 *q_weight,
                                         const bf16 *k_weight, const float *cos_sin, bf16 *q_out,
                                         bf16 *k_out, int tokens, int heads, int kv_heads,
                                         int width, float eps) {
  int at = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
  if (at >= tokens * (heads + kv_heads)) return;
  int lane = threadIdx.x % LANES, token = at / (heads + kv_heads), head = at % (heads + kv_heads);
  bool is_query = head < heads;
  size_t offset = static_cast<size_t>(is_query ? token * heads + head
                                               : token * kv_heads + head - heads) * width;
  const bf16 *x = (is_query ? q : k) + offset, *weight = is_query ? q_weight : k_weight;
  bf16 *y = (is_query ? q_out : k_out) + offset;
  // A lane has the columns lane, lane + 32, ...
  const int count = width / LANES;
  float values[4], squares = 0;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    values[j] = j < count ? __bfloat162float(x[lane + LANES * j]) : 0.0f;
    squares += values[j] * values[j];
  }
  if (weight != nullptr) {
    float inverse = 1.0f / sqrtf(sum_of_lanes(squares) / width + eps);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      if (j >= count) continue;
      float scale = __bfloat162float(weight[lane + LANES * j]);
      values[j] = __bfloat162float(__float2bfloat16(values[j] * inverse * scale));
    }
  }
  const float *cosines = cos_sin + static_cast<size_t>(token) * width, *sines = cosines + width / 2;
  if (count == 1) {
    float other = __shfl_xor_sync(0xffffffffu, values[0], 16);
    int i = lane % 16;
    float signed_sine = lane < 16 ? -sines[i] : sines[i];
    y[lane] = __float2bfloat16(values[0] * cosines[i] + other * signed_sine);
    return;
  }
#pragma unroll
  for (int j = 0; j < 2; j++) {
    if (j >= count / 2) continue;
    int i = lane + LANES * j;
    float left = values[j], right = count == 4 ? values[j + 2] : values[j + 1];
    y[i] = __float2bfloat16(left * cosines[i] - right * sines[i]);
    y[i + width / 2] = __float2bfloat16(right * cosines[i] + left * sines[i]);
  }
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// out = gate * sigmoid(gate) * up, eight elements a thread.
extern "C" __global__ void swiglu(const bf16 *gate, const bf16 *up, bf16 *out, int elements) {
  int at = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
  if (at >= elements) return;
  float gates[8], ups[8];
  Eight::load(gate + at).widen(gates);
  Eight::load(up + at).widen(ups);
  for (int i = 0; i < 8; i++) gates[i] = gates[i] * sigmoid(gates[i]) * ups[i];
  Eight::rounded(gates).store(out + at);
}

// The gradients of gate and up: with s = sigmoid(gate), dout * up * (s + gate s (1 - s)) and
// dout * gate * s.
extern "C" __global__ void swiglu_backward(const bf16 *gate, const bf16 *up, const bf16 *dout,
                                           bf16 *dgate, bf16 *dup, int elements) {
  int at = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
  if (at >= elements) return;
  float gates[8], ups[8], douts[8];
  Eight::load(gate + at).widen(gates);
  Eight::load(up + at).widen(ups);
  Eight::load(dout + at).widen(douts);
  for (int i = 0; i < 8; i++) {
    float s = sigmoid(gates[i]), x = gates[i] * s;
    gates[i] = douts[i] * ups[i] * (s + x * (1.0f - s));
    ups[i] = douts[i] * x;
  }
  Eight::rounded(gates).store(dgate + at);
  Eight::rounded(ups).store(dup + at);
}

// Adds rows of x [N, width] to rows of sum [R, width]: to row targets[g] the rows
// order[starts[g]..starts[g + 1]], in that order, rounded once. One block for each g.
extern "C" __global__ void add_rows(bf16 *sum, const bf16 *x, const uint32_t *targets,
                                    const uint32_t *starts, const uint32_t *order, int width) {
  bf16 *to = sum + static_cast<size_t>(targets[blockIdx.x]) * width;
  uint32_t first = starts[blockIdx.x], last = starts[blockIdx.x + 1];
  for (int at = threadIdx.x * 8; at < width; at += blockDim.x * 8) {
    float total[8], added[8];
    Eight::load(to + at).widen(total);
    for (uint32_t i = first; i < last; i++) {
      Eight::load(x + static_cast<size_t>(order[i]) * width + at).widen(added);
      for (int j = 0; j < 8; j++) total[j] += added[j];
    }
    Eight::rounded(total).store(to + at);
  }
}

// Writes keys and values [tokens, heads, width] to the tokens' slots of the pages
// [heads, slots, width], eight values a thread.
extern "C" __global__ void append_to_pages(const bf16 *k, const bf16 *v, const uint32_t *slot_mapping,
                                           bf16 *keys, bf16 *values, int tokens, int heads,
                                           int width, int slots) {
  int chunks = width / 8;
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= tokens * heads * chunks) return;
  int chunk = at % chunks, head = at / chunks % heads, token = at / chunks / heads;
  size_t to = (static_cast<size_t>(head) * slots + slot_mapping[token]) * width + chunk * 8;
  size_t from = static_cast<size_t>(at) * 8;
  Eight::load(k + from).store(keys + to);
  Eight::load(v + from).store(values + to);
}
