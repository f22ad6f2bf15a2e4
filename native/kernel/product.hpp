// The one matrix product of the engine. Lanes are query rows:
//   C[m][lane] = fma(A[m][k], B[k][lane], C[m][lane]),  k ascending,
// is Sᵀ = K Qᵀ with A = keys and Oᵀ += Vᵀ Pᵀ with A = values read along columns. Whatever the size of the register
// tile, each element of C sees the same chain of operations.
#pragma once
#include "vector.hpp"

namespace {

// N vectors side by side; named members because an indexed array would live in memory.
template <class T, int N> struct Row {
  Vec<T> first;
  Row<T, N - 1> rest;
  QKV_INLINE void read(const T *p) { first = load(p), rest.read(p + Real<T>::width); }
  QKV_INLINE void write(T *p) const { store(p, first), rest.write(p + Real<T>::width); }
  QKV_INLINE void scale(const Row &by) { first = first * by.first, rest.scale(by.rest); }
  QKV_INLINE void add(Vec<T> a, const Row &b) { first = fma(a, b.first, first), rest.add(a, b.rest); }
  QKV_INLINE void clear() { first = Vec<T>{}, rest.clear(); }
};
template <class T> struct Row<T, 0> {
  QKV_INLINE void read(const T *) {}
  QKV_INLINE void write(T *) const {}
  QKV_INLINE void scale(const Row &) {}
  QKV_INLINE void add(Vec<T>, const Row &) {}
  QKV_INLINE void clear() {}
};

template <class T, int M, int N> struct Tile {
  static constexpr int lanes = N * Real<T>::width;
  Row<T, N> row;
  Tile<T, M - 1, N> below;
  QKV_INLINE void clear() { row.clear(), below.clear(); }
  QKV_INLINE void read_scaled(const T *c, const Row<T, N> &by) {
    row.read(c), row.scale(by), below.read_scaled(c + lanes, by);
  }
  QKV_INLINE void add(const T *a, int64_t step, const Row<T, N> &b) {
    row.add(all<T>(*a), b), below.add(a + step, step, b);
  }
  QKV_INLINE void write(T *c) const { row.write(c), below.write(c + lanes); }
};
template <class T, int N> struct Tile<T, 0, N> {
  QKV_INLINE void clear() {}
  QKV_INLINE void read_scaled(const T *, const Row<T, N> &) {}
  QKV_INLINE void add(const T *, int64_t, const Row<T, N> &) {}
  QKV_INLINE void write(T *) const {}
};

// M rows of C. A[m][k] is a[m * step_m + k * step_k]; scale null: C starts from zero, else from C * scale[lane].
template <class T, int M, int N>
QKV_INLINE void product_tile(int64_t depth, const T *a, int64_t step_m, int64_t step_k, const T *b, T *c, const T *scale) {
  constexpr int lanes = N * Real<T>::width;
  Tile<T, M, N> tile;
  if (scale) {
    Row<T, N> by;
    by.read(scale);
    tile.read_scaled(c, by);
  } else {
    tile.clear();
  }
  for (int64_t k = 0; k < depth; ++k) {
    Row<T, N> row;
    row.read(b + k * lanes);
    tile.add(a + k * step_k, step_m, row);
  }
  tile.write(c);
}

// As many rows as M at a time, then half as many, down to one.
template <class T, int M, int N>
QKV_INLINE void product_rows(int64_t rows, int64_t depth, const T *a, int64_t step_m, int64_t step_k, const T *b, T *c,
                             const T *scale) {
  for (; rows >= M; rows -= M, a += M * step_m, c += M * N * Real<T>::width)
    product_tile<T, M, N>(depth, a, step_m, step_k, b, c, scale);
  if constexpr (M > 1) product_rows<T, (M > 8 ? 8 : M > 4 ? 4 : M / 2), N>(rows, depth, a, step_m, step_k, b, c, scale);
}

// Enough accumulators to hide the latency of the fused multiply-add, as few as the registers hold.
template <int N> constexpr int kTileRows = N == 1 || QKV_MANY_REGISTERS ? 12 : 6;

template <class T, int N>
__attribute__((noinline)) void scores_of(int64_t keys, int64_t D, const T *key, const T *query, T *score) {
  product_rows<T, kTileRows<N>, N>(keys, D, key, D, 1, query, score, nullptr);
}

template <class T, int N>
__attribute__((noinline)) void mix_values(int64_t keys, int64_t E, const T *value, const T *weight, T *mix, const T *alpha) {
  product_rows<T, kTileRows<N>, N>(E, keys, value, 1, E, weight, mix, alpha);
}

}  // namespace
