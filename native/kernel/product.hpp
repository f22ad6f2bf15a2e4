// The one matrix product of the engine. Lanes are columns of B and C:
//   X[m][lane] = fma(A[m][k], B[k][lane], X[m][lane]) from 0, k ascending,
// is Sᵀ = K Qᵀ with A = keys and Oᵀ = Vᵀ Pᵀ with A = values read along columns, where lanes are query rows; and with few
// rows S = Q Kᵀ, where lanes are keys, and O = P V, where lanes are columns of the values. Whatever the size of the
// register tile and whatever the lanes, each element of X sees the same chain of operations.
#pragma once
#include "element.hpp"
#include "fetch.hpp"

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
  template <int V> QKV_INLINE void add_one(Vec<T> a, Vec<T> b) {
    if constexpr (V == 0)
      first = fma(a, b, first);
    else
      rest.template add_one<V - 1>(a, b);
  }
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
  // Into one of the N vectors alone.
  template <int V> QKV_INLINE void add_one(const T *a, int64_t step, Vec<T> b) {
    row.template add_one<V>(all<T>(*a), b), below.template add_one<V>(a + step, step, b);
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
  template <int V> QKV_INLINE void add_one(const T *, int64_t, Vec<T>) {}
#if defined(__AVX512BF16__)
  QKV_INLINE void add_pairs(const char *, int64_t, const Row<T, N> &) {}
#endif
  QKV_INLINE void write_scaled(T *, int64_t, Vec<T>) const {}
  QKV_INLINE void write(T *, int64_t) const {}
  QKV_INLINE void write_onto(T *, int64_t, const Row<T, N> &) const {}
};

// Which keys of a block the vectors of a panel meet, of two vectors first those that only the first meets, [from[0], from[1]),
// then those that both do, and last those that only the second does: rows of a panel are neighbours, so what one vector of
// them may read begins and ends no later than what the next may. Keys between the vectors' spans meet neither.
template <int N> struct Spans {
  int64_t from[N], to[N];
  int64_t lead() const { return N == 2 && from[N - 1] < to[0] ? from[N - 1] : to[0]; }          // end of the first part
  int64_t tail() const { return N == 2 && to[0] > from[N - 1] ? to[0] : from[N - 1]; }          // begin of the last part
  bool whole() const { return from[0] == from[N - 1] && to[0] == to[N - 1]; }
};

// M rows of scores for N of the panel's lanes, of which there are `lanes` in all: C = K B from 0 over the depth.
template <class T, int M, int N> QKV_INLINE void score_tile(int64_t D, const T *key, const T *query, T *score, int64_t lanes) {
  Tile<T, M, N> tile;
  tile.clear();
  for (int64_t d = 0; d < D; ++d) {
    Row<T, N> row;
    row.read(query + d * lanes);
    tile.add(key + d, D, row);
  }
  tile.write(score, lanes);
}

// Enough accumulators to hide the latency of the fused multiply-add, as few as the registers hold.
template <int N> constexpr int kTileRows = N == 1 || QKV_MANY_REGISTERS ? 12 : 6;

// Fewer rows than a full tile has.
constexpr int fewer(int M) { return M > 8 ? 8 : M > 4 ? 4 : M / 2; }

// As many rows as M at a time, then fewer, down to one: calls one(Count<M>(), row). Two rows too few or left over are four
// and four: two alone would wait for each other's sums.
template <int M, class F> QKV_INLINE void by_rows(int64_t row, int64_t end, F one) {
  for (; end - row >= M && !(M == 6 && end - row == 8); row += M) one(Count<M>(), row);
  if constexpr (M > 1) by_rows<fewer(M)>(row, end, one);
}

// The parts of the spans: part(from, to, Count<vectors>(), first vector).
template <int N, class F> QKV_INLINE void by_spans(const Spans<N> &span, F part) {
  if constexpr (N == 2) {
    part(span.from[0], span.lead(), Count<1>(), 0);
    part(span.tail(), span.to[1], Count<1>(), 1);
    part(span.from[1], span.to[0], Count<2>(), 0);
  } else {
    part(span.from[0], span.to[0], Count<N>(), 0);
  }
}

// Scores of the keys that the vectors meet; row j of `key` and of `score` is key j of the block.
template <class T, int N>
__attribute__((noinline)) void scores_of(const Spans<N> &span, int64_t D, const T *key, const T *query, T *score, Fetch &fetch) {
  constexpr int width = Real<T>::width, lanes = N * width;
  by_spans(span, [&](int64_t from, int64_t to, auto vectors, int v) {
    constexpr int V = decltype(vectors)::count;
    by_rows<kTileRows<V>>(from, to, [&](auto rows, int64_t j) {
      score_tile<T, decltype(rows)::count, V>(D, key + j * D, query + v * width, score + j * lanes + v * width, lanes);
      fetch.lines(kPace);
    });
  });
}

// M columns of the mixture, C = fma(C, alpha[lane], X) with X from 0 over the keys that each vector meets.
template <class T, int M, int N>
QKV_INLINE void mix_tile(const Spans<N> &span, int64_t E, const T *value, const T *weight, T *mix, const T *alpha) {
  constexpr int width = Real<T>::width, lanes = N * width;
  Tile<T, M, N> tile;
  tile.clear();
  int64_t j = span.from[0];
  if constexpr (N == 2) {
    for (const int64_t lead = span.lead(); j < lead; ++j) tile.template add_one<0>(value + j * E, 1, load(weight + j * lanes));
    j = span.from[1];
  }
  for (; j < span.to[0]; ++j) {
    Row<T, N> row;
    row.read(weight + j * lanes);
    tile.add(value + j * E, 1, row);
  }
  if constexpr (N == 2)
    for (j = span.tail(); j < span.to[1]; ++j) tile.template add_one<1>(value + j * E, 1, load(weight + j * lanes + width));
  Row<T, N> by;
  by.read(alpha);
  tile.write_onto(mix, lanes, by);
}

template <class T, int N>
__attribute__((noinline)) void mix_values(const Spans<N> &span, int64_t E, const T *value, const T *weight, T *mix, const T *alpha,
                                          Fetch &fetch) {
  constexpr int lanes = N * Real<T>::width;
  by_rows<kTileRows<N>>(0, E, [&](auto rows, int64_t e) {
    mix_tile<T, decltype(rows)::count, N>(span, E, value + e, weight, mix + e * lanes, alpha);
    fetch.lines(kPace);
  });
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
