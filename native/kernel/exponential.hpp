// exp(x) for x <= 0, -inf included: within one unit in the last place, exactly 1 at 0, gradual down to the smallest
// subnormal. n = round(x / ln 2), r = x - n ln 2, a polynomial of r, and 2^n put on in two exact steps, so that only
// a subnormal result is rounded a second time.
#pragma once
#include "vector.hpp"

namespace {

QKV_INLINE Vec<float> exponential(Vec<float> x) {
  typedef Vec<float> V;
  typedef IVec<float> I;
  const V lift = all<float>(0x1.8p23f + 64.0f);  // the low bits of t become n + 64
  x = larger<float>(x, all<float>(-104.0f));
  const V t = fma(x, all<float>(0x1.715476p+0f), lift);
  const V n = t - lift;
  V r = fma(n, all<float>(-0.693359375f), x);
  r = fma(n, all<float>(0.00021219444f), r);
  V p = all<float>(0x1.6a2402p-10f);
  p = fma(p, r, all<float>(0x1.123a1ep-7f));
  p = fma(p, r, all<float>(0x1.5558f2p-5f));
  p = fma(p, r, all<float>(0x1.555492p-3f));
  p = fma(p, r, all<float>(0x1.fffffcp-2f));
  p = fma(p, r, all<float>(1.0f));
  p = fma(p, r, all<float>(1.0f));
  return (V)((I)p + ((I)t << 23)) * all<float>(0x1p-64f);
}

QKV_INLINE Vec<double> exponential(Vec<double> x) {
  typedef Vec<double> V;
  typedef IVec<double> I;
  const V lift = all<double>(0x1.8p52 + 600.0);
  x = larger<double>(x, all<double>(-746.0));
  const V t = fma(x, all<double>(0x1.71547652b82fep+0), lift);
  const V n = t - lift;
  V r = fma(n, all<double>(-0x1.62e42feep-1), x);
  r = fma(n, all<double>(-0x1.a39ef35793c76p-33), r);
  V p = all<double>(0x1.1f731ea5352cap-29);
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
  p = fma(p, r, all<double>(1.0));
  p = fma(p, r, all<double>(1.0));
  return (V)((I)p + ((I)t << 52)) * all<double>(0x1p-600);
}

// One lane of the same function.
template <class T> QKV_INLINE T exponential1(T x) { return exponential(all<T>(x))[0]; }

}  // namespace
