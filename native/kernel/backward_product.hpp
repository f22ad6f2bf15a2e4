// The products of the backward pass. Each element of a result sees one chain of fused multiply-adds in ascending order,
// carried on from where an earlier call left it, so that no cut of the work changes a bit.
#pragma once
#include "vector.hpp"

namespace {

// N vectors side by side, M rows of them: named members, because an indexed array would live in memory.
template <class T, int N> struct Side {
  Vec<T> first;
  Side<T, N - 1> rest;
  QKV_INLINE void clear() { first = Vec<T>{}, rest.clear(); }
  QKV_INLINE void read(const T *p) { first = load(p), rest.read(p + Real<T>::width); }
  QKV_INLINE void write(T *p) const { store(p, first), rest.write(p + Real<T>::width); }
  QKV_INLINE void add(Vec<T> a, const Side &b) { first = fma(a, b.first, first), rest.add(a, b.rest); }
};
template <class T> struct Side<T, 0> {
  QKV_INLINE void clear() {}
  QKV_INLINE void read(const T *) {}
  QKV_INLINE void write(T *) const {}
  QKV_INLINE void add(Vec<T>, const Side &) {}
};

template <class T, int M, int N> struct Grid {
  Side<T, N> row;
  Grid<T, M - 1, N> below;
  QKV_INLINE void clear() { row.clear(), below.clear(); }
  QKV_INLINE void read(const T *c, int64_t step) { row.read(c), below.read(c + step, step); }
  QKV_INLINE void write(T *c, int64_t step) const { row.write(c), below.write(c + step, step); }
  QKV_INLINE void add(const T *a, int64_t step, const Side<T, N> &b) { row.add(all<T>(*a), b), below.add(a + step, step, b); }
};
template <class T, int N> struct Grid<T, 0, N> {
  QKV_INLINE void clear() {}
  QKV_INLINE void read(const T *, int64_t) {}
  QKV_INLINE void write(T *, int64_t) const {}
  QKV_INLINE void add(const T *, int64_t, const Side<T, N> &) {}
};

// Enough accumulators to hide the latency of the fused multiply-add, as few as the registers hold.
constexpr int kGridRows = QKV_MANY_REGISTERS ? 12 : 6;
// Lanes of a panel, columns of a strip: two vectors.
template <class T> constexpr int kLanes = 2 * Real<T>::width;

// C[m][·] (+)= Σ_k A[m][k] B[k][·], one panel or strip wide; A[m][k] is a[m * step_m + k * step_k], B's rows are dense.
template <class T, int M>
QKV_INLINE void panel_product(int64_t rows, int64_t depth, const T *a, int64_t step_m, int64_t step_k, const T *b, T *c, bool fresh) {
  constexpr int W = kLanes<T>;
  for (; rows >= M; rows -= M, a += M * step_m, c += M * W) {
    Grid<T, M, 2> grid;
    if (fresh)
      grid.clear();
    else
      grid.read(c, W);
    for (int64_t k = 0; k < depth; ++k) {
      Side<T, 2> side;
      side.read(b + k * W);
      grid.add(a + k * step_k, step_m, side);
    }
    grid.write(c, W);
  }
  if constexpr (M > 1) panel_product<T, (M > 8 ? 8 : M > 4 ? 4 : M / 2)>(rows, depth, a, step_m, step_k, b, c, fresh);
}

// Scores of keys (rows, width) and a panel of queries: from zero.
template <class T>
__attribute__((noinline)) void keys_by_lanes(int64_t keys, int64_t width, const T *rows, const T *panel, T *out) {
  panel_product<T, kGridRows>(keys, width, rows, width, 1, panel, out, true);
}

// Σ over keys of key columns times a panel of scores: added to a panel (width, lanes).
template <class T>
__attribute__((noinline)) void columns_by_lanes(int64_t keys, int64_t width, const T *rows, const T *panel, T *out) {
  panel_product<T, kGridRows>(width, keys, rows, 1, width, panel, out, false);
}

// What a sum over lanes reads: panels of scores [panel][block][W], of which `active` are listed, and a strip of columns
// [lane][W] of what the lanes hold.
template <class T> struct Lanes {
  const T *panels, *strip;
  int64_t panel_step;
  const int32_t *active;
  int64_t count;
};

// C[m][·] += Σ over the active panels' lanes of A[m][lane] B[lane][·]; rows of C lie `step` apart.
template <class T, int M> QKV_INLINE void lane_product(int64_t rows, const Lanes<T> &lanes, int64_t first, T *c, int64_t step) {
  constexpr int W = kLanes<T>;
  for (; rows >= M; rows -= M, first += M, c += M * step) {
    Grid<T, M, 2> grid;
    grid.read(c, step);
    for (int64_t at = 0; at < lanes.count; ++at) {
      const int64_t panel = lanes.active[at];
      const T *a = lanes.panels + panel * lanes.panel_step + first * W, *b = lanes.strip + panel * W * W;
      for (int64_t k = 0; k < W; ++k) {
        Side<T, 2> side;
        side.read(b + k * W);
        grid.add(a + k, W, side);
      }
    }
    grid.write(c, step);
  }
  if constexpr (M > 1) lane_product<T, (M > 8 ? 8 : M > 4 ? 4 : M / 2)>(rows, lanes, first, c, step);
}

// Rows of keys' gradients (keys, width), `step` apart, a strip at a time; the last strip may be narrower than its lanes.
template <class T>
__attribute__((noinline)) void lanes_by_columns(int64_t keys, int64_t width, const Lanes<T> &of, int64_t strip_step, T *out, int64_t step) {
  constexpr int W = kLanes<T>;
  Lanes<T> lanes = of;
  for (int64_t column = 0; column < width; column += W, lanes.strip += strip_step) {
    const int64_t columns = width - column < W ? width - column : W;
    if (columns == W) {
      lane_product<T, kGridRows>(keys, lanes, 0, out + column, step);
      continue;
    }
    alignas(64) T some[kGridRows * W];
    for (int64_t j = 0; j < keys; j += kGridRows) {
      const int64_t rows = keys - j < kGridRows ? keys - j : kGridRows;
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < W; ++i) some[r * W + i] = i < columns ? out[(j + r) * step + column + i] : T(0);
      lane_product<T, kGridRows>(rows, lanes, j, some, W);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < columns; ++i) out[(j + r) * step + column + i] = some[r * W + i];
    }
  }
}

}  // namespace
