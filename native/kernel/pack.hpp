// Rows of keys or values of any dtype and strides become contiguous rows of the compute type. The exponents are
// looked at on the way: a row that holds a NaN or an infinity is marked and stored as zeros, so that it can have no
// influence on rows that may not read it.
#pragma once
#include "element.hpp"

namespace {

#if defined(__F16C__)
QKV_INLINE void widen_halves(const char *from, float *to, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + 2 * i))));
  for (; i < count; ++i) to[i] = Element<QKV_F16>::read(from + 2 * i);
}
#endif

// Whether no number of the row has the exponent of infinities and NaNs.
template <class T> QKV_INLINE bool finite_row(const T *row, int64_t count) {
  typedef typename Real<T>::Int Int;
  constexpr int64_t width = Real<T>::width;
  const IVec<T> exponent = all_int<T>(Int(Real<T>::exponent));
  IVec<T> odd = {};
  int64_t i = 0;
  for (; i + width <= count; i += width) odd |= ((IVec<T>)load(row + i) & exponent) == exponent;
  bool good = !any<T>(odd);
  for (; i < count; ++i) good &= finite(row[i]);
  return good;
}

template <class T, class Source> QKV_INLINE void read_row(const char *from, int64_t stride, int64_t count, T *to) {
  if (stride != Source::size) {
    for (int64_t i = 0; i < count; ++i) to[i] = T(Source::read(from + i * stride));
    return;
  }
#if defined(__F16C__)
  if constexpr (Source::dtype == QKV_F16) return widen_halves(from, to, count);
#endif
  for (int64_t i = 0; i < count; ++i) to[i] = T(Source::read(from + i * Source::size));
}

// Packs `rows` rows; sets `mark` in flag[row] where the row is not finite. Answers whether any was.
template <class T>
bool pack_rows(int32_t dtype, const char *from, int64_t row_stride, int64_t stride, int64_t rows, int64_t count, T *to,
               uint8_t *flag, uint8_t mark) {
  bool odd = false;
  with_element<T>(dtype, [&](auto source) {
    constexpr int64_t size = decltype(source)::size;
    // About a page ahead: rows that lie far apart start no hardware prefetch of their own.
    const int64_t ahead = 4096 / (count * size) + 1;
    for (int64_t r = 0; r < rows; ++r) {
      T *row = to + r * count;
      if (stride == size && r + ahead < rows)
        for (int64_t at = 0; at < count * size; at += 64) __builtin_prefetch(from + (r + ahead) * row_stride + at);
      read_row<T, decltype(source)>(from + r * row_stride, stride, count, row);
      if (__builtin_expect(!finite_row(row, count), 0)) {
        for (int64_t i = 0; i < count; ++i) row[i] = T(0);
        flag[r] |= mark;
        odd = true;
      }
    }
  });
  return odd;
}

}  // namespace
