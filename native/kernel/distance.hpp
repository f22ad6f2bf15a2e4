// Lengths and distances of vectors: many at once where lanes are keys, and single ones exactly enough at any size.
#pragma once
#include "work.hpp"

namespace {

// Lengths within these have squares, and products of two, far from the ends of the type; differences of such vectors too.
template <class T> constexpr T kShort = sizeof(T) == 8 ? T(0x1p-400) : T(0x1p-40);
template <class T> constexpr T kLong = sizeof(T) == 8 ? T(0x1p400) : T(0x1p60);

template <class T> QKV_INLINE Vec<T> root(Vec<T> x) {
#if defined(__AVX512F__) && QKV_VECTOR_BYTES == 64
  if constexpr (sizeof(T) == 8)
    return (Vec<T>)_mm512_maskz_sqrt_pd(0xff, (__m512d)x);
  else
    return (Vec<T>)_mm512_maskz_sqrt_ps(0xffff, (__m512)x);
#elif defined(__AVX2__) && QKV_VECTOR_BYTES == 32
  if constexpr (sizeof(T) == 8)
    return (Vec<T>)_mm256_sqrt_pd((__m256d)x);
  else
    return (Vec<T>)_mm256_sqrt_ps((__m256)x);
#else
  for (int i = 0; i < Real<T>::width; ++i) x[i] = sizeof(T) == 8 ? T(__builtin_sqrt(x[i])) : T(__builtin_sqrtf(float(x[i])));
  return x;
#endif
}

// M rows of squared distances to two vectors of keys.
template <class T, int M> struct Gaps {
  Vec<T> first = {}, second = {};
  Gaps<T, M - 1> below;
  QKV_INLINE void add(const T *row, int64_t step, Vec<T> a, Vec<T> b) {
    const Vec<T> at = all<T>(*row), left = a - at, right = b - at;
    first = fma(left, left, first), second = fma(right, right, second);
    below.add(row + step, step, a, b);
  }
  QKV_INLINE void write(T *to) const {
    store(to, first), store(to + Real<T>::width, second);
    below.write(to + 2 * Real<T>::width);
  }
};
template <class T> struct Gaps<T, 0> {
  QKV_INLINE void add(const T *, int64_t, Vec<T>, Vec<T>) {}
  QKV_INLINE void write(T *) const {}
};

// to[row][key] = Σ_e (column[e][key] - row[e])², e ascending, for two vectors of keys.
template <class T, int M = QKV_MANY_REGISTERS ? 8 : 4>
__attribute__((noinline)) void squared_gaps(int64_t rows, int64_t E, const T *row, const T *column, T *to) {
  constexpr int64_t wide = 2 * Real<T>::width;
  for (; rows >= M; rows -= M, row += M * E, to += M * wide) {
    Gaps<T, M> gaps;
    for (int64_t e = 0; e < E; ++e) gaps.add(row + e, E, load(column + e * wide), load(column + e * wide + Real<T>::width));
    gaps.write(to);
  }
  if constexpr (M > 1)
    if (rows > 0) squared_gaps<T, M / 2>(rows, E, row, column, to);
}

// root · 2^exponent, root 0 for a vector of zeros.
struct Length {
  double root;
  int exponent;
};

// The exponent that makes the largest of some finite numbers at least 1/2 and less than 1. Squares of float need none in double.
template <class T> int exponent_of(const T *x, int64_t step, int64_t count) {
  if (sizeof(T) == 4) return 0;
  int exponent = -1100;  // below that of any number, for a vector of zeros
  double largest = 0;
  for (int64_t e = 0; e < count; ++e) {
    const double size = x[e * step] < 0 ? -double(x[e * step]) : double(x[e * step]);
    if (size > largest) largest = size;
  }
  if (largest > 0) __builtin_frexp(largest, &exponent);
  return exponent;
}
QKV_INLINE double shrunk(double x, int exponent) { return exponent == 0 ? x : __builtin_ldexp(x, -exponent); }

template <class T> Length length_of(const T *x, int64_t step, int64_t count) {
  double sum = 0;
  for (int64_t e = 0; e < count; ++e) sum += double(x[e * step]) * double(x[e * step]);
  const double root = __builtin_sqrt(sum);
  if (sizeof(T) == 4 || (root >= kShort<double> && root <= kLong<double>)) return {root, 0};
  const int exponent = exponent_of(x, step, count);
  sum = 0;
  for (int64_t e = 0; e < count; ++e) sum += shrunk(x[e * step], exponent) * shrunk(x[e * step], exponent);
  return {__builtin_sqrt(sum), exponent};
}

// |x - y|; two exponents more keep the difference of the largest numbers within 1.
template <class T> Length gap_of(const T *x, int64_t step, const T *y, int64_t count) {
  const int mine = exponent_of(x, step, count), its = exponent_of(y, 1, count);
  const bool flat = sizeof(T) == 4;
  const int exponent = flat ? 0 : (mine > its ? mine : its) + 2;
  double sum = 0;
  for (int64_t e = 0; e < count; ++e) {
    const double part = shrunk(x[e * step], exponent) - shrunk(y[e], exponent);
    sum += part * part;
  }
  return {__builtin_sqrt(sum), exponent};
}

// x · a / b as a number of the compute type, infinite where it leaves that.
template <class T> T scaled_ratio(T x, Length a, Length b) {
  return T(__builtin_ldexp(double(x) * (a.root / b.root), a.exponent - b.exponent));
}

// w v·o / |o|².
template <class T> T share_of(T weight, const T *value, const T *output, int64_t count) {
  const int mine = exponent_of(value, 1, count), its = exponent_of(output, 1, count);
  double along = 0, square = 0;
  for (int64_t e = 0; e < count; ++e) {
    const double v = shrunk(value[e], mine), o = shrunk(output[e], its);
    along += v * o, square += o * o;
  }
  return T(__builtin_ldexp(double(weight) * (along / square), mine - its));
}

// by (x - y), where the difference may leave the type and the product not.
template <class T> T scaled_gap(T by, T x, T y) {
  const T gap = by * (x - y);
  if (finite(gap)) return gap;
  return sizeof(T) == 8 ? T(2 * (double(by) * (double(x) / 2 - double(y) / 2))) : T(double(by) * (double(x) - double(y)));
}

}  // namespace
