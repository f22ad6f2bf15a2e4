// exp(x) for x <= 0, -inf included: within one unit in the last place, exactly 1 at 0, gradual down to the smallest
// subnormal. And tanh. n = round(x / ln 2), r = x - n ln 2, a polynomial of r, and 2^n put on in two exact steps, so
// that only a subnormal result is rounded a second time.
#pragma once
#include "vector.hpp"

namespace {

// exp(x) = 2^n (1 + r q), and `power` holds 2^(n + lift) when added to the bits of 1.
template <class T> struct Reduced {
  Vec<T> r, q;
  IVec<T> power;
  Vec<T> n;
};

QKV_INLINE Reduced<float> reduce(Vec<float> x) {
  const Vec<float> lift = all<float>(0x1.8p23f + 64.0f);  // the low bits of t become n + 64
  const Vec<float> t = fma(x, all<float>(0x1.715476p+0f), lift), n = t - lift;
  Vec<float> r = fma(n, all<float>(-0.693359375f), x);
  r = fma(n, all<float>(0.00021219444f), r);
  Vec<float> p = all<float>(0x1.6a2402p-10f);
  p = fma(p, r, all<float>(0x1.123a1ep-7f));
  p = fma(p, r, all<float>(0x1.5558f2p-5f));
  p = fma(p, r, all<float>(0x1.555492p-3f));
  p = fma(p, r, all<float>(0x1.fffffcp-2f));
  return {r, fma(p, r, all<float>(1.0f)), (IVec<float>)t << 23, n};
}

QKV_INLINE Reduced<double> reduce(Vec<double> x) {
  const Vec<double> lift = all<double>(0x1.8p52 + 600.0);
  const Vec<double> t = fma(x, all<double>(0x1.71547652b82fep+0), lift), n = t - lift;
  Vec<double> r = fma(n, all<double>(-0x1.62e42feep-1), x);
  r = fma(n, all<double>(-0x1.a39ef35793c76p-33), r);
  Vec<double> p = all<double>(0x1.1f731ea5352cap-29);
  p = fma(p, r, all<double>(0x1.af4e196027428p-26));
  p = fma(p, r, all<double>(0x1.27e4db57442fbp-22));
  p = fma(p, r, all<double>(0x1.71de021a90822p-19));
  p = fma(p, r, all<double>(0x1.a01a01a6dcaffp-16));
  p = fma(p, r, all<double>(0x1.a01a01abef415p-13));
  p = fma(p, r, all<double>(0x1.6c16c16c162ccp-10));
  p = fma(p, r, all<double>(0x1.11111111100cep-7));
  p = fma(p, r, all<double>(0x1.5555555555556p-5));
  p = fma(p, r, all<double>(0x1.5555555555557p-3));
  p = fma(p, r, all<double>(0.5));
  return {r, fma(p, r, all<double>(1.0)), (IVec<double>)t << 52, n};
}

// x times two to the power that the reduction found.
QKV_INLINE Vec<float> raise(Vec<float> x, IVec<float> power) { return (Vec<float>)((IVec<float>)x + power) * all<float>(0x1p-64f); }
QKV_INLINE Vec<double> raise(Vec<double> x, IVec<double> power) {
  return (Vec<double>)((IVec<double>)x + power) * all<double>(0x1p-600);
}

template <class T> QKV_INLINE Vec<T> exponential(Vec<T> x) {
  const Reduced<T> at = reduce(larger<T>(x, all<T>(sizeof(T) == 8 ? T(-746) : T(-104))));
  const Vec<T> y = fma(at.r, at.q, all<T>(1));
#if defined(__AVX512F__) && QKV_VECTOR_BYTES == 64
  // The same in one step: rounded once, and only where the result is subnormal.
  if constexpr (sizeof(T) == 8)
    return (Vec<T>)_mm512_maskz_scalef_pd(0xff, (__m512d)y, (__m512d)at.n);
  else
    return (Vec<T>)_mm512_maskz_scalef_ps(0xffff, (__m512)y, (__m512)at.n);
#else
  return raise(y, at.power);
#endif
}

// tanh by t = exp(-2|x|) - 1, which keeps its relative accuracy where x is small: tanh|x| = -t / (2 + t).
template <class T> QKV_INLINE Vec<T> tangent(Vec<T> x) {
  const Vec<T> a = magnitude<T>(x), y = a * all<T>(-2);
  const Reduced<T> at = reduce(larger<T>(y, all<T>(-45)));
  const Vec<T> power = raise(all<T>(1), at.power), t = fma(at.r * at.q, power, power - all<T>(1));
  const Vec<T> size = -t / (all<T>(2) + t);
  return (Vec<T>)((IVec<T>)size | ((IVec<T>)x & ~(IVec<T>)magnitude<T>((Vec<T>)(IVec<T>{} - 1))));
}

// One lane of the same function.
template <class T> QKV_INLINE T exponential1(T x) { return exponential<T>(all<T>(x))[0]; }

}  // namespace
