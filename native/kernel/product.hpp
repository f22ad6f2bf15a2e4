// The one matrix product of the engine. Lanes are columns of B and C:
//   X[m][lane] = fma(A[m][k], B[k][lane], X[m][lane]) from 0, k ascending,
// is Sᵀ = K Qᵀ with A = keys and Oᵀ = Vᵀ Pᵀ with A = values read along columns, where lanes are query rows; and with few
// rows S = Q Kᵀ, where lanes are keys, and O = P V, where lanes are columns of the values. Whatever the size of the
// register tile and whatever the lanes, each element of X sees the same chain of operations.
#pragma once
#include "element.hpp"

namespace {

// One vector of the compute type from as many elements of the caller's.
template <class T, class Source> QKV_INLINE Vec<T> load_wide(const char *p) {
  if constexpr (Source::size == int(sizeof(T))) {
    return load<T>((const T *)p);
  } else if constexpr (Source::dtype == QKV_BF16) {
    typedef uint16_t Half __attribute__((vector_size(QKV_VECTOR_BYTES / 2)));
    Half half;
    __builtin_memcpy(&half, p, sizeof half);
    return (Vec<T>)(__builtin_convertvector(half, IVec<T>) << 16);
  } else {
#if defined(__AVX512F__)
    return (Vec<T>)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256((const __m256i *)p));
#elif defined(__F16C__) && QKV_VECTOR_BYTES == 32
    return (Vec<T>)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#else
    Vec<T> v;
    for (int i = 0; i < Real<T>::width; ++i) v[i] = T(Source::read(p + i * Source::size));
    return v;
#endif
  }
}

// The compute type itself, spelled like the other elements. Two bfloat16 in one word pass through it unchanged.
template <class Number> struct Plain {
  typedef Number T;
  static constexpr int size = int(sizeof(T));
  static constexpr int dtype = -1;
  static QKV_INLINE T read(const char *p) {
    T x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  static QKV_INLINE void write(char *p, T x) { __builtin_memcpy(p, &x, sizeof x); }
};

// N vectors side by side; named members because an indexed array would live in memory.
template <class T, int N> struct Row {
  Vec<T> first;
  Row<T, N - 1> rest;
  template <class Source> QKV_INLINE void read(const char *p) {
    first = load_wide<T, Source>(p), rest.template read<Source>(p + Real<T>::width * Source::size);
  }
  QKV_INLINE void read(const T *p) { first = load(p), rest.read(p + Real<T>::width); }
  QKV_INLINE void write(T *p) const { store(p, first), rest.write(p + Real<T>::width); }
  QKV_INLINE void write_onto(T *p, const Row &by) const {
    store(p, fma(load(p), by.first, first)), rest.write_onto(p + Real<T>::width, by.rest);
  }
  QKV_INLINE void add(Vec<T> a, const Row &b) { first = fma(a, b.first, first), rest.add(a, b.rest); }
#if defined(__AVX512BF16__)
  QKV_INLINE void add_pairs(__m512i a, const Row &b) {
    first = (Vec<T>)_mm512_dpbf16_ps((__m512)first, (__m512bh)a, (__m512bh)b.first), rest.add_pairs(a, b.rest);
  }
#endif
  QKV_INLINE void write_scaled(T *p, Vec<T> by) const { store(p, first * by), rest.write_scaled(p + Real<T>::width, by); }
  QKV_INLINE void clear() { first = Vec<T>{}, rest.clear(); }
};
template <class T> struct Row<T, 0> {
  template <class Source> QKV_INLINE void read(const char *) {}
  QKV_INLINE void read(const T *) {}
  QKV_INLINE void write(T *) const {}
  QKV_INLINE void write_onto(T *, const Row &) const {}
  QKV_INLINE void add(Vec<T>, const Row &) {}
#if defined(__AVX512BF16__)
  QKV_INLINE void add_pairs(__m512i, const Row &) {}
#endif
  QKV_INLINE void write_scaled(T *, Vec<T>) const {}
  QKV_INLINE void clear() {}
};

template <class T, int M, int N> struct Tile {
  Row<T, N> row;
  Tile<T, M - 1, N> below;
  QKV_INLINE void clear() { row.clear(), below.clear(); }
  QKV_INLINE void read(const T *c, int64_t step) { row.read(c), below.read(c + step, step); }
  QKV_INLINE void add(const T *a, int64_t step, const Row<T, N> &b) {
    row.add(all<T>(*a), b), below.add(a + step, step, b);
  }
#if defined(__AVX512BF16__)
  // Neighbouring bfloat16 of A as one word, `step` bytes from row to row.
  QKV_INLINE void add_pairs(const char *a, int64_t step, const Row<T, N> &b) {
    int32_t word;
    __builtin_memcpy(&word, a, 4);
    row.add_pairs(_mm512_set1_epi32(word), b), below.add_pairs(a + step, step, b);
  }
#endif
  QKV_INLINE void write_scaled(T *c, int64_t step, Vec<T> by) const { row.write_scaled(c, by), below.write_scaled(c + step, step, by); }
  QKV_INLINE void write(T *c, int64_t step) const { row.write(c), below.write(c + step, step); }
  QKV_INLINE void write_onto(T *c, int64_t step, const Row<T, N> &by) const {
    row.write_onto(c, by), below.write_onto(c + step, step, by);
  }
};
template <class T, int N> struct Tile<T, 0, N> {
  QKV_INLINE void clear() {}
  QKV_INLINE void read(const T *, int64_t) {}
  QKV_INLINE void add(const T *, int64_t, const Row<T, N> &) {}
#if defined(__AVX512BF16__)
  QKV_INLINE void add_pairs(const char *, int64_t, const Row<T, N> &) {}
#endif
  QKV_INLINE void write_scaled(T *, int64_t, Vec<T>) const {}
  QKV_INLINE void write(T *, int64_t) const {}
  QKV_INLINE void write_onto(T *, int64_t, const Row<T, N> &) const {}
};

// M rows of lanes that are query rows. A[m][k] is a[m * step_m + k * step_k]; scale null: C = X, else
// C = fma(C, scale[lane], X).
template <class T, int M, int N>
QKV_INLINE void product_tile(int64_t depth, const T *a, int64_t step_m, int64_t step_k, const T *b, T *c, const T *scale) {
  constexpr int lanes = N * Real<T>::width;
  Tile<T, M, N> tile;
  tile.clear();
  for (int64_t k = 0; k < depth; ++k) {
    Row<T, N> row;
    row.read(b + k * lanes);
    tile.add(a + k * step_k, step_m, row);
  }
  if (scale) {
    Row<T, N> by;
    by.read(scale);
    tile.write_onto(c, lanes, by);
  } else {
    tile.write(c, lanes);
  }
}

// As many rows as M at a time, then fewer, down to one. Two rows too few or left over are four and four: two alone would
// wait for each other's sums.
template <class T, int M, int N>
QKV_INLINE void product_rows(int64_t rows, int64_t depth, const T *a, int64_t step_m, int64_t step_k, const T *b, T *c,
                             const T *scale) {
  for (; rows >= M && !(M == 6 && rows == 8); rows -= M, a += M * step_m, c += M * N * Real<T>::width)
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

// M rows at a step of step_c, lanes being columns of B, whose rows are step_b bytes apart and of any element type:
// C = C + X if `onto` (the chain goes on where C stands), else C = X.
// Pairs: A and B are pairs of bfloat16 in words (pairs.hpp).
template <class T, class Source, int M, int N, bool Pairs, class Each>
QKV_INLINE void product_strip(int64_t depth, const T *a, int64_t step_m, const char *b, int64_t step_b, T *c, int64_t step_c,
                              bool onto, Each each) {
  Tile<T, M, N> tile;
  if (onto)
    tile.read(c, step_c);
  else
    tile.clear();
  for (int64_t k = 0; k < depth; ++k) {
    Row<T, N> row;
    row.template read<Source>(b + k * step_b);
#if defined(__AVX512BF16__)
    if constexpr (Pairs)
      tile.add_pairs((const char *)(a + k), step_m * int64_t(sizeof(T)), row);
    else
#endif
      tile.add(a + k, step_m, row);
    each();
  }
  tile.write(c, step_c);
}

}  // namespace
