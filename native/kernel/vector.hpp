// Vectors of one instruction set: lane-wise arithmetic whose result per lane is the same for every vector width.
// Everything here is internal to its translation unit, so that no function compiled for one level can be linked
// into another.
#pragma once
#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define QKV_INLINE inline __attribute__((always_inline))

#if defined(QKV_VECTOR_BYTES)  // set by hand: wide lanes are tested on machines without them
#define QKV_MANY_REGISTERS 1
#elif defined(__AVX512F__)
#define QKV_VECTOR_BYTES 64
#define QKV_MANY_REGISTERS 1
#elif defined(__AVX2__)
#define QKV_VECTOR_BYTES 32
#define QKV_MANY_REGISTERS 0
#elif defined(__aarch64__)
#define QKV_VECTOR_BYTES 16
#define QKV_MANY_REGISTERS 1
#else
#define QKV_VECTOR_BYTES 16
#define QKV_MANY_REGISTERS 0
#endif

// A level has fused multiply-add for all of its code paths or for none.
#if defined(__FMA__) || defined(__aarch64__)
#define QKV_FUSED 1
#else
#define QKV_FUSED 0
#endif

namespace {

template <class T> struct Real;

template <> struct Real<float> {
  typedef int32_t Int;
  typedef uint32_t Bits;
  typedef float V __attribute__((vector_size(QKV_VECTOR_BYTES)));
  typedef int32_t I __attribute__((vector_size(QKV_VECTOR_BYTES)));
  static constexpr int width = QKV_VECTOR_BYTES / 4;
  static constexpr Bits exponent = 0x7f800000u;
  static constexpr float infinity = __builtin_inff();
  static constexpr float largest = 0x1.fffffep127f;
  static constexpr float smallest = 0x1p-126f;
};

template <> struct Real<double> {
  typedef int64_t Int;
  typedef uint64_t Bits;
  typedef double V __attribute__((vector_size(QKV_VECTOR_BYTES)));
  typedef int64_t I __attribute__((vector_size(QKV_VECTOR_BYTES)));
  static constexpr int width = QKV_VECTOR_BYTES / 8;
  static constexpr Bits exponent = 0x7ff0000000000000u;
  static constexpr double infinity = __builtin_inf();
  static constexpr double largest = 0x1.fffffffffffffp1023;
  static constexpr double smallest = 0x1p-1022;
};

// The widest thing any level stores in one instruction; arrays of lanes start at such a boundary.
constexpr int64_t kAlign = 64;

template <class T> using Vec = typename Real<T>::V;
template <class T> using IVec = typename Real<T>::I;

template <class T> QKV_INLINE Vec<T> load(const T *p) {
  Vec<T> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class T> QKV_INLINE void store(T *p, Vec<T> v) { __builtin_memcpy(p, &v, sizeof v); }
template <class T> QKV_INLINE IVec<T> load_int(const typename Real<T>::Int *p) {
  IVec<T> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class T> QKV_INLINE void store_int(typename Real<T>::Int *p, IVec<T> v) { __builtin_memcpy(p, &v, sizeof v); }

// x - 0 and not x + 0: it keeps -0 and compiles to one broadcast.
template <class T> QKV_INLINE Vec<T> all(T x) { return x - Vec<T>{}; }
template <class T> QKV_INLINE IVec<T> all_int(typename Real<T>::Int x) { return x - IVec<T>{}; }

template <class T> QKV_INLINE Vec<T> select(IVec<T> mask, Vec<T> yes, Vec<T> no) { return mask ? yes : no; }

QKV_INLINE float fma1(float a, float b, float c) {
#if QKV_FUSED
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
QKV_INLINE double fma1(double a, double b, double c) {
#if QKV_FUSED
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

#if defined(__AVX512F__)
QKV_INLINE Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) { return (Vec<float>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
QKV_INLINE Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) { return (Vec<double>)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c); }
#elif defined(__FMA__)
QKV_INLINE Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) { return (Vec<float>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
QKV_INLINE Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) { return (Vec<double>)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c); }
#elif defined(__aarch64__)
QKV_INLINE Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) { return (Vec<float>)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
QKV_INLINE Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) { return (Vec<double>)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b); }
#else
QKV_INLINE Vec<float> fma(Vec<float> a, Vec<float> b, Vec<float> c) { return a * b + c; }
QKV_INLINE Vec<double> fma(Vec<double> a, Vec<double> b, Vec<double> c) { return a * b + c; }
#endif

// a where a > b, else b: of two equal zeros either, and never a NaN from a alone.
template <class T> QKV_INLINE Vec<T> larger(Vec<T> a, Vec<T> b) {
  // One instruction, which compilers do not see in the comparison if b is a constant.
#if defined(__AVX512F__) && QKV_VECTOR_BYTES == 64
  if constexpr (sizeof(T) == 8)
    return (Vec<T>)_mm512_maskz_max_pd(0xff, (__m512d)a, (__m512d)b);
  else
    return (Vec<T>)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(__AVX2__) && QKV_VECTOR_BYTES == 32
  if constexpr (sizeof(T) == 8)
    return (Vec<T>)_mm256_max_pd((__m256d)a, (__m256d)b);
  else
    return (Vec<T>)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}

template <class T> QKV_INLINE Vec<T> magnitude(Vec<T> x) {
  return (Vec<T>)((IVec<T>)x & all_int<T>(typename Real<T>::Int(~(typename Real<T>::Bits(1) << (sizeof(T) * 8 - 1)))));
}

// One bit for each lane of a mask, the first lane's lowest.
template <class T> QKV_INLINE uint32_t lanes_in(IVec<T> mask) {
#if defined(__AVX512DQ__)
  return sizeof(T) == 8 ? uint32_t(_mm512_movepi64_mask((__m512i)mask)) : uint32_t(_mm512_movepi32_mask((__m512i)mask));
#elif defined(__AVX2__) && QKV_VECTOR_BYTES == 32
  return uint32_t(sizeof(T) == 8 ? _mm256_movemask_pd((__m256d)mask) : _mm256_movemask_ps((__m256)mask));
#elif defined(__SSE2__) && QKV_VECTOR_BYTES == 16
  return uint32_t(sizeof(T) == 8 ? _mm_movemask_pd((__m128d)mask) : _mm_movemask_ps((__m128)mask));
#else
  uint32_t bits = 0;
  for (int i = 0; i < Real<T>::width; ++i) bits |= uint32_t(mask[i] & 1) << i;
  return bits;
#endif
}
template <class T> QKV_INLINE bool any(IVec<T> mask) { return lanes_in<T>(mask) != 0; }

// A number that the compiler knows, as an argument.
template <int N> struct Count {
  static constexpr int count = N;
};

template <class T> QKV_INLINE bool finite(T x) {
  typename Real<T>::Bits bits;
  __builtin_memcpy(&bits, &x, sizeof x);
  return (bits & Real<T>::exponent) != Real<T>::exponent;
}

}  // namespace
