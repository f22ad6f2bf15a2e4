// Square transposes in registers: as many rows as a vector has lanes, read from the caller's memory, become columns.
#pragma once
#include "product.hpp"

namespace {

// The lower (H 0) or upper halves of two vectors, lane by lane in turn.
template <class T, int H> QKV_INLINE Vec<T> interleave(Vec<T> a, Vec<T> b) {
  constexpr int W = Real<T>::width;
  IVec<T> order = {};
  for (int i = 0; i < W; ++i) order[i] = typename Real<T>::Int(H * W / 2 + i / 2 + (i & 1 ? W : 0));
  return __builtin_shuffle(a, b, order);
}

#if defined(__AVX512F__)
// Two halves as one vector. The plain cast of a half leaves the rest undefined, and GCC warns of its own header there.
QKV_INLINE __m512 side_by_side(__m256 low, __m256 high) {
#if __has_builtin(__builtin_shufflevector)  // GCC has it from 12 on
  typedef float Half __attribute__((vector_size(32)));
  return (__m512)__builtin_shufflevector((Half)low, (Half)high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#else
  return _mm512_maskz_insertf32x8(0xffff, _mm512_zextps256_ps512(low), high, 1);
#endif
}
#endif

// to[d][lane] = row[lane][d] for as many d as a row has lanes; `step` numbers from one d to the next. Interleaving the
// first half of the rows with the second, once for each bit of the row's number, is a transpose.
template <class T, class Source> QKV_INLINE void transpose(const char *const *row, int64_t at, T *to, int64_t step) {
  constexpr int W = Real<T>::width;
#if defined(__AVX2__) && QKV_VECTOR_BYTES == 32
  if constexpr (sizeof(T) == 4) {
    // Rows i and i + 4 share a vector from the start, so that nothing has to cross its middle.
#pragma GCC unroll 2
    for (int c = 0; c < 8; c += 4) {
      __m256 x[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const char *low = row[i] + at + c * Source::size, *high = row[i + 4] + at + c * Source::size;
        if constexpr (Source::size == 4) {
          x[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps((const float *)low)), _mm_loadu_ps((const float *)high), 1);
        } else {
          const __m128i both = _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)low), _mm_loadl_epi64((const __m128i *)high));
          if constexpr (Source::dtype == QKV_F16)
            x[i] = _mm256_cvtph_ps(both);
          else
            x[i] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(both), 16));
        }
      }
      const __m256 a = _mm256_unpacklo_ps(x[0], x[1]), b = _mm256_unpackhi_ps(x[0], x[1]);
      const __m256 e = _mm256_unpacklo_ps(x[2], x[3]), f = _mm256_unpackhi_ps(x[2], x[3]);
      store<T>(to + (c + 0) * step, (Vec<T>)_mm256_shuffle_ps(a, e, 0x44));
      store<T>(to + (c + 1) * step, (Vec<T>)_mm256_shuffle_ps(a, e, 0xee));
      store<T>(to + (c + 2) * step, (Vec<T>)_mm256_shuffle_ps(b, f, 0x44));
      store<T>(to + (c + 3) * step, (Vec<T>)_mm256_shuffle_ps(b, f, 0xee));
    }
    return;
  }
#endif
#if defined(__AVX512F__) && QKV_VECTOR_BYTES == 64
  if constexpr (sizeof(T) == 4) {
    // Rows i, i + 4, i + 8 and i + 12 share a vector, a quarter each, so that nothing has to leave its quarter.
#pragma GCC unroll 4
    for (int c = 0; c < 16; c += 4) {
      __m512 x[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const char *const p = row[i] + at + c * Source::size, *const q = row[i + 4] + at + c * Source::size;
        const char *const r = row[i + 8] + at + c * Source::size, *const s = row[i + 12] + at + c * Source::size;
        if constexpr (Source::size == 4) {
          const __m256 low = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps((const float *)p)), _mm_loadu_ps((const float *)q), 1);
          const __m256 high = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps((const float *)r)), _mm_loadu_ps((const float *)s), 1);
          x[i] = side_by_side(low, high);
        } else {
          const __m128i low = _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)p), _mm_loadl_epi64((const __m128i *)q));
          const __m128i high = _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)r), _mm_loadl_epi64((const __m128i *)s));
          const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
          if constexpr (Source::dtype == QKV_F16)
            x[i] = _mm512_maskz_cvtph_ps(0xffff, both);
          else
            x[i] = (__m512)((IVec<T>)_mm512_maskz_cvtepu16_epi32(0xffff, both) << 16);
        }
      }
      const __m512 a = _mm512_maskz_unpacklo_ps(0xffff, x[0], x[1]), b = _mm512_maskz_unpackhi_ps(0xffff, x[0], x[1]);
      const __m512 e = _mm512_maskz_unpacklo_ps(0xffff, x[2], x[3]), f = _mm512_maskz_unpackhi_ps(0xffff, x[2], x[3]);
      store<T>(to + (c + 0) * step, (Vec<T>)_mm512_maskz_shuffle_ps(0xffff, a, e, 0x44));
      store<T>(to + (c + 1) * step, (Vec<T>)_mm512_maskz_shuffle_ps(0xffff, a, e, 0xee));
      store<T>(to + (c + 2) * step, (Vec<T>)_mm512_maskz_shuffle_ps(0xffff, b, f, 0x44));
      store<T>(to + (c + 3) * step, (Vec<T>)_mm512_maskz_shuffle_ps(0xffff, b, f, 0xee));
    }
    return;
  }
#endif
  Vec<T> x[W], y[W];
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i) x[i] = load_wide<T, Source>(row[i] + at);
#pragma GCC unroll 4
  for (int bit = 1; bit < W; bit *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < W / 2; ++i) {
      y[2 * i] = interleave<T, 0>(x[i], x[i + W / 2]);
      y[2 * i + 1] = interleave<T, 1>(x[i], x[i + W / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) x[i] = y[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i) store<T>(to + i * step, x[i]);
}

}  // namespace
