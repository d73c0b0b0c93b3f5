// What the kernels of attention share: rows, their keys, and tiles of queries and keys.
//
// Shapes: T packed tokens, H query heads, K key-value heads, D head size, G = H / K heads of a
// group. A tile of queries holds a row's tokens with all heads of a group, so that a key is loaded
// once for the group: query i of a tile is token i / G and head i % G.
#pragma once

#include "common.cuh"

// Keys of a block. Every kernel visits a row's keys in blocks from position 0 on.
constexpr int KEYS = 64;
// Tokens of a page (kv_pages.rs).
constexpr int PAGE = 32;
constexpr float LOG2_E = 1.4426950408889634f;

// A row of the batch.
struct Row {
  // Its first packed token, and how many it has.
  int first, len;
  // The position of its first token: so many keys come before its own.
  int past;
  // Where the keys before are: with pages, the start of the row's block table; without, the packed
  // token at position 0 of the row that it continues.
  int prefix;
};

// Where keys and values are. Without pages they are [T, K, D]; with pages [K, slots, D].
struct KeyLayout {
  // Null without pages.
  const uint32_t *tables;
  size_t head_stride, slot_stride;

  __device__ __forceinline__ size_t offset(const Row &row, int kv_head, int position) const {
    size_t slot;
    if (tables != nullptr) {
      slot = static_cast<size_t>(tables[row.prefix + position / PAGE]) * PAGE + position % PAGE;
    } else {
      slot = position < row.past ? row.prefix + position : row.first + position - row.past;
    }
    return kv_head * head_stride + slot * slot_stride;
  }
};

// Starts the copies of a block of keys (or values) from position `first` on. What lies at `end` and
// beyond is zero.
template <int D, int THREADS>
__device__ __forceinline__ void load_keys(uint32_t tile, const bf16 *keys, const KeyLayout &layout,
                                          const Row &row, int kv_head, int first, int end) {
  constexpr int CHUNKS = D / CHUNK;
  for (int at = threadIdx.x; at < KEYS * CHUNKS; at += THREADS) {
    int key = at / CHUNKS, chunk = at % CHUNKS, position = first + key;
    bool valid = position < end;
    const bf16 *from = valid ? keys + layout.offset(row, kv_head, position) + chunk * CHUNK : keys;
    copy_async(tile_address<CHUNKS>(tile, key, chunk), from, valid);
  }
}

// Starts the copies of a tile of queries [T, H, D] from the row's token `first` on. What no token
// fills is zero.
template <int D, int QUERIES, int THREADS>
__device__ __forceinline__ void load_queries(uint32_t tile, const bf16 *q, const Row &row,
                                             int kv_head, int first, int heads, int group) {
  constexpr int CHUNKS = D / CHUNK;
  for (int at = threadIdx.x; at < QUERIES * CHUNKS; at += THREADS) {
    int query = at / CHUNKS, chunk = at % CHUNKS;
    int token = first + query / group;
    bool valid = query < QUERIES / group * group && token < row.len;
    size_t head = static_cast<size_t>(row.first + token) * heads + kv_head * group + query % group;
    copy_async(tile_address<CHUNKS>(tile, query, chunk), valid ? q + head * D + chunk * CHUNK : q,
               valid);
  }
}
