// From dot products to scores, and what may go wrong on the way.
#pragma once
#include "exponential.hpp"
#include "pairs.hpp"

namespace {

// c tanh(s / c). Where s / c is so small that tanh(x) = x to the last bit the score itself is the answer: s / c may
// be subnormal there.
template <class T> QKV_INLINE Vec<T> soften(Vec<T> s, Vec<T> c) {
  const Vec<T> small = c * all<T>(sizeof(T) == 8 ? T(0x1p-28) : T(0x1p-14));
  return select<T>(magnitude<T>(s) < small, s, c * tangent<T>(s / c));
}

// A softcap beyond the compute type's normal numbers acts like the nearest of them.
template <class T> QKV_INLINE T usable_softcap(double c) {
  if (c > double(Real<T>::largest)) return Real<T>::largest;
  if (c < double(Real<T>::smallest)) return Real<T>::smallest;
  return T(c);
}

template <class T, int N> void apply_softcap(Work<T> &w, const Panel &p) {
  constexpr int W = N * Real<T>::width;
  const Vec<T> c = all<T>(w.softcap);
  for (int64_t at = p.begin * W; at < p.end * W; at += Real<T>::width) store(w.score + at, soften<T>(load(w.score + at), c));
}

// s = fma(-slope, |position - j|, s); the distance is rounded once.
template <class T, int N> void apply_alibi(Work<T> &w, const Panel &p) {
  constexpr int width = Real<T>::width, W = N * width;
  const int64_t exact = sizeof(T) == 8 ? int64_t(1) << 50 : int64_t(1) << 22;
  alignas(kAlign) T slope[W], start[W];
  bool small = w.count < exact;
  for (int i = 0; i < W; ++i) {
    const int64_t distance = w.lane[p.lane + i].position - w.first;
    slope[i] = w.lane[p.lane + i].slope, start[i] = T(distance);
    small &= distance < exact && distance > -exact;
  }
  if (small) {
    for (int v = 0; v < N; ++v) {
      const Vec<T> by = load(slope + v * width), from = load(start + v * width);
      for (int64_t j = p.begin; j < p.end; ++j) {
        T *s = w.score + (j * N + v) * width;
        store(s, fma(by, magnitude<T>(from - all<T>(T(j))), load(s)));
      }
    }
  } else {
    for (int64_t j = p.begin; j < p.end; ++j)
      for (int i = 0; i < W; ++i) {
        const int64_t distance = w.lane[p.lane + i].position - (w.first + j);
        w.score[j * W + i] = fma1(slope[i], T(distance < 0 ? -distance : distance), w.score[j * W + i]);
      }
  }
}

template <class T, int N> void apply_bias(Work<T> &w, const Panel &p) {
  constexpr int W = N * Real<T>::width;
  for (int64_t at = p.begin * W; at < p.end * W; at += Real<T>::width)
    store(w.score + at, load(w.score + at) + load(w.bias + at));
}

// Whether the exact dot product of a lane and a key is below every finite number, when its running sum became -inf.
template <class T> bool truly_low(const Work<T> &w, const Panel &p, int lane, int64_t j) {
  const int64_t W = p.vectors * Real<T>::width;
  const T *query = w.query + p.lane * w.call->D + lane;
  const char *key = w.key_row(j);
  // Products of two floats are exact in double and far from its limits; doubles are made small first.
  const double shrink = sizeof(T) == 8 ? 0x1p-540 : 1.0, limit = -double(Real<T>::largest) * shrink * shrink;
  double sum = 0;
  for (int64_t d = 0; d < w.call->D; ++d)
    sum += (double(query[d * W]) * shrink) *
           (double(read_element<T>(w.call->key.dtype, key + d * w.call->key.stride[2])) * shrink);
  return sum <= limit;
}

// Looks at every allowed score that is not finite and flags its row. What overflowed upwards becomes 0, for the row is
// lost; -inf stays and is weight 0. `dot`: the scores are plain dot products, of which -inf may be a lie.
template <class T, int N> __attribute__((noinline)) void settle(Work<T> &w, const Panel &p, bool masked, bool dot) {
  constexpr int W = N * Real<T>::width;
  for (int64_t j = p.begin; j < p.end; ++j)
    for (int i = 0; i < W; ++i) {
      T &s = w.score[j * W + i];
      if (finite(s) || (masked && !w.mask[j * W + i])) continue;
      if (w.pairs && dot && finite(s = chain_of(w, p, i, j))) continue;
      uint8_t &flag = w.lane[p.lane + i].flag;
      if (s != -Real<T>::infinity || (dot && !truly_low(w, p, i, w.first + j)))
        flag |= QKV_OVERFLOW, s = 0;
      else if (!(dot && w.call->softcap > 0))
        flag |= QKV_LOW;
    }
}

template <class T, int N> bool any_odd(const Work<T> &w, const Panel &p) {
  constexpr int W = N * Real<T>::width;
  Vec<T> odd = {};
  for (int64_t at = p.begin * W; at < p.end * W; at += Real<T>::width) odd = fma(load(w.score + at), Vec<T>{}, odd);
  return any<T>(odd != odd);
}

// The score of one pair by the same arithmetic, -inf where the pair is forbidden or has weight 0.
template <class T> T score_of_pair(const Work<T> &w, const Panel &p, int index, int64_t j) {
  const qkv_call *call = w.call;
  const Lane<T> &lane = w.lane[p.lane + index];
  T bias = 0;
  if (call->allow.base && !lane.allow[j * call->allow.stride[2]]) return -Real<T>::infinity;
  if (call->bias.base) bias = read_element<T>(call->bias.dtype, lane.bias + j * call->bias.stride[2]);
  if (bias == -Real<T>::infinity) return bias;
  const int64_t W = p.vectors * Real<T>::width;
  const T *query = w.query + p.lane * call->D + index;
  const char *key = w.key_row(j);
  T s = 0;
  for (int64_t d = 0; d < call->D; ++d)
    s = fma1(query[d * W], read_element<T>(call->key.dtype, key + d * call->key.stride[2]), s);
  if (call->softcap > 0) s = soften<T>(all<T>(s), all<T>(w.softcap))[0];
  if (call->slopes) {
    const int64_t distance = lane.position - j;
    s = fma1(lane.slope, T(distance < 0 ? -distance : distance), s);
  }
  return call->bias.base ? s + bias : s;
}

}  // namespace
