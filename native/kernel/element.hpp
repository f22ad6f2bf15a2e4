// Elements of the caller's arrays: to the compute type exactly, from it rounded to nearest even. A finite number
// never leaves as an infinity: what would round past the largest number becomes the largest number.
#pragma once
#include <stddef.h>

#include "../qkv.h"
#include "vector.hpp"

namespace {

template <int DTYPE> struct Element;

template <> struct Element<QKV_F64> {
  static constexpr int dtype = QKV_F64;
  typedef double T;
  static constexpr int size = 8;
  static QKV_INLINE T read(const char *p) {
    double x;
    __builtin_memcpy(&x, p, 8);
    return x;
  }
  static QKV_INLINE void write(char *p, T x) { __builtin_memcpy(p, &x, 8); }
};

template <> struct Element<QKV_F32> {
  static constexpr int dtype = QKV_F32;
  typedef float T;
  static constexpr int size = 4;
  static QKV_INLINE T read(const char *p) {
    float x;
    __builtin_memcpy(&x, p, 4);
    return x;
  }
  static QKV_INLINE void write(char *p, T x) { __builtin_memcpy(p, &x, 4); }
};

QKV_INLINE float as_float(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}
QKV_INLINE uint32_t as_bits(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits;
}

template <> struct Element<QKV_BF16> {
  static constexpr int dtype = QKV_BF16;
  typedef float T;
  static constexpr int size = 2;
  static QKV_INLINE T read(const char *p) {
    uint16_t x;
    __builtin_memcpy(&x, p, 2);
    return as_float(uint32_t(x) << 16);
  }
  static QKV_INLINE void write(char *p, T x) {
    uint32_t bits = as_bits(x), sign = (bits >> 16) & 0x8000u, a = bits & 0x7fffffffu;
    uint32_t out = a > 0x7f800000u ? 0x7fc0u : (a + 0x7fffu + ((a >> 16) & 1)) >> 16;
    if (a < 0x7f800000u && out > 0x7f7fu) out = 0x7f7fu;
    uint16_t half = uint16_t(out | sign);
    __builtin_memcpy(p, &half, 2);
  }
};

template <> struct Element<QKV_F16> {
  static constexpr int dtype = QKV_F16;
  typedef float T;
  static constexpr int size = 2;
  static QKV_INLINE T read(const char *p) {
    uint16_t x;
    __builtin_memcpy(&x, p, 2);
    uint32_t a = uint32_t(x & 0x7fffu) << 13, exponent = a & 0x0f800000u, sign = uint32_t(x & 0x8000u) << 16;
    a += 112u << 23;
    if (exponent == 0x0f800000u) a += 112u << 23;                                        // infinity, NaN
    if (exponent == 0) a = as_bits(as_float(a + (1u << 23)) - as_float(113u << 23));     // subnormal, in normals
    return as_float(a | sign);
  }
  static QKV_INLINE void write(char *p, T x) {
    uint32_t bits = as_bits(x), sign = (bits >> 16) & 0x8000u, a = bits & 0x7fffffffu, out;
    if (a > 0x7f800000u)
      out = 0x7e00u;
    else if (a == 0x7f800000u)
      out = 0x7c00u;
    else if (a < 0x38800000u)  // subnormal: the last bit of 0.5 is the unit
      out = as_bits(as_float(a) + 0.5f) - as_bits(0.5f);
    else {
      out = (a - (112u << 23) + 0xfffu + ((a >> 13) & 1)) >> 13;
      if (a >= 0x477ff000u) out = 0x7bffu;
    }
    uint16_t half = uint16_t(out | sign);
    __builtin_memcpy(p, &half, 2);
  }
};

// Calls f(Element<dtype>()) for the dtype at hand; T says which dtypes can occur.
template <class T, class F> QKV_INLINE void with_element(int32_t dtype, F f) {
  if constexpr (sizeof(T) == 8) {
    if (dtype == QKV_F64)
      f(Element<QKV_F64>());
    else
      f(Element<QKV_F32>());
  } else {
    if (dtype == QKV_F32)
      f(Element<QKV_F32>());
    else if (dtype == QKV_F16)
      f(Element<QKV_F16>());
    else
      f(Element<QKV_BF16>());
  }
}

QKV_INLINE int64_t element_size(int32_t dtype) { return dtype == QKV_F64 ? 8 : dtype == QKV_F32 ? 4 : 2; }

template <class T> QKV_INLINE T read_element(int32_t dtype, const char *p) {
  T x = 0;
  with_element<T>(dtype, [&](auto source) { x = T(decltype(source)::read(p)); });
  return x;
}

}  // namespace
